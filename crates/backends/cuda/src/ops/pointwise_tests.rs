//! Formulas against the reference, over the first operand and beside it.

use enmasse_graph::Expression;
use enmasse_reference::ops::pointwise as reference;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

#[path = "../../../cpu/tests/suite/common/expressions.rs"]
mod expressions;

fn check<E: Element>(formula: &Formula, operands: [&[E]; 2]) {
    let Some(mut bench) = Bench::new() else { return };
    let inputs = operands.map(|operand| bench.put(operand));
    let expected = reference::pointwise(formula, &operands.map(wide).each_ref().map(Vec::as_slice));
    let mut results: Vec<Span> = expected.iter().map(|values| bench.room::<E>(values.len())).collect();
    for first in [results[0], inputs[0]] {
        results[0] = first;
        bench.run(&pointwise(E::DTYPE, formula, &inputs, &results));
        for (&found, expected) in results.iter().zip(&expected) {
            assert_rounded(&format!("{formula} {}", E::DTYPE), &bench.get::<E>(found), expected, 2e-5);
        }
    }
}

#[test]
fn random_expressions_and_their_gradients() {
    for seed in 0..20 {
        let expression = expressions::expression(seed);
        let formula = Formula::new(&[expression.clone(), expression.derivative(0), expression.derivative(1)]);
        assert!(formula.registers().1 <= Formula::MAX_REGISTERS && formula.steps().len() <= Formula::MAX_STEPS);
        let n = [1, 31, 1337][seed as usize % 3];
        check::<f32>(&formula, [&noise(1, n, 2.0), &noise(2, n, 2.0)]);
        check::<Bf16>(&formula, [&noise(1, n, 2.0), &noise(2, n, 2.0)]);
        check::<F16>(&formula, [&noise(1, n, 2.0), &noise(2, n, 2.0)]);
    }
}

#[test]
fn special_values() {
    let [x, y] = Expression::operands();
    let special: [f32; 8] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, -1.0, 1.0, 80.0];
    let operands =
        [0, 1].map(|operand| (0..64).map(|i| special[if operand == 0 { i / 8 } else { i % 8 }]).collect::<Vec<f32>>());
    let one = [x.exp(), x.log(), x.tanh(), x.erf(), x.sigmoid(), x.sqrt(), x.abs(), -&x, x.power(-1.5), x.power(2.0)];
    let two = [&x / &y, x.minimum(&y), x.maximum(&y), Expression::where_above(&x, &y, 1.0, 2.0 * &x)];
    for expression in one.into_iter().chain(two) {
        // One result is checked at a time, for errors are relative to the largest.
        let formula = Formula::new(&[expression, y.clone()]);
        for at in 0..64 {
            check(&formula, [&operands[0][at..=at], &operands[1][at..=at]]);
        }
    }
}
