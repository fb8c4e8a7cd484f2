//! Batch norm: statistics of the batch, normalisation with what is fused into it, their gradients, and running statistics:
//! `kernels/batch_norm.cu`.
//!
//! A step has two instructions for the running statistics of each batch norm, which take as few launches as possible.

use std::ptr;

use enmasse_graph::ops::{
    BatchNormBackward, BatchNormNormalize, BatchNormReduce, BatchNormStatistics, NormStatistics, RunningShare,
    RunningUpdate,
};
use enmasse_graph::{Activation, Node, Op, ValueId};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::kernels::average::{self, Running};
use crate::kernels::rows::{Reduction, Rows};
use crate::kernels::{SMS, blocks, elementwise, kernel, named};
use crate::work::Argument::{F32, Null, Read, U32, Write};
use crate::work::{Argument, Kernel, Span};

impl OnCuda for BatchNormStatistics {
    /// With the share of them that the next instruction takes.
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let share = match o.pair(0).filter(|&pair| together(pair)) {
            Some([_, node]) => Operands { node, ..*o }.share(),
            None => None,
        };
        Ok(computed([statistics(o.rows(0)?, o.input(0), o.output(0), o.output(1), share)]))
    }
}

impl OnCuda for BatchNormNormalize {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let x = o.input(0);
        let by = o.normalizer(1, self.epsilon);
        let y = o.output(0);
        let (weight, bias, residual) = (o.input(3), o.input(4), o.optional(5));
        let passed = o.node.outputs.get(1).map(|&id| o.passed(id)).transpose()?;
        let activation = o.relu(self.activation)?;
        let forward = Forward { x, by, weight, bias, residual, y, passed, activation };
        Ok(computed([normalize(o.rows(0)?, &forward)]))
    }
}

impl OnCuda for BatchNormReduce {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let gradient = o.gradient(self.epsilon, self.activation, 4)?;
        Ok(computed([reduce(o.rows(0)?, &gradient, o.output(0), o.output(1))]))
    }
}

impl OnCuda for BatchNormBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let Node { inputs, outputs, .. } = o.node;
        let (sums, gate) = match self.statistics {
            NormStatistics::Batch { count } => {
                let [dbias, dweight] = [o.required(inputs.get(5))?, o.required(inputs.get(6))?];
                (Some(BatchSums { dbias, dweight, count }), 7)
            }
            NormStatistics::Running => (None, 5),
        };
        let gradient = o.gradient(self.epsilon, self.activation, gate)?;
        let dresidual = if self.residual { Some(o.required(outputs.get(1))?) } else { None };
        Ok(computed([backward(o.rows(0)?, &gradient, o.input(4), sums, o.output(0), dresidual)]))
    }
}

impl OnCuda for RunningShare {
    /// Nothing, if the statistics came with it.
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let share = o.share().filter(|_| !o.pair(1).is_some_and(together));
        Ok(computed(share.map(|share| running_share(o.normalizer(0, 0.0), share))))
    }
}

impl OnCuda for RunningUpdate {
    /// The updates of all running statistics, for the first instruction that has one.
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let updates = o.plan.instructions.iter().filter_map(|node| match node.op {
            Op::RunningUpdate(RunningUpdate { momentum }) => Some((momentum, Operands { node, ..*o })),
            _ => None,
        });
        let mut updates = updates.peekable();
        if !updates.peek().is_some_and(|(_, first)| ptr::eq(first.node, o.node)) {
            return Ok(Vec::new());
        }
        let running = |(momentum, o): (f32, Operands)| {
            let [update, mean, variance] = [0, 1, 2].map(|index| o.input(index));
            Running { momentum, update, mean, variance }
        };
        let norms: Vec<Running> = updates.map(running).collect();
        Ok(computed(average::running_update(&norms, &mut lowering.sequence.constants)))
    }
}

