//! Formulas on every level against the reference, and the errors of their functions.

use enmasse_graph::Expression;
use enmasse_reference::ops::pointwise as reference;
use enmasse_tensor::Bf16;

use super::*;
use crate::guard::{Edge, Guarded};
use crate::isa::Isa;
use crate::test_support::{available, noise};

#[path = "../tests/suite/common/expressions.rs"]
mod expressions;

/// The first operand is overwritten by the first result.
fn run<E: Element>(formula: &Formula, isa: Isa, threads: usize, edge: Edge, operands: &[Vec<E>]) -> Vec<Vec<E>> {
    let steps = Steps::new(formula);
    let context = &mut Context::new(threads, isa, steps.workspace()).unwrap();
    let mut inputs: Vec<Guarded<E>> = operands.iter().map(|operand| Guarded::new(edge, operand)).collect();
    let more = formula.results().len() - 1;
    let mut others: Vec<Guarded<E>> = (0..more).map(|_| Guarded::new(edge, &operands[0])).collect();
    let inputs: Vec<Region<E>> = inputs.iter_mut().map(|input| Region::of_mut(input)).collect();
    let results: Vec<Region<E>> =
        [inputs[0]].into_iter().chain(others.iter_mut().map(|other| Region::of_mut(other))).collect();
    // SAFETY: live buffers of equal length.
    unsafe {
        pointwise(context, &steps, &inputs, &results);
        results.iter().map(|result| result.slice(0, result.len()).to_vec()).collect()
    }
}

fn expected<E: Element>(formula: &Formula, operands: &[Vec<E>]) -> Vec<Vec<f64>> {
    let wide: Vec<Vec<f64>> =
        operands.iter().map(|operand| operand.iter().map(|value| value.get().into()).collect()).collect();
    reference::pointwise(formula, &wide.iter().map(Vec::as_slice).collect::<Vec<&[f64]>>())
}

fn check<E: Element>(formula: &Formula, isa: Isa, edge: Edge, n: usize, tolerance: f64) {
    let operands: Vec<Vec<E>> =
        [1, 2].map(|key| noise(key, n).iter().map(|&value| E::of(2.0 * value)).collect()).into();
    for (found, expected) in run(formula, isa, 3, edge, &operands).iter().zip(expected(formula, &operands)) {
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found.get()) - expected).abs();
            assert!(error <= tolerance * expected.abs().max(1.0), "{formula} {isa} [{i}]: {error}");
        }
    }
}

#[test]
fn random_expressions_and_their_gradients_equal_the_reference() {
    for seed in 0..60 {
        let expression = expressions::expression(seed);
        let formula = Formula::new(&[expression.clone(), expression.derivative(0), expression.derivative(1)]);
        let edge = Edge::BOTH[seed as usize % 2];
        let n = [1, 17, 511, 512, 513, 1337][seed as usize % 6];
        for isa in available() {
            check::<f32>(&formula, isa, edge, n, 2e-5);
            check::<Bf16>(&formula, isa, edge, n, 1.0 / 256.0);
        }
    }
}

#[test]
fn bits_depend_neither_on_threads_nor_on_places() {
    let formula = Formula::new(&[expressions::expression(3), expressions::expression(4)]);
    let operands: Vec<Vec<f32>> = [1, 2].map(|key| noise(key, 40_003)).into();
    for isa in available() {
        let one = run(&formula, isa, 1, Edge::First, &operands);
        assert_eq!(run(&formula, isa, 4, Edge::Last, &operands), one);
        for at in [0, 511, 16_384, 40_002] {
            let alone: Vec<Vec<f32>> = operands.iter().map(|operand| vec![operand[at]]).collect();
            let found = run(&formula, isa, 1, Edge::First, &alone);
            assert!(found.iter().zip(&one).all(|(found, one)| found[0].to_bits() == one[at].to_bits()), "{at}");
        }
    }
}

#[test]
fn special_values_equal_the_reference() {
    let special = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1e-40,
        -1e-40,
        f32::MAX,
        f32::MIN,
        -1.0,
        1.0,
        88.8,
        -103.5,
    ];
    let operands = [0, 1].map(|operand| {
        let n = special.len();
        (0..n * n).map(|i| special[if operand == 0 { i / n } else { i % n }]).collect::<Vec<f32>>()
    });
    let [x, y] = Expression::operands();
    let one = [x.exp(), x.log(), x.tanh(), x.erf(), x.sigmoid(), x.sqrt(), x.abs(), -&x];
    let powers = [2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.5].map(|exponent| x.power(exponent));
    let two = [&x + &y, &x - &y, &x * &y, &x / &y, x.minimum(&y), x.maximum(&y), x.clamp(-1.0, 1.0)];
    let where_above = Expression::where_above(&x, &y, 1.0, 2.0 * &x);
    for expression in one.into_iter().chain(powers).chain(two).chain([where_above]) {
        let formula = Formula::new(&[&expression + 0.0 * &y.minimum(0.0).maximum(0.0), y.clone()]);
        let expected = expected(&formula, &operands);
        for isa in available() {
            let found = run(&formula, isa, 1, Edge::First, &operands);
            for (i, (&found, &expected)) in found[0].iter().zip(&expected[0]).enumerate() {
                let expected = expected as f32;
                let near = (found - expected).abs() <= 1e-6 * expected.abs() + 2e-38;
                assert!(
                    found == expected || near || found.is_nan() && expected.is_nan(),
                    "{expression} {isa} of {} and {}: {found}, not {expected}",
                    operands[0][i],
                    operands[1][i]
                );
            }
        }
    }
}

/// The stated errors, over all numbers.
#[test]
fn errors_of_functions_in_units_of_the_last_place() {
    let x: Vec<f32> = (0..u32::MAX).step_by(15_013).map(f32::from_bits).filter(|x| x.is_finite()).collect();
    let [operand] = Expression::operands();
    let check = |expression: Expression, limit: f64, absolute: f64| {
        let formula = Formula::new(&[expression]);
        let exact = &expected(&formula, std::slice::from_ref(&x))[0];
        for isa in available() {
            let found = &run(&formula, isa, 2, Edge::First, std::slice::from_ref(&x))[0];
            let (mut largest, mut at) = (0.0, 0.0);
            for ((&x, &found), &exact) in x.iter().zip(found).zip(exact) {
                let rounded = exact as f32;
                let unit = f64::from(rounded.abs().max(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON);
                // The spacing of numbers of this size.
                let unit = 2f64.powi(unit.log2().floor() as i32);
                let error = (f64::from(found) - exact).abs();
                if found != rounded && !(found.is_nan() && exact.is_nan()) && error > absolute && error / unit > largest
                {
                    (largest, at) = (error / unit, x);
                }
            }
            assert!(largest < limit, "{formula} on {isa}: {largest} ulp at {at}");
        }
    };
    check(operand.exp(), 1.0, 0.0);
    check(operand.log(), 1.0, 0.0);
    check(operand.tanh(), 2.0, 0.0);
    check(operand.erf(), 3.0, 0.0);
    check(operand.sigmoid(), 3.0, 1e-37);
}
