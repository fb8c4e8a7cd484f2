//! Prepared instructions: operations whose operands are addresses and whose work is already cut into tasks.

use enmasse_comm::{Group, Handle, tree_fold};
use enmasse_device::DeviceError;
use enmasse_graph::{Optimizer, Rectifier, Window};

use crate::batch_norm::{self, Forward, Gradient, Moments, Rows, Sums};
use crate::conv::{Depthwise, DepthwiseGradient, Gather, Start, WeightGradient, Winograd, WinogradGradient};
use crate::elementwise::{self, Dropout, NormalizeTable};
use crate::loss::{self, CrossEntropy};
use crate::optimizer::{self, Operands};
use crate::pooling::{self, Average, PoolShape};
use crate::region::Region;
use crate::scratch::{Context, Scratch};

type F32 = Region<f32>;

/// What a step gives to instructions beside memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepValues {
    pub epoch: u64,
    pub learning_rate: f32,
    pub optimizer_step: u64,
}

/// What instructions run with.
pub(crate) struct Machine {
    pub context: Context,
    pub group: Option<Group>,
    /// The sums under way, by bucket.
    pub handles: Vec<Option<Handle>>,
}

/// An instruction of a plan.
pub(crate) enum Instruction {
    Normalize { table: NormalizeTable, x: Region<u8>, y: F32 },
    Gather { product: Gather, source: F32, weights: F32, result: F32, start: Start },
    Depthwise { conv: Depthwise, source: F32, weights: F32, result: F32, start: Start },
    DepthwiseGradient { gradient: DepthwiseGradient, x: F32, dy: F32, dw: F32 },
    WeightGradient { product: WeightGradient, x: F32, dy: F32, dw: F32 },
    Winograd { conv: Winograd, source: F32, weights: F32, result: F32, start: Start },
    WinogradGradient { gradient: WinogradGradient, x: F32, dy: F32, dw: F32 },
    BiasBackward { size: Rows, dy: F32, sums: F32 },
    Statistics { size: Rows, x: F32, moments: Moments },
    BatchNorm(Forward),
    BatchNormReduce { gradient: Gradient, dbias: F32, dweight: F32 },
    BatchNormBackward { gradient: Gradient, weight: F32, sums: Sums, dx: F32, dresidual: Option<F32> },
    RunningShare { moments: Moments, count: usize, shards: usize, share: F32 },
    RunningUpdate { update: F32, mean: F32, variance: F32, momentum: f32 },
    Rectify { rectifier: Rectifier, x: F32, y: F32 },
    RectifyBackward { rectifier: Rectifier, dy: F32, y: F32, dx: F32 },
    MaxPool { shape: PoolShape, window: Window, x: F32, y: F32, position: Region<u8> },
    MaxPoolBackward { shape: PoolShape, window: Window, dy: F32, position: Region<u8>, dx: F32 },
    AveragePool { average: Average, x: F32, y: F32 },
    AveragePoolBackward { average: Average, dy: F32, dx: F32 },
    Dropout { layer: Dropout, samples: Region<i64>, x: F32, y: F32 },
    Add { a: F32, b: F32, c: F32 },
    Transpose { sizes: [usize; 3], x: F32, y: F32 },
    CrossEntropy { c: CrossEntropy, logits: F32, labels: Region<i32>, probabilities: F32, loss: F32, correct: F32 },
    CrossEntropyBackward { c: CrossEntropy, probabilities: F32, labels: Region<i32>, dlogits: F32 },
    ShareMetrics { shard: usize, loss: F32, correct: F32, metrics: F32 },
    SyncStatistics { count: usize, shards: usize, own: Moments, all: Moments },
    SyncSum { values: [F32; 2], sums: [F32; 2] },
    AllReduceStart { bucket: usize, range: F32 },
    AllReduceWait { bucket: usize },
    CheckFinite { losses: F32 },
    Update { optimizer: Optimizer, operands: Operands },
}