/// Whether one kernel computes the statistics of an instruction and the share that the next instruction takes of them.
fn together([statistics, share]: [&Node; 2]) -> bool {
    matches!((&statistics.op, &share.op), (Op::BatchNormStatistics(_), Op::RunningShare(_)))
        && share.inputs == statistics.outputs
}

impl Operands<'_> {
    fn share(&self) -> Option<Share> {
        match self.node.op {
            Op::RunningShare(RunningShare { count, shards }) => Some(Share { update: self.output(0), count, shards }),
            _ => None,
        }
    }

    /// This instruction and the next one, or the one before and this one.
    fn pair(&self, place: usize) -> Option<[&Node; 2]> {
        let mut pairs = self.plan.instructions.windows(2);
        pairs.find(|pair| ptr::eq(&pair[place], self.node)).map(|pair| [&pair[0], &pair[1]])
    }

    /// Mean and variance, which are two neighbouring operands.
    fn normalizer(&self, index: usize, epsilon: f32) -> Normalizer {
        Normalizer { mean: self.input(index), variance: self.input(index + 1), epsilon }
    }

    /// What is fused into a batch norm: no plan for a GPU has another activation there.
    fn relu(&self, activation: Option<Activation>) -> Result<Option<Activation>, CudaError> {
        if activation.is_none_or(Activation::is_relu) { Ok(activation) } else { Err(self.unsupported()) }
    }

    /// The operands of a batch norm's gradient; `gate` is the index of its gate, if it has one.
    fn gradient(&self, epsilon: f32, activation: Option<Activation>, gate: usize) -> Result<Gradient, CudaError> {
        let gate = self.relu(activation)?.map(|_| self.node.inputs.get(gate).ok_or_else(|| self.unsupported()));
        let passed = gate.transpose()?.map(|&id| self.passed(id)).transpose()?;
        Ok(Gradient { dy: self.input(0), x: self.input(1), by: self.normalizer(2, epsilon), passed })
    }

    /// What an activation passed: a byte for each packet. Plans for other devices have other gates.
    fn passed(&self, id: ValueId) -> Result<Span, CudaError> {
        let passed = self.span(id);
        let is_bytes = self.plan.value(id).dtype == DType::U8;
        if is_bytes && passed.bytes == self.rows(0)?.packets() { Ok(passed) } else { Err(self.unsupported()) }
    }
}

/// Mean and biased variance of a batch, or the running ones.
#[derive(Clone, Copy, Debug)]
struct Normalizer {
    mean: Span,
    variance: Span,
    /// Added to the variance.
    epsilon: f32,
}

/// A shard's share of the running statistics.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// `[2, channels]`: mean, and variance times `count / (count - 1)`, both divided by `shards`.
    update: Span,
    /// Pixels that the statistics cover.
    count: usize,
    shards: usize,
}

impl Share {
    /// `Running` in `batch_norm.cu`.
    fn arguments(self) -> [Argument; 3] {
        let unbiased = self.count as f32 / (self.count.max(2) - 1) as f32;
        [Write(self.update), F32(unbiased), F32(self.shards as f32)]
    }
}

/// Mean and biased variance of each channel, and the share that follows from them, if it is wanted.
fn statistics(size: Rows, x: Span, mean: Span, variance: Span, share: Option<Share>) -> Kernel {
    let share = share.map_or([Null, F32(0.0), F32(0.0)], Share::arguments);
    let results = [&[mean, variance].map(Write)[..], &share].concat();
    Reduction::new(size).kernel(named("batch_norm_statistics", size.dtype), &[Read(x)], &results, 2)
}

/// Blocks of a pass that an SM holds at a time, by its registers: see docs/cuda-kernels.md.
fn resident(dtype: DType) -> usize {
    if dtype == DType::F32 { 4 } else { 3 }
}

/// Blocks for a pass: two whole waves at most. More blocks would each make their channels' factors again.
fn pass(size: Rows) -> [u32; 3] {
    size.pass_of(SMS * resident(size.dtype) * 2)
}

