//! Batch norm, divided as in the plan: statistics, normalisation (with residual and activation), the two sums, the input's
//! gradient, and the running statistics. Channels are the last dimension; all others count as pixels.

use std::borrow::Cow;

use enmasse_device::DeviceError;
use enmasse_graph::Activation;
use enmasse_graph::ops::{
    BatchNormBackward, BatchNormNormalize, BatchNormReduce, BatchNormStatistics, NormStatistics, RunningShare,
    RunningUpdate,
};
use enmasse_tensor::DType;

use super::activation::{activate, activate_backward};
use super::{Call, unsupported};

/// Mean and biased variance per channel.
pub fn statistics(x: &[f64], channels: usize) -> (Vec<f64>, Vec<f64>) {
    let count = (x.len() / channels) as f64;
    let mut mean = vec![0.0; channels];
    for pixel in x.chunks(channels) {
        mean.iter_mut().zip(pixel).for_each(|(mean, x)| *mean += x / count);
    }
    let mut variance = vec![0.0; channels];
    for pixel in x.chunks(channels) {
        for ((variance, mean), x) in variance.iter_mut().zip(&mean).zip(pixel) {
            *variance += (x - mean).powi(2) / count;
        }
    }
    (mean, variance)
}

each_shard!(BatchNormStatistics, |_, call, [x]| {
    let (mean, variance) = statistics(x, call.last(0));
    vec![mean, variance]
});

/// The statistics of a normalisation, per channel.
#[derive(Clone, Copy, Debug)]
pub struct Normalizer<'a> {
    /// Mean of the batch, or running mean.
    pub mean: &'a [f64],
    /// Biased variance of the batch, or running variance.
    pub variance: &'a [f64],
    /// Added to the variance.
    pub epsilon: f32,
}

impl Normalizer<'_> {
    fn inverse_std(&self, channel: usize) -> f64 {
        1.0 / (self.variance[channel] + f64::from(self.epsilon)).sqrt()
    }

    /// `(x - mean) / sqrt(variance + epsilon)`.
    fn apply(&self, channel: usize, x: f64) -> f64 {
        (x - self.mean[channel]) * self.inverse_std(channel)
    }

    fn channels(&self) -> usize {
        self.mean.len()
    }
}

/// `normalised x * weight + bias`, plus the residual, then the activation.
pub fn normalize(
    x: &[f64],
    by: &Normalizer,
    weight: &[f64],
    bias: &[f64],
    residual: Option<&[f64]>,
    activation: Option<Activation>,
) -> Vec<f64> {
    let element = |(i, &x): (usize, &f64)| {
        let c = i % by.channels();
        by.apply(c, x) * weight[c] + bias[c] + residual.map_or(0.0, |residual| residual[i])
    };
    let y: Vec<f64> = x.iter().enumerate().map(element).collect();
    match activation {
        Some(activation) => activate(&y, activation),
        None => y,
    }
}

each_shard!(BatchNormNormalize, |op, call, [x, mean, variance, weight, bias]| {
    let by = Normalizer { mean, variance, epsilon: op.epsilon };
    let y = normalize(x, &by, weight, bias, call.rest.first().copied(), op.activation);
    match (op.activation, call.step.node.outputs.len()) {
        (_, 1) => vec![y],
        (Some(activation), _) => {
            let group = y.len() / call.result_elements(1);
            let passed = passed(&call.stored(0, &y), activation, group);
            vec![y, passed]
        }
        (None, _) => return Err(unsupported(call.step.node)),
    }
});

/// A byte for each `group` of elements of `y`: bit i is set where the activation, a ReLU, passed the i-th of them.
pub fn passed(y: &[f64], activation: Activation, group: usize) -> Vec<f64> {
    let open = activate_backward(&vec![1.0; y.len()], y, activation);
    open.chunks(group).map(|bits| bits.iter().rev().fold(0.0, |byte, bit| 2.0 * byte + bit)).collect()
}

