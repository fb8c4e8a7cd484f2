//! ReLU and ReLU6.

use enmasse_graph::ops::{Activation, ActivationBackward};

fn ceiling(activation: Activation) -> f64 {
    match activation {
        Activation::Relu => f64::INFINITY,
        Activation::Relu6 => 6.0,
    }
}

/// `max(x, 0)`, and `min(_, 6)` of that for ReLU6. NaN stays NaN: a broken activation must reach the loss, so that the
/// check stops the step.
pub fn activate(x: &[f64], activation: Activation) -> Vec<f64> {
    let ceiling = ceiling(activation);
    let element = |&x: &f64| match x {
        x if x <= 0.0 => 0.0,
        x if x >= ceiling => ceiling,
        x => x,
    };
    x.iter().map(element).collect()
}

each_shard!(Activation, |&activation, _, [x]| vec![activate(x, activation)]);

/// `dy` where `y` is above 0 and below the ceiling, if there is one; else 0.
pub fn activate_backward(dy: &[f64], y: &[f64], activation: Activation) -> Vec<f64> {
    let open = |y: f64| y > 0.0 && y < ceiling(activation);
    dy.iter().zip(y).map(|(&dy, &y)| if open(y) { dy } else { 0.0 }).collect()
}

each_shard!(ActivationBackward, |&ActivationBackward(activation), _, [dy, y]| {
    vec![activate_backward(dy, y, activation)]
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_by_hand() {
        let x = [-1.0, -0.0, 0.0, 2.0, 6.0, 7.0, f64::INFINITY];
        assert_eq!(activate(&x, Activation::Relu), [0.0, 0.0, 0.0, 2.0, 6.0, 7.0, f64::INFINITY]);
        assert_eq!(activate(&x, Activation::Relu6), [0.0, 0.0, 0.0, 2.0, 6.0, 6.0, 6.0]);
        for activation in [Activation::Relu, Activation::Relu6] {
            assert!(activate(&[f64::NAN], activation)[0].is_nan());
        }
        let (dy, y) = ([1.0, 2.0, 3.0, 4.0], [0.0, 5.0, -1.0, 6.0]);
        assert_eq!(activate_backward(&dy, &y, Activation::Relu), [0.0, 2.0, 0.0, 4.0]);
        assert_eq!(activate_backward(&dy, &y, Activation::Relu6), [0.0, 2.0, 0.0, 0.0]);
    }
}