/// `y = (x - mean) / sqrt(variance + epsilon) * weight + bias`, plus the residual, then the activation.
#[derive(Clone, Copy, Debug)]
struct Forward {
    x: Span,
    by: Normalizer,
    weight: Span,
    bias: Span,
    residual: Option<Span>,
    y: Span,
    /// What the activation passed, for the gradients: a byte for each packet.
    passed: Option<Span>,
    activation: Option<Activation>,
}

/// The forward pass.
fn normalize(size: Rows, forward: &Forward) -> Kernel {
    let Forward { x, by, weight, bias, residual, y, passed, activation } = *forward;
    let floor = activation.map_or(f32::NEG_INFINITY, |_| 0.0);
    let ceiling = activation.map_or(f32::INFINITY, elementwise::ceiling);
    let reads = [x, by.mean, by.variance, weight, bias].map(Read);
    let others = [Argument::optional(residual), Write(y), passed.map_or(Null, Write)];
    let numbers = [by.epsilon, floor, ceiling].map(F32);
    let arguments = [&reads[..], &others, &size.arguments(), &numbers].concat();
    kernel(named("batch_norm_normalize", size.dtype), pass(size), arguments)
}

/// What the gradients of a batch norm share.
#[derive(Clone, Copy, Debug)]
struct Gradient {
    dy: Span,
    x: Span,
    by: Normalizer,
    /// What the forward's activation passed, if it had one.
    passed: Option<Span>,
}

impl Gradient {
    /// The name of a kernel, by whether it has a gate.
    fn named(&self, name: &str, size: Rows) -> String {
        let gated = if self.passed.is_some() { "_gated" } else { "" };
        named(&format!("{name}{gated}"), size.dtype)
    }
}

/// Sums of dy and of `dy * (x - mean) / sqrt(variance + epsilon)`, where dy counts only if the activation let the result
/// pass.
fn reduce(size: Rows, gradient: &Gradient, dbias: Span, dweight: Span) -> Kernel {
    let Gradient { dy, x, by, passed } = *gradient;
    let operands = [Read(dy), Read(x), Read(by.mean), Argument::optional(passed)];
    let results = [Read(by.variance), Write(dbias), Write(dweight), F32(by.epsilon)];
    Reduction::new(size).kernel(gradient.named("batch_norm_reduce", size), &operands, &results, 2)
}

/// Sums of [`reduce`] over the pixels of the statistics.
#[derive(Clone, Copy, Debug)]
struct BatchSums {
    dbias: Span,
    dweight: Span,
    /// Number of these pixels.
    count: usize,
}

/// The gradient of the input, and with `dresidual` that of the residual, which may lie over dy. Running statistics have no
/// sums.
fn backward(
    size: Rows,
    gradient: &Gradient,
    weight: Span,
    sums: Option<BatchSums>,
    dx: Span,
    dresidual: Option<Span>,
) -> Kernel {
    let Gradient { dy, x, by, passed } = *gradient;
    let x_read = sums.map_or(Null, |_| Read(x));
    let reads = [Read(dy), x_read, Read(by.mean), Read(by.variance), Read(weight)];
    let others = [sums.map(|sums| sums.dbias), sums.map(|sums| sums.dweight), passed].map(Argument::optional);
    let writes = [Write(dx), dresidual.map_or(Null, Write)];
    let numbers = [by.epsilon, sums.map_or(0.0, |sums| 1.0 / sums.count as f32)].map(F32);
    let arguments = [&reads[..], &others, &writes, &size.arguments(), &numbers].concat();
    kernel(gradient.named("batch_norm_backward", size), pass(size), arguments)
}

/// The share that follows from statistics of all shards.
fn running_share(by: Normalizer, share: Share) -> Kernel {
    let channels = by.mean.bytes / size_of::<f32>();
    let reads = [by.mean, by.variance].map(Read);
    let arguments = [&reads[..], &share.arguments(), &[U32(channels as u32)]].concat();
    kernel("running_share", blocks(channels), arguments)
}

#[cfg(test)]
#[path = "batch_norm_tests.rs"]
mod tests;