/// The bits of [`passed`], 1 or 0 for each of `elements`: as a gate they say the same as the result.
fn unpacked(passed: &[f64], elements: usize) -> Vec<f64> {
    let group = elements / passed.len();
    (0..elements).map(|i| f64::from(passed[i / group] as u8 >> (i % group) & 1)).collect()
}

/// The activation of the forward, if it had one, and its result, or its operand if it is no ReLU.
pub type Gate<'a> = Option<(Activation, &'a [f64])>;

/// `dy` times the derivative of the forward's activation.
pub fn masked(dy: &[f64], gate: Gate) -> Vec<f64> {
    gate.map_or_else(|| dy.to_vec(), |(activation, known)| activate_backward(dy, known, activation))
}

/// The gradients of bias and weight: sums of masked `dy` and of masked `dy` times the normalised x.
pub fn reduce(dy: &[f64], x: &[f64], by: &Normalizer, gate: Gate) -> (Vec<f64>, Vec<f64>) {
    let mut dbias = vec![0.0; by.channels()];
    let mut dweight = vec![0.0; by.channels()];
    for (i, (dy, &x)) in masked(dy, gate).iter().zip(x).enumerate() {
        let c = i % by.channels();
        dbias[c] += dy;
        dweight[c] += dy * by.apply(c, x);
    }
    (dbias, dweight)
}

each_shard!(BatchNormReduce, |op, call, [dy, x, mean, variance]| {
    let by = Normalizer { mean, variance, epsilon: op.epsilon };
    let known = gate(call, op.activation, x, &by, call.rest)?;
    let (dbias, dweight) = reduce(dy, x, &by, op.activation.zip(known.as_deref()));
    vec![dbias, dweight]
});

/// What the derivative of the fused activation follows from, if there is one: an operand, which is the result or bits, or what is
/// computed from x, weight and bias.
fn gate<'a>(
    call: &Call,
    activation: Option<Activation>,
    x: &[f64],
    by: &Normalizer,
    operands: &[&'a [f64]],
) -> Result<Option<Cow<'a, [f64]>>, DeviceError> {
    match (activation, operands) {
        (None, []) => Ok(None),
        (Some(activation), &[bits]) if activation.is_relu() && is_bits(call) => {
            Ok(Some(Cow::Owned(unpacked(bits, x.len()))))
        }
        (Some(activation), &[y]) if activation.is_relu() => Ok(Some(Cow::Borrowed(y))),
        (Some(activation), [weight, bias]) => {
            let applied = activation.is_relu().then_some(activation);
            Ok(Some(Cow::Owned(normalize(x, by, weight, bias, None, applied))))
        }
        _ => Err(unsupported(call.step.node)),
    }
}

/// Whether the last operand is [`passed`] of the forward.
fn is_bits(call: &Call) -> bool {
    call.step.node.inputs.last().is_some_and(|&id| call.step.plan.value(id).dtype == DType::U8)
}

/// The gradient of x for statistics of the `count` pixels of the batch:
/// `weight / sqrt(variance + epsilon) * (dy - dbias / count - normalised x * dweight / count)`.
///
/// `dbias` and `dweight` are sums over the same pixels as the statistics: with SyncBatchNorm over all shards.
pub fn backward(
    dy: &[f64],
    x: &[f64],
    by: &Normalizer,
    weight: &[f64],
    (dbias, dweight, count): (&[f64], &[f64], usize),
    gate: Gate,
) -> Vec<f64> {
    let count = count as f64;
    let element = |(i, (dy, &x)): (usize, (&f64, &f64))| {
        let c = i % by.channels();
        weight[c] * by.inverse_std(c) * (dy - dbias[c] / count - by.apply(c, x) * dweight[c] / count)
    };
    masked(dy, gate).iter().zip(x).enumerate().map(element).collect()
}

/// The gradient of x for running statistics, which do not depend on x.
pub fn backward_running(dy: &[f64], by: &Normalizer, weight: &[f64], gate: Gate) -> Vec<f64> {
    let element = |(i, dy): (usize, &f64)| dy * weight[i % by.channels()] * by.inverse_std(i % by.channels());
    masked(dy, gate).iter().enumerate().map(element).collect()
}

