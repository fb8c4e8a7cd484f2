//! Batch norm, then convolution, and the gradient of the convolution's weights.

use enmasse_graph::ops::{BatchNormConv2d, BatchNormConv2dBackwardWeights, BatchNormNormalize};

use super::Call;
use super::batch_norm::{Normalizer, normalize};
use super::conv2d::{Shapes, backward_weights, forward, rounded_weights, with_statistics};

each_shard!(BatchNormConv2d, |op, call, [x, w, mean, variance, weight, bias]| {
    let shapes = Shapes { x: call.input(0)?, w: call.input(1)?, y: call.output(0)?, filters: call.step.plan.filters };
    let source = normalized(call, &op.norm, x, [mean, variance, weight, bias]);
    let y = forward(&source, &rounded_weights(call, w), call.rest.first().copied(), &shapes, &op.conv);
    with_statistics(call, y, shapes.y[3])
});

each_shard!(
    BatchNormConv2dBackwardWeights,
    |BatchNormConv2dBackwardWeights(op), call, [x, dy, mean, variance, weight, bias]| {
        let shapes =
            Shapes { x: call.input(0)?, w: call.output(0)?, y: call.input(1)?, filters: call.step.plan.filters };
        let source = normalized(call, &op.norm, x, [mean, variance, weight, bias]);
        vec![backward_weights(&source, dy, &shapes, &op.conv)]
    }
);

/// The batch norm's result, rounded as if it were stored.
fn normalized(
    call: &Call,
    norm: &BatchNormNormalize,
    x: &[f64],
    [mean, variance, weight, bias]: [&[f64]; 4],
) -> Vec<f64> {
    let by = Normalizer { mean, variance, epsilon: norm.epsilon };
    rounded_weights(call, &normalize(x, &by, weight, bias, None, norm.activation)).into_owned()
}
