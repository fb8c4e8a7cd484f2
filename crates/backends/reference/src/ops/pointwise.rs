//! Expressions at each element.

use enmasse_graph::ops::Pointwise;
use enmasse_graph::{Binary, Formula, Term, Unary};

use super::{OnReference, StepContext};

/// The results of a formula for each element of the operands.
pub fn pointwise(formula: &Formula, operands: &[&[f64]]) -> Vec<Vec<f64>> {
    let elements = operands.first().map_or(0, |operand| operand.len());
    let mut results = vec![Vec::new(); formula.results().len()];
    for index in 0..elements {
        let row: Vec<f64> = operands.iter().map(|operand| operand[index]).collect();
        let mut values = Vec::<f64>::new();
        for step in formula.steps() {
            let at = |operand: usize| values[operand];
            values.push(match *step {
                Term::Operand(operand) => row[operand],
                Term::Constant(value) => value.into(),
                Term::Unary(function, x) => unary(function, at(x)),
                Term::Binary(function, a, b) => binary(function, at(a), at(b)),
                Term::Power(x, exponent) => at(x).powf(exponent.into()),
                Term::Where([a, b, x, y]) => at(if at(a) > at(b) { x } else { y }),
            });
        }
        results.iter_mut().zip(formula.results()).for_each(|(result, &step)| result.push(values[step]));
    }
    results
}

fn unary(function: Unary, x: f64) -> f64 {
    match function {
        Unary::Negate => -x,
        Unary::Abs => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Tanh => x.tanh(),
        Unary::Erf => libm::erf(x),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Sqrt => x.sqrt(),
    }
}

fn binary(function: Binary, a: f64, b: f64) -> f64 {
    match function {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        // `min` would lose NaN, as would `max`.
        Binary::Minimum if b < a || b.is_nan() => b,
        Binary::Maximum if b > a || b.is_nan() => b,
        Binary::Minimum | Binary::Maximum => a,
    }
}

impl OnReference for Pointwise {
    fn run(&self, step: &mut StepContext) -> Result<(), enmasse_device::DeviceError> {
        step.each_shard(|call, []| match call.rest.len() >= self.formula().operands() {
            true => Ok(pointwise(self.formula(), call.rest)),
            false => Err(super::unsupported(call.step.node)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::FRAC_2_SQRT_PI;

    use enmasse_graph::Expression;

    use super::*;
    use crate::test_support::assert_close;

    fn value(expression: &Expression, operands: &[f64]) -> f64 {
        let operands: Vec<&[f64]> = operands.iter().map(std::slice::from_ref).collect();
        pointwise(&Formula::new(std::slice::from_ref(expression)), &operands)[0][0]
    }

    #[test]
    fn expressions_by_hand() {
        let [x, y] = Expression::operands();
        let check = |expression: Expression, operands: [f64; 2], expected: f64, derivatives: [f64; 2]| {
            let found = [0, 1].map(|operand| value(&(expression.derivative(operand) + 0.0 * (&x + &y)), &operands));
            assert_close(&[value(&(&expression + 0.0 * (&x + &y)), &operands)], &[expected]);
            assert_close(&found, &derivatives);
        };
        check(&x + &y, [2.0, 3.0], 5.0, [1.0, 1.0]);
        check(&x - &y, [2.0, 3.0], -1.0, [1.0, -1.0]);
        check(&x * &y, [2.0, 3.0], 6.0, [3.0, 2.0]);
        check(&x / &y, [2.0, 4.0], 0.5, [0.25, -0.125]);
        check(&x / (1.0 + &x), [1.0, 0.0], 0.5, [0.25, 0.0]);
        check(-&x, [2.0, 3.0], -2.0, [-1.0, 0.0]);
        check(x.abs(), [-2.0, 0.0], 2.0, [-1.0, 0.0]);
        check(x.abs(), [0.0, 0.0], 0.0, [0.0, 0.0]);
        check(x.exp(), [0.0, 0.0], 1.0, [1.0, 0.0]);
        check(x.log(), [4.0, 0.0], 4f64.ln(), [0.25, 0.0]);
        check(x.sqrt(), [4.0, 0.0], 2.0, [0.25, 0.0]);
        check(x.power(3.0), [-2.0, 0.0], -8.0, [12.0, 0.0]);
        check(x.power(-0.5), [4.0, 0.0], 0.5, [-0.0625, 0.0]);
        check(x.power(0.0), [0.0, 0.0], 1.0, [0.0, 0.0]);
        check(x.minimum(&y), [1.0, 2.0], 1.0, [1.0, 0.0]);
        check(x.minimum(&y), [1.0, 1.0], 1.0, [1.0, 0.0]);
        check(x.maximum(&y), [1.0, 2.0], 2.0, [0.0, 1.0]);
        check(x.maximum(&y), [1.0, 1.0], 1.0, [1.0, 0.0]);
        check(x.clamp(-1.0, 1.0), [1.0, 0.0], 1.0, [1.0, 0.0]);
        check(x.clamp(-1.0, 1.0), [-1.0, 0.0], -1.0, [1.0, 0.0]);
        check(x.clamp(-1.0, 1.0), [3.0, 0.0], 1.0, [0.0, 0.0]);
        check(Expression::where_above(&x, &y, &x * &y, 2.0 * &y), [3.0, 2.0], 6.0, [2.0, 3.0]);
        check(Expression::where_above(&x, &y, &x * &y, 2.0 * &y), [2.0, 2.0], 4.0, [0.0, 2.0]);
        let softplus = x.maximum(0.0) + (1.0 + (-&x).minimum(&x).exp()).log();
        check(softplus, [0.0, 0.0], 2f64.ln(), [0.5, 0.0]);
        // What is not chosen has an infinite derivative.
        check(Expression::where_above(&x, 0.0, x.sqrt() * x.log(), 7.0), [0.0, 0.0], 7.0, [0.0, 0.0]);
        // PyTorch 2.13 in f64.
        check(x.tanh(), [0.5, 0.0], 0.462_117_157_260_009_8, [0.786_447_732_965_927_4, 0.0]);
        // The derivative's constant is one of f32.
        let erf_derivative = 0.878_782_578_935_444_8 / FRAC_2_SQRT_PI * f64::from(std::f32::consts::FRAC_2_SQRT_PI);
        check(x.erf(), [0.5, 0.0], 0.520_499_877_813_046_5, [erf_derivative, 0.0]);
        check(x.sigmoid(), [-1.0, 0.0], 0.268_941_421_369_995_1, [0.196_611_933_241_481_85, 0.0]);
    }

    #[test]
    fn nan_stays_and_is_above_nothing() {
        let [x] = Expression::operands();
        for of_nan in [x.minimum(1.0), x.maximum(1.0), Expression::from(1.0).minimum(&x), x.clamp(0.0, 1.0), x.abs()] {
            assert!(value(&of_nan, &[f64::NAN]).is_nan(), "{of_nan}");
        }
        assert_eq!(value(&Expression::where_above(&x, 0.0, 1.0, 2.0), &[f64::NAN]), 2.0);
        assert_eq!(value(&Expression::where_above(0.0, &x, 1.0, 2.0), &[f64::NAN]), 2.0);
    }
}