each_shard!(BatchNormBackward, |op, call, [dy, x, mean, variance, weight]| {
    let by = Normalizer { mean, variance, epsilon: op.epsilon };
    let (sums, operands) = match (op.statistics, call.rest) {
        (NormStatistics::Batch { count }, &[dbias, dweight, ref rest @ ..]) => (Some((dbias, dweight, count)), rest),
        (NormStatistics::Running, rest) => (None, rest),
        _ => return Err(unsupported(call.step.node)),
    };
    let known = gate(call, op.activation, x, &by, operands)?;
    let gate = op.activation.zip(known.as_deref());
    let dx = match sums {
        Some(sums) => backward(dy, x, &by, weight, sums, gate),
        None => backward_running(dy, &by, weight, gate),
    };
    if op.residual { vec![dx, masked(dy, gate)] } else { vec![dx] }
});

/// `[2,C]`: the mean and the unbiased variance of `count` pixels, both divided by `shards`.
pub fn running_share(mean: &[f64], variance: &[f64], count: usize, shards: usize) -> Vec<f64> {
    let (count, shards) = (count as f64, shards as f64);
    let unbiased = variance.iter().map(|variance| variance * (count / (count - 1.0)));
    mean.iter().copied().chain(unbiased).map(|value| value / shards).collect()
}

each_shard!(RunningShare, |&RunningShare { count, shards }, _, [mean, variance]| {
    vec![running_share(mean, variance, count, shards)]
});

/// `(1 - momentum) * running + momentum * update`.
pub fn running_update(update: &[f64], running: &[f64], momentum: f32) -> Vec<f64> {
    let momentum = f64::from(momentum);
    running.iter().zip(update).map(|(running, update)| (1.0 - momentum) * running + momentum * update).collect()
}