impl Instruction {
    /// Scratch that [`Instruction::execute`] needs.
    pub(crate) fn scratch(&self) -> Scratch {
        match self {
            Instruction::Gather { product, .. } => product.scratch(),
            Instruction::WeightGradient { product, .. } => product.scratch(),
            Instruction::DepthwiseGradient { gradient, .. } => gradient.scratch(),
            Instruction::Winograd { conv, .. } => conv.scratch(),
            Instruction::WinogradGradient { gradient, .. } => gradient.scratch(),
            Instruction::BiasBackward { size, .. } | Instruction::Statistics { size, .. } => size.scratch(),
            Instruction::BatchNorm(forward) => forward.size.scratch(),
            Instruction::BatchNormReduce { gradient, .. } => gradient.size.scratch(),
            Instruction::BatchNormBackward { gradient, .. } => gradient.size.scratch(),
            Instruction::CrossEntropy { c, .. } => c.scratch(),
            Instruction::SyncStatistics { shards, own, .. } => {
                Scratch { shared: 2 * own.mean.len() * (shards + 1), private: 0 }
            }
            Instruction::SyncSum { values, .. } => Scratch { shared: 2 * values[0].len(), private: 0 },
            _ => Scratch::default(),
        }
    }

    /// Carries the instruction out.
    ///
    /// # Safety
    /// The operands' memory is valid and used by nobody else, but for what belongs to sums under way.
    pub(crate) unsafe fn execute(&self, machine: &mut Machine, step: &StepValues) -> Result<(), DeviceError> {
        let c = &mut machine.context;
        // SAFETY: for the whole match, the caller's promise; the plan keeps operands apart that must not overlap.
        unsafe {
            match self {
                Instruction::Normalize { table, x, y } => elementwise::normalize(c, table, *x, *y),
                Instruction::Gather { product, source, weights, result, start } => {
                    product.run(c, *source, *weights, *result, *start);
                }
                Instruction::WeightGradient { product, x, dy, dw } => product.run(c, *x, *dy, *dw),
                Instruction::Depthwise { conv, source, weights, result, start } => {
                    conv.run(c, *source, *weights, *result, *start);
                }
                Instruction::DepthwiseGradient { gradient, x, dy, dw } => gradient.run(c, *x, *dy, *dw),
                Instruction::Winograd { conv, source, weights, result, start } => {
                    conv.run(c, *source, *weights, *result, *start);
                }
                Instruction::WinogradGradient { gradient, x, dy, dw } => gradient.run(c, *x, *dy, *dw),
                Instruction::BiasBackward { size, dy, sums } => batch_norm::bias_backward(c, *size, *dy, *sums),
                Instruction::Statistics { size, x, moments } => batch_norm::statistics(c, *size, *x, *moments),
                Instruction::BatchNorm(forward) => batch_norm::normalize(c, forward),
                Instruction::BatchNormReduce { gradient, dbias, dweight } => {
                    batch_norm::reduce(c, gradient, *dbias, *dweight);
                }
                Instruction::BatchNormBackward { gradient, weight, sums, dx, dresidual } => {
                    batch_norm::backward(c, gradient, *weight, *sums, *dx, *dresidual);
                }
                Instruction::RunningShare { moments, count, shards, share } => {
                    batch_norm::running_share(*moments, *count, *shards, *share);
                }
                Instruction::RunningUpdate { update, mean, variance, momentum } => {
                    let channels = mean.len();
                    batch_norm::running_update(update.part(0, channels), *mean, *momentum);
                    batch_norm::running_update(update.part(channels, channels), *variance, *momentum);
                }
                Instruction::Rectify { rectifier, x, y } => elementwise::rectify(c, *rectifier, *x, *y),
                Instruction::RectifyBackward { rectifier, dy, y, dx } => {
                    elementwise::rectify_backward(c, *rectifier, *dy, *y, *dx);
                }
                Instruction::MaxPool { shape, window, x, y, position } => {
                    pooling::max_pool(c, shape, window, *x, *y, *position);
                }
                Instruction::MaxPoolBackward { shape, window, dy, position, dx } => {
                    pooling::max_pool_backward(c, shape, window, *dy, *position, *dx);
                }
                Instruction::AveragePool { average, x, y } => average.forward(c, *x, *y),
                Instruction::AveragePoolBackward { average, dy, dx } => average.backward(c, *dy, *dx),
                Instruction::Dropout { layer, samples, x, y } => {
                    elementwise::dropout(c, *layer, step.epoch, *samples, *x, *y);
                }
                Instruction::Add { a, b, c: sum } => elementwise::add(c, *a, *b, *sum),
                Instruction::Transpose { sizes, x, y } => elementwise::transpose(c, *sizes, *x, *y),
                Instruction::CrossEntropy { c: attributes, logits, labels, probabilities, loss, correct } => {
                    loss::forward(c, attributes, *logits, *labels, *probabilities, *loss, *correct);
                }
                Instruction::CrossEntropyBackward { c: attributes, probabilities, labels, dlogits } => {
                    loss::backward(c, attributes, *probabilities, *labels, *dlogits);
                }
                Instruction::ShareMetrics { shard, loss, correct, metrics } => {
                    let shared = metrics.slice_mut(0, metrics.len());
                    shared.fill(0.0);
                    shared[*shard] = *loss.at(0, 1);
                    shared[metrics.len() - 1] = *correct.at(0, 1);
                }
                Instruction::Update { optimizer, operands } => {
                    optimizer::update(c, optimizer, operands, step.learning_rate, step.optimizer_step);
                }
                Instruction::CheckFinite { losses } => check_finite(losses.slice(0, losses.len()))?,
                _ => self.communicate(machine)?,
            }
        }
        Ok(())
    }

