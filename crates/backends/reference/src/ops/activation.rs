//! Activations, and their gradients.

use enmasse_graph::ops::{Activation, ActivationBackward};

use super::function::{sigmoid, sigmoid_derivative};

/// NaN stays NaN: a broken activation must reach the loss, so that the check stops the step.
fn relu(x: f64, ceiling: f64) -> f64 {
    match x {
        x if x <= 0.0 => 0.0,
        x if x >= ceiling => ceiling,
        x => x,
    }
}

/// Applies the activation to every element.
pub fn activate(x: &[f64], activation: Activation) -> Vec<f64> {
    let element = |&x: &f64| match activation {
        Activation::Relu => relu(x, f64::INFINITY),
        Activation::Relu6 => relu(x, 6.0),
        Activation::Silu => x * sigmoid(x),
        Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
    };
    x.iter().map(element).collect()
}

each_shard!(Activation, |&activation, _, [x]| vec![activate(x, activation)]);

/// `dy` times the derivative, which follows from a ReLU's result, or from another activation's operand.
pub fn activate_backward(dy: &[f64], known: &[f64], activation: Activation) -> Vec<f64> {
    let passes = |dy: f64, y: f64, ceiling: f64| if y > 0.0 && y < ceiling { dy } else { 0.0 };
    let element = |(&dy, &known): (&f64, &f64)| match activation {
        Activation::Relu => passes(dy, known, f64::INFINITY),
        Activation::Relu6 => passes(dy, known, 6.0),
        Activation::Silu => dy * (sigmoid(known) + known * sigmoid_derivative(known)),
        Activation::HardSwish if known >= 3.0 => dy,
        Activation::HardSwish if known > -3.0 => dy * (known / 3.0 + 0.5),
        Activation::HardSwish => 0.0,
    };
    dy.iter().zip(known).map(element).collect()
}

each_shard!(ActivationBackward, |&ActivationBackward(activation), _, [dy, known]| {
    vec![activate_backward(dy, known, activation)]
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::assert_close;

    #[test]
    fn relu_by_hand() {
        let x = [-1.0, -0.0, 0.0, 2.0, 6.0, 7.0, f64::INFINITY];
        assert_eq!(activate(&x, Activation::Relu), [0.0, 0.0, 0.0, 2.0, 6.0, 7.0, f64::INFINITY]);
        assert_eq!(activate(&x, Activation::Relu6), [0.0, 0.0, 0.0, 2.0, 6.0, 6.0, 6.0]);
        for activation in [Activation::Relu, Activation::Relu6] {
            assert!(activate(&[f64::NAN], activation)[0].is_nan());
        }
        let dy = [1.0, 2.0, 3.0, 4.0];
        let y = [0.0, 5.0, -1.0, 6.0];
        assert_eq!(activate_backward(&dy, &y, Activation::Relu), [0.0, 2.0, 0.0, 4.0]);
        assert_eq!(activate_backward(&dy, &y, Activation::Relu6), [0.0, 2.0, 0.0, 0.0]);
    }

    #[test]
    fn smooth_activations_by_hand() {
        let check = |activation, x: f64, value: f64, derivative: f64| {
            assert_close(&activate(&[x], activation), &[value]);
            assert_close(&activate_backward(&[2.0], &[x], activation), &[2.0 * derivative]);
        };
        // PyTorch 2.13 in f64.
        check(Activation::Silu, -1.0, -0.268_941_421_369_995_1, 0.072_329_488_128_513_25);
        check(Activation::Silu, 2.0, 1.761_594_155_955_764_6, 1.090_784_248_784_895_5);
        check(Activation::HardSwish, -1.0, -1.0 / 3.0, 0.5 - 1.0 / 3.0);
        check(Activation::HardSwish, -3.0, 0.0, 0.0);
        check(Activation::HardSwish, 3.0, 3.0, 1.0);
    }
}