each_shard!(RunningUpdate, |&RunningUpdate { momentum }, _, [share, mean, variance]| {
    let (of_mean, of_variance) = share.split_at(share.len() / 2);
    vec![running_update(of_mean, mean, momentum), running_update(of_variance, variance, momentum)]
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::assert_close;

    /// Two channels of four pixels: {1, 3, 5, 7} and {0, 0, 4, 4}; means 4 and 2, variances 5 and 4.
    const X: [f64; 8] = [1., 0., 3., 0., 5., 4., 7., 4.];

    /// Without epsilon the std of channel 1 is exactly 2. Channel 0 is given a variance of 1 instead of 5.
    const BY: Normalizer = Normalizer { mean: &[4.0, 2.0], variance: &[1.0, 4.0], epsilon: 0.0 };

    const RELU: Option<Activation> = Some(Activation::Relu);

    #[test]
    fn statistics_by_hand() {
        assert_eq!(statistics(&X, 2), (vec![4.0, 2.0], vec![5.0, 4.0]));
        assert_eq!(statistics(&X, 8), (X.to_vec(), vec![0.0; 8]));
    }

    #[test]
    fn normalize_by_hand() {
        let (weight, bias) = ([2.0, 10.0], [1.0, 0.5]);
        let plain = [-5.0, -9.5, -1.0, -9.5, 3.0, 10.5, 7.0, 10.5];
        assert_eq!(normalize(&X, &BY, &weight, &bias, None, None), plain);
        assert_eq!(normalize(&X, &BY, &weight, &bias, None, RELU), plain.map(|v: f64| v.max(0.0)));
        let relu6 = normalize(&X, &BY, &weight, &bias, None, Some(Activation::Relu6));
        assert_eq!(relu6, plain.map(|v: f64| v.clamp(0.0, 6.0)));
        let residual = [6.0, 0.0, 0.0, 0.0, -4.0, 0.0, 0.0, 0.0];
        let expected = [1.0, 0.0, 0.0, 0.0, 0.0, 10.5, 7.0, 10.5];
        assert_eq!(normalize(&X, &BY, &weight, &bias, Some(&residual), RELU), expected);
        // Epsilon adds to the variance: 1 / sqrt(0.75 + 0.25).
        let by = Normalizer { mean: &[0.0], variance: &[0.75], epsilon: 0.25 };
        assert_eq!(normalize(&[3.0], &by, &[1.0], &[0.0], None, None), [3.0]);
    }

    #[test]
    fn sums_by_hand() {
        let dy = [1., 1., 10., 10., 100., 100., 1000., 1000.];
        // Normalised channel 0: -3, -1, 1, 3; channel 1: -1, -1, 1, 1.
        assert_eq!(reduce(&dy, &X, &BY, None), (vec![1111., 1111.], vec![3087., 1089.]));
        let y = [0., 1., 1., 0., 1., 1., 1., 1.];
        assert_eq!(reduce(&dy, &X, &BY, Some((Activation::Relu, &y))), (vec![1110., 1101.], vec![3090., 1099.]));
        assert_eq!(masked(&dy, Some((Activation::Relu, &y))), [0., 1., 10., 0., 100., 100., 1000., 1000.]);
        let y = [0., 1., 6., 0., 1., 6., 1., 1.];
        assert_eq!(reduce(&dy, &X, &BY, Some((Activation::Relu6, &y))), (vec![1100., 1001.], vec![3100., 999.]));
    }

    #[test]
    fn bits_by_hand() {
        let y = [0.5, 0.0, 6.0, 2.0, 0.0, 0.0];
        assert_eq!(passed(&y, Activation::Relu, 3), [5.0, 1.0]);
        assert_eq!(passed(&y, Activation::Relu6, 3), [1.0, 1.0]);
        assert_eq!(passed(&y, Activation::Relu, 1), [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(unpacked(&[5.0, 1.0], 6), [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(passed(&[1.0; 8], Activation::Relu, 8), [255.0]);
    }

    #[test]
    fn gradient_by_hand() {
        // Only channel 1 of X, with variance 4: normalised -1, -1, 1, 1; dy 1, 2, 3, 6 has sum 12 and weighted sum 6.
        let by = Normalizer { mean: &[2.0], variance: &[4.0], epsilon: 0.0 };
        let (x, dy) = ([0., 0., 4., 4.], [1., 2., 3., 6.]);
        let (dbias, dweight) = reduce(&dy, &x, &by, None);
        assert_eq!((&dbias[..], &dweight[..]), (&[12.][..], &[6.][..]));
        // dy - 3 + 1.5 or dy - 3 - 1.5, times weight 4 / 2.
        let dx = backward(&dy, &x, &by, &[4.0], (&dbias, &dweight, 4), None);
        assert_close(&dx, &[-1.0, 1.0, -3.0, 3.0]);
        // Twice the pixels (as with a second shard of the same size) halve the subtracted terms.
        let dx = backward(&dy, &x, &by, &[4.0], (&dbias, &dweight, 8), None);
        assert_close(&dx, &[0.5, 2.5, 1.5, 7.5]);
        assert_close(&backward_running(&dy, &by, &[4.0], None), &[2.0, 4.0, 6.0, 12.0]);
        assert_close(
            &backward_running(&dy, &by, &[4.0], Some((Activation::Relu, &[0.0, 1.0, 1.0, 0.0]))),
            &[0.0, 4.0, 6.0, 0.0],
        );
        // The mask comes before everything else.
        let y = [0.0, 1.0, 1.0, 1.0];
        let (dbias, dweight) = reduce(&dy, &x, &by, Some((Activation::Relu, &y)));
        let masked_dy = backward(&[0., 2., 3., 6.], &x, &by, &[4.0], (&dbias, &dweight, 4), None);
        assert_eq!(backward(&dy, &x, &by, &[4.0], (&dbias, &dweight, 4), Some((Activation::Relu, &y))), masked_dy);
    }

    #[test]
    fn running_statistics_by_hand() {
        // Variance 3 of four pixels is 4 unbiased; two shards share it.
        assert_eq!(running_share(&[6.0], &[3.0], 4, 1), [6.0, 4.0]);
        assert_eq!(running_share(&[6.0], &[3.0], 4, 2), [3.0, 2.0]);
        assert_eq!(running_update(&[8.0, 4.0], &[0.0, 1.0], 0.25), [2.0, 1.75]);
    }
}