    /// The instructions in which all ranks take part.
    ///
    /// # Safety
    /// As [`Instruction::execute`].
    unsafe fn communicate(&self, machine: &mut Machine) -> Result<(), DeviceError> {
        let Some(group) = &machine.group else {
            return Err(DeviceError::Unsupported("the plan has collectives, but the program has no group".into()));
        };
        match self {
            &Instruction::SyncStatistics { count, shards, own, all } => {
                let channels = own.mean.len();
                let packed = pack(machine.context.shared, [own.mean, own.variance]);
                // SAFETY: the caller's promise; the scratch is this instruction's.
                let gathered = unsafe { machine.context.shared.slice_mut(2 * channels, 2 * channels * shards) };
                group.all_gather(packed, gathered)?;
                for channel in 0..channels {
                    let (mean, variance) = combine(gathered, channel, channels, shards, count);
                    // SAFETY: the caller's promise.
                    unsafe { (*all.mean.at(channel, 1), *all.variance.at(channel, 1)) = (mean, variance) };
                }
            }
            Instruction::SyncSum { values, sums } => {
                let packed = pack(machine.context.shared, *values);
                group.all_reduce(packed)?;
                let (first, second) = packed.split_at(packed.len() / 2);
                for (sum, from) in sums.iter().zip([first, second]) {
                    // SAFETY: the caller's promise.
                    unsafe { sum.slice_mut(0, sum.len()) }.copy_from_slice(from);
                }
            }
            Instruction::AllReduceStart { bucket, range } => {
                // SAFETY: no instruction touches the range before it is waited for, and the program waits for handles
                // before its memory goes.
                let handle = unsafe { group.all_reduce_start(range.at(0, range.len()), range.len()) };
                machine.handles[*bucket] = Some(handle);
            }
            Instruction::AllReduceWait { bucket } => {
                if let Some(handle) = machine.handles[*bucket].take() {
                    handle.wait()?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Puts two tensors one after the other at the start of the scratch.
fn pack<'a>(scratch: F32, values: [F32; 2]) -> &'a mut [f32] {
    let channels = values[0].len();
    // SAFETY: the scratch is the running instruction's, and large enough; the values are valid.
    unsafe {
        let packed = scratch.slice_mut(0, 2 * channels);
        for (to, from) in packed.chunks_exact_mut(channels.max(1)).zip(values) {
            to.copy_from_slice(from.slice(0, channels));
        }
        packed
    }
}

/// Mean and biased variance over all shards, from each shard's `[mean, variance]` of `count` values.
///
/// Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979.
fn combine(gathered: &[f32], channel: usize, channels: usize, shards: usize, count: usize) -> (f32, f32) {
    let value = |shard: usize, row: usize| f64::from(gathered[(2 * shard + row) * channels + channel]);
    let mut leaf = |shard| (count as f64, value(shard, 0), value(shard, 1) * count as f64);
    let mut join = |(n, mean, m2): (f64, f64, f64), (other_n, other_mean, other_m2): (f64, f64, f64)| {
        let (total, delta) = (n + other_n, other_mean - mean);
        (total, mean + delta * other_n / total, m2 + other_m2 + delta * delta * n * other_n / total)
    };
    let (n, mean, m2) = tree_fold(shards, &mut leaf, &mut join).unwrap_or((1.0, 0.0, 0.0));
    (mean as f32, (m2 / n) as f32)
}

/// The first loss that is not finite is an error.
fn check_finite(losses: &[f32]) -> Result<(), DeviceError> {
    match losses.iter().position(|loss| !loss.is_finite()) {
        Some(shard) => Err(DeviceError::NonFinite { shard, loss: losses[shard].into() }),
        None => Ok(()),
    }
}
