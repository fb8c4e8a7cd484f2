//! Linear layers and their gradients. Weights are `[inputs, outputs]`.

use std::borrow::Cow;

use enmasse_graph::ops::{BiasBackward, LinearBackwardData, LinearBackwardWeights, LinearForward};
use enmasse_tensor::DType;

use super::Call;

/// `y[n][o] = bias[o] + sum over i of x[n][i] * w[i][o]`.
pub fn forward(x: &[f64], w: &[f64], bias: Option<&[f64]>, inputs: usize, outputs: usize) -> Vec<f64> {
    let row = |x: &[f64]| {
        let mut y = bias.map_or_else(|| vec![0.0; outputs], <[f64]>::to_vec);
        for (x, w) in x.iter().zip(w.chunks(outputs)) {
            y.iter_mut().zip(w).for_each(|(y, w)| *y += x * w);
        }
        y
    };
    x.chunks(inputs).flat_map(row).collect()
}

each_shard!(LinearForward, |_, call, [x, w]| {
    vec![forward(&factor(call, x), &factor(call, w), call.rest.first().copied(), call.last(0), call.last(1))]
});

/// `dx[n][i] = sum over o of dy[n][o] * w[i][o]`.
pub fn backward_data(dy: &[f64], w: &[f64], outputs: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dy.chunks(outputs).flat_map(|dy| w.chunks(outputs).map(move |w| dot(dy, w))).collect()
}

each_shard!(LinearBackwardData, |_, call, [dy, w]| {
    vec![backward_data(&factor(call, dy), &factor(call, w), call.last(0))]
});

/// `dw[i][o] = sum over n of x[n][i] * dy[n][o]`.
pub fn backward_weights(x: &[f64], dy: &[f64], inputs: usize, outputs: usize) -> Vec<f64> {
    let mut dw = vec![0.0; inputs * outputs];
    for (x, dy) in x.chunks(inputs).zip(dy.chunks(outputs)) {
        for (x, dw) in x.iter().zip(dw.chunks_mut(outputs)) {
            dw.iter_mut().zip(dy).for_each(|(dw, dy)| *dw += x * dy);
        }
    }
    dw
}

each_shard!(LinearBackwardWeights, |_, call, [x, dy]| {
    vec![backward_weights(&factor(call, x), &factor(call, dy), call.last(0), call.last(1))]
});

/// A factor as devices round it if they multiply in 16 bits, as they do where an activation of the instruction has them.
fn factor<'a>(call: &Call, values: &'a [f64]) -> Cow<'a, [f64]> {
    let (plan, node) = (call.step.plan, call.step.node);
    let mut types = node.inputs.iter().chain(&node.outputs).map(|&id| plan.value(id).dtype);
    let narrow = types.find(|dtype| matches!(dtype, DType::Bf16 | DType::F16));
    narrow.and_then(|dtype| call.shard.rounded(dtype, values)).map_or(Cow::Borrowed(values), Cow::Owned)
}

/// `db[c]` = sum of `dy` over all but the last dimension, which has `channels` elements.
pub fn bias_backward(dy: &[f64], channels: usize) -> Vec<f64> {
    let mut db = vec![0.0; channels];
    for row in dy.chunks(channels) {
        db.iter_mut().zip(row).for_each(|(db, dy)| *db += dy);
    }
    db
}

each_shard!(BiasBackward, |_, call, [dy]| vec![bias_backward(dy, call.last(0))]);

#[cfg(test)]
mod tests {
    use super::*;

    /// Two samples of three inputs, two outputs.
    const X: [f64; 6] = [1., 2., 3., 4., 5., 6.];
    const W: [f64; 6] = [1., 10., 2., 20., 3., 30.];
    const DY: [f64; 4] = [1., 2., 3., 4.];

    #[test]
    fn forward_by_hand() {
        assert_eq!(forward(&X, &W, None, 3, 2), [14., 140., 32., 320.]);
        assert_eq!(forward(&X, &W, Some(&[0.5, -1.]), 3, 2), [14.5, 139., 32.5, 319.]);
    }

    #[test]
    fn gradients_by_hand() {
        assert_eq!(backward_data(&DY, &W, 2), [21., 42., 63., 43., 86., 129.]);
        assert_eq!(backward_weights(&X, &DY, 3, 2), [13., 18., 17., 24., 21., 30.]);
        assert_eq!(bias_backward(&DY, 2), [4., 6.]);
        assert_eq!(bias_backward(&DY, 4), DY);
    }
}
