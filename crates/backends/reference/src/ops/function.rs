//! Functions of one number, and their derivatives.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use enmasse_graph::ops::{Function, FunctionBackward};

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn sigmoid_derivative(x: f64) -> f64 {
    sigmoid(x) * sigmoid(-x)
}

/// `P(X <= x)` for a standard normal X.
fn normal_distribution(x: f64) -> f64 {
    libm::erfc(-x * FRAC_1_SQRT_2) / 2.0
}

/// Applies the function to every element.
pub fn map(x: &[f64], function: Function) -> Vec<f64> {
    let value = |&x: &f64| match function {
        Function::Affine { scale, shift } => f64::from(scale) * x + f64::from(shift),
        Function::Exp => x.exp(),
        Function::Log => x.ln(),
        Function::Power(exponent) => x.powf(exponent.into()),
        Function::Sigmoid => sigmoid(x),
        Function::Gelu => x * normal_distribution(x),
        // `max` would lose NaN.
        Function::ClampMin(minimum) => {
            if x < minimum.into() {
                minimum.into()
            } else {
                x
            }
        }
    };
    x.iter().map(value).collect()
}

each_shard!(Function, |&function, _, [x]| vec![map(x, function)]);

/// `dy` times the function's derivative at every element.
pub fn map_backward(dy: &[f64], x: &[f64], function: Function) -> Vec<f64> {
    let derivative = |x: f64| match function {
        Function::Affine { scale, .. } => scale.into(),
        Function::Exp => x.exp(),
        Function::Log => 1.0 / x,
        Function::Power(0.0) => 0.0,
        Function::Power(exponent) => f64::from(exponent) * x.powf(f64::from(exponent) - 1.0),
        Function::ClampMin(minimum) => f64::from(u8::from(x >= minimum.into())),
        Function::Sigmoid => sigmoid_derivative(x),
        // The density is 1 / sqrt(2 pi) at 0.
        Function::Gelu => normal_distribution(x) + x * (-x * x / 2.0).exp() / (2.0 * PI).sqrt(),
    };
    dy.iter().zip(x).map(|(dy, &x)| dy * derivative(x)).collect()
}

each_shard!(FunctionBackward, |&FunctionBackward(function), _, [dy, x]| vec![map_backward(dy, x, function)]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::assert_close;

    #[test]
    fn functions_by_hand() {
        let check = |function, x: f64, value: f64, derivative: f64| {
            assert_close(&map(&[x], function), &[value]);
            assert_close(&map_backward(&[2.0], &[x], function), &[2.0 * derivative]);
        };
        check(Function::Affine { scale: -2.0, shift: 0.5 }, 3.0, -5.5, -2.0);
        check(Function::Exp, 0.0, 1.0, 1.0);
        check(Function::Exp, 2f64.ln(), 2.0, 2.0);
        check(Function::Log, 4.0, 4f64.ln(), 0.25);
        check(Function::Power(2.0), -3.0, 9.0, -6.0);
        check(Function::Power(0.5), 4.0, 2.0, 0.25);
        check(Function::Power(0.0), 0.0, 1.0, 0.0);
        check(Function::Power(1.0), 0.0, 0.0, 1.0);
        check(Function::ClampMin(0.5), 0.25, 0.5, 0.0);
        check(Function::ClampMin(0.5), 0.5, 0.5, 1.0);
        check(Function::ClampMin(0.5), 2.0, 2.0, 1.0);
        assert!(map(&[f64::NAN], Function::ClampMin(0.5))[0].is_nan());
        // PyTorch 2.13 in f64.
        check(Function::Sigmoid, -1.0, 0.268_941_421_369_995_1, 0.196_611_933_241_481_85);
        check(Function::Gelu, -1.0, -0.158_655_253_931_457_02, -0.083_315_470_587_686_35);
        check(Function::Gelu, 2.0, 1.954_499_736_103_641_5, 1.085_231_801_078_197);
    }
}
