//! The norm of all gradients.

use enmasse_graph::ops::GradientNorm;

use super::loss_scale::scale;

/// The root of the sum of squares.
pub fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

each_shard!(GradientNorm, |op, call, []| {
    let (gradients, factor) = match call.rest {
        [gradients @ .., scale] if op.scaled => (gradients, 1.0 / scale[0]),
        gradients => (gradients, 1.0),
    };
    vec![vec![norm(&scale(&gradients.concat(), factor))]]
});
