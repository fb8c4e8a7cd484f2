//! Convolution, then batch norm.

use enmasse_graph::ops::Conv2dBatchNorm;

use super::batch_norm::{Normalizer, normalize};
use super::conv2d::{Shapes, forward, rounded_weights};

each_shard!(Conv2dBatchNorm, |op, call, [x, w, mean, variance, weight, bias]| {
    let shapes = Shapes { x: call.input(0)?, w: call.input(1)?, y: call.output(0)?, filters: call.step.plan.filters };
    let y = forward(x, &rounded_weights(call, w), None, &shapes, &op.conv);
    // As if it were stored.
    let y = rounded_weights(call, &y);
    let by = Normalizer { mean, variance, epsilon: op.epsilon };
    vec![normalize(&y, &by, weight, bias, call.rest.first().copied(), op.activation)]
});
