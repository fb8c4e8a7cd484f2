//! Batch norm: statistics, normalisation with residual and activation, and its gradients.
//!
//! Weight, bias, statistics and sums have one f32 for each channel. Activations have the size that each function takes.

use enmasse_graph::Activation;

use crate::kernels::rows::{Reduction, Rows};
use crate::kernels::{blocks, elementwise, kernel, named};
use crate::work::Argument::{F32, Null, Read, U32, Write};
use crate::work::{Argument, Kernel, Span};

/// Mean and biased variance of a batch, or the running ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Normalizer {
    pub mean: Span,
    pub variance: Span,
    /// Added to the variance.
    pub epsilon: f32,
}

/// A shard's share of the running statistics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// `[2, channels]`: mean, and variance times `count / (count - 1)`, both divided by `shards`.
    pub update: Span,
    /// Pixels that the statistics cover.
    pub count: usize,
    pub shards: usize,
}

impl Share {
    /// `Running` in `batch_norm.cu`.
    fn arguments(self) -> [Argument; 3] {
        let unbiased = self.count as f32 / (self.count.max(2) - 1) as f32;
        [Write(self.update), F32(unbiased), F32(self.shards as f32)]
    }
}

/// Mean and biased variance of each channel, and the share that follows from them, if it is wanted.
pub(crate) fn statistics(size: Rows, x: Span, mean: Span, variance: Span, share: Option<Share>) -> Vec<Kernel> {
    let names = [&named("batch_norm_statistics", size.dtype), "batch_norm_statistics_combine"];
    let share = share.map_or([Null, F32(0.0), F32(0.0)], Share::arguments);
    let results = [&[mean, variance].map(Write)[..], &share].concat();
    Reduction::new(size).kernels(names, &[Read(x)], &[], &results, 2)
}

/// `y = (x - mean) / sqrt(variance + epsilon) * weight + bias`, plus the residual, then the activation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forward {
    pub x: Span,
    pub by: Normalizer,
    pub weight: Span,
    pub bias: Span,
    pub residual: Option<Span>,
    pub y: Span,
    pub activation: Option<Activation>,
}

/// The forward pass.
pub(crate) fn normalize(size: Rows, forward: &Forward) -> Kernel {
    let Forward { x, by, weight, bias, residual, y, activation } = *forward;
    let floor = activation.map_or(f32::NEG_INFINITY, |_| 0.0);
    let reads = [x, by.mean, by.variance, weight, bias].map(Read);
    let others = [Argument::optional(residual), Write(y)];
    let numbers = [by.epsilon, floor, ceiling(activation)].map(F32);
    let arguments = [&reads[..], &others, &size.arguments(), &numbers].concat();
    kernel(named("batch_norm_normalize", size.dtype), size.pass(), arguments)
}

/// The value at which the activation cuts off, if there is one.
fn ceiling(activation: Option<Activation>) -> f32 {
    activation.map_or(f32::INFINITY, elementwise::ceiling)
}

/// How a gradient finds out what the forward's activation let pass.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gate {
    /// From the stored result.
    Stored(Span),
    /// From x, if there was no residual.
    Recomputed { weight: Span, bias: Span },
}

/// What the gradients of a batch norm share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gradient {
    pub dy: Span,
    pub x: Span,
    pub by: Normalizer,
    /// The forward's activation, if it had one.
    pub gate: Option<(Activation, Gate)>,
}

/// What the gate is for a kernel.
struct GateArguments {
    /// Of the kernel's name.
    suffix: &'static str,
    ceiling: Argument,
    /// The stored result.
    stored: Argument,
    /// Weight and bias of the forward.
    recomputed: Option<[Argument; 2]>,
}

impl Gradient {
    fn gate(&self) -> GateArguments {
        let ceiling = F32(ceiling(self.gate.map(|(activation, _)| activation)));
        match self.gate {
            None => GateArguments { suffix: "", ceiling, stored: Null, recomputed: None },
            Some((_, Gate::Stored(y))) => {
                GateArguments { suffix: "_stored", ceiling, stored: Read(y), recomputed: None }
            }
            Some((_, Gate::Recomputed { weight, bias })) => {
                let recomputed = Some([weight, bias].map(Read));
                GateArguments { suffix: "_recomputed", ceiling, stored: Null, recomputed }
            }
        }
    }
}

/// Sums of dy and of `dy * (x - mean) / sqrt(variance + epsilon)`, where dy counts only if the activation let the result
/// pass.
pub(crate) fn reduce(size: Rows, gradient: &Gradient, dbias: Span, dweight: Span) -> Vec<Kernel> {
    let Gradient { dy, x, by, .. } = *gradient;
    let GateArguments { suffix, ceiling, stored, recomputed } = gradient.gate();
    let recomputed = recomputed.map_or([Null; 3], |[weight, bias]| [Read(by.variance), weight, bias]);
    let names = [&named(&format!("batch_norm_reduce{suffix}"), size.dtype), "batch_norm_reduce_combine"];
    let operands = [&[dy, x, by.mean].map(Read)[..], &[stored], &recomputed].concat();
    let epsilon = F32(by.epsilon);
    let results = [Read(by.variance), Write(dbias), Write(dweight), epsilon];
    Reduction::new(size).kernels(names, &operands, &[epsilon, ceiling], &results, 2)
}

/// Sums of [`reduce`] over the pixels of the statistics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchSums {
    pub dbias: Span,
    pub dweight: Span,
    /// Number of these pixels.
    pub count: usize,
}

/// The gradient of the input, and with `dresidual` that of the residual, which may lie over dy. Running statistics have no
/// sums. A recomputed gate has the weight of the norm.
pub(crate) fn backward(
    size: Rows,
    gradient: &Gradient,
    weight: Span,
    sums: Option<BatchSums>,
    dx: Span,
    dresidual: Option<Span>,
) -> Kernel {
    let Gradient { dy, x, by, .. } = *gradient;
    let GateArguments { suffix, ceiling, stored, recomputed } = gradient.gate();
    let x_read = if sums.is_some() || recomputed.is_some() { Read(x) } else { Null };
    let reads = [Read(dy), x_read, Read(by.mean), Read(by.variance), Read(weight)];
    let sums_read = [sums.map(|sums| sums.dbias), sums.map(|sums| sums.dweight)].map(Argument::optional);
    let gate = [stored, recomputed.map_or(Null, |[_, bias]| bias)];
    let writes = [Write(dx), dresidual.map_or(Null, Write)];
    let share = sums.map_or(0.0, |sums| 1.0 / sums.count as f32);
    let numbers = [F32(by.epsilon), ceiling, F32(share)];
    let arguments = [&reads[..], &sums_read, &gate, &writes, &size.arguments(), &numbers].concat();
    kernel(named(&format!("batch_norm_backward{suffix}"), size.dtype), size.pass(), arguments)
}

/// The share that follows from statistics of all shards.
pub(crate) fn running_share(by: Normalizer, share: Share) -> Kernel {
    let channels = by.mean.bytes / size_of::<f32>();
    let reads = [by.mean, by.variance].map(Read);
    let arguments = [&reads[..], &share.arguments(), &[U32(channels as u32)]].concat();
    kernel("running_share", blocks(channels), arguments)
}

#[cfg(test)]
#[path = "batch_norm_tests.rs"]
mod tests;
