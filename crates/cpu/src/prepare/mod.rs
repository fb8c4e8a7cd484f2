//! From a plan to prepared instructions: operands become addresses, and every product is cut into tasks.
//!
//! This is the one table from operations to kernels. A node's maps are all stored alike, in f32 or in bf16, and its kernel
//! is generic over that; what is no map (per-channel values, weights, matrices of a bf16 plan) is f32.

mod convolution;
mod operand;
mod update;

use std::ops::Range;

use enmasse_device::DeviceError;
use enmasse_graph::{Arena, Bucket, FilterOrder, NormStatistics, Op, Phase, Plan};
use enmasse_tensor::random::key;
use enmasse_tensor::{Bf16, DType};

use crate::algorithm::Algorithm;
use crate::batch_norm::{self, Forward};
use crate::collectives;
use crate::element::Element;
use crate::elementwise::{self, Dropout, NormalizeTable};
use crate::instruction::{Instruction, kernel};
use crate::isa::Isa;
use crate::loss;
use crate::pooling::{Average, Maximum};
use crate::region::Region;
use crate::scratch::Scratch;
use crate::statistics::{self, Moments};
use operand::Operand;

/// What decides which kernels a plan gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelOptions {
    pub isa: Isa,
    /// See [`crate::CpuOptions::exact`].
    pub exact: bool,
}

/// A plan ready to run.
pub(crate) struct Prepared {
    pub instructions: Vec<Instruction>,
    /// Which instructions each phase has, by its place in [`Phase::ALL`].
    pub phases: [Range<usize>; 6],
    /// Scratch that serves every instruction.
    pub scratch: Scratch,
}

/// What an operand's address depends on beside the plan.
pub(crate) struct Preparation<'a> {
    pub plan: &'a Plan,
    /// Where each arena begins.
    pub arena: &'a dyn Fn(Arena) -> *mut u8,
    pub isa: Isa,
    /// Whether convolutions are direct sums, whatever is faster.
    pub exact: bool,
    /// The shard this program hosts.
    pub shard: usize,
}

impl<'a> Preparation<'a> {
    /// The preparation of a plan whose arenas begin at given places.
    pub(crate) fn of(
        plan: &'a Plan,
        arena: &'a dyn Fn(Arena) -> *mut u8,
        options: KernelOptions,
        shard: usize,
    ) -> Self {
        Preparation { plan, arena, isa: options.isa, exact: options.exact, shard }
    }

    /// Prepares every instruction of the plan.
    pub(crate) fn run(&self) -> Result<Prepared, DeviceError> {
        let plan = self.plan;
        if plan.filters != FilterOrder::Hwio {
            let (found, own) = (plan.filters, FilterOrder::Hwio);
            let reason = format!("the cpu keeps filters in the order {own}, not {found}: compile for its own target");
            return Err(DeviceError::Unsupported(reason));
        }
        let prepare = |(index, node)| {
            let chosen = Algorithm::chosen(plan, index)?;
            let operand = Operand { preparation: self, node, chosen };
            let instruction = match operand.stores(DType::Bf16) {
                true => self.instruction::<Bf16>(&operand),
                false => self.instruction::<f32>(&operand),
            }?;
            match chosen {
                Some(chosen) if chosen.name() != instruction.algorithm => Err(operand.unsupported()),
                _ => Ok(instruction),
            }
        };
        let instructions = plan.instructions.iter().enumerate().map(prepare).collect::<Result<Vec<_>, _>>()?;
        let scratch = instructions.iter().fold(Scratch::default(), |scratch, i| scratch.max(i.scratch));
        let phases = Phase::ALL.map(|phase| {
            let start = plan.instructions.partition_point(|node| node.phase < phase);
            start..plan.instructions.partition_point(|node| node.phase <= phase)
        });
        Ok(Prepared { instructions, phases, scratch })
    }

    /// `elements` f32 values of an arena, from `start` on.
    fn range(&self, arena: Arena, start: usize, elements: usize) -> Region<f32> {
        Region::new((self.arena)(arena).cast::<f32>().wrapping_add(start), elements)
    }

    /// The instruction of a node whose maps are stored as `E`.
    fn instruction<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let none = Scratch::default();
        let instruction = match &o.node.op {
            Op::Normalize { mean, deviation } => {
                let table = NormalizeTable::new(mean, deviation).ok_or_else(|| o.unsupported())?;
                if (o.input_size(0)?[2], o.output_size(0)?[2]) != (3, mean.len()) {
                    return Err(o.unsupported());
                }
                let (x, y) = (o.input(0)?, o.output::<E>(0)?);
                kernel!(none, c => elementwise::normalize(c, &table, x, y))
            }
            Op::Conv2d(_) | Op::Linear => o.forward::<E>()?,
            Op::Conv2dBackwardData(_) | Op::LinearBackwardData => o.backward_data::<E>()?,
            Op::Conv2dBackwardWeights(_) | Op::LinearBackwardWeights => o.backward_weights::<E>()?,
            Op::BiasBackward => {
                let (size, dy, sums) = (o.rows(0)?, o.input::<E>(0)?, o.output(0)?);
                kernel!(size.scratch(), c => batch_norm::bias_backward(c, size, dy, sums))
            }
            Op::BatchNormStatistics => {
                let moments = Moments { mean: o.output(0)?, variance: o.output(1)? };
                let (size, x) = (o.rows(0)?, o.input::<E>(0)?);
                kernel!(size.scratch(), c => statistics::statistics(c, size, x, moments))
            }
            &Op::BatchNormNormalize { epsilon, rectifier, .. } => {
                let (moments, weight, bias, residual) = (o.moments(1)?, o.input(3)?, o.input(4)?, o.optional(5)?);
                let (size, x, y) = (o.rows(0)?, o.input::<E>(0)?, o.output(0)?);
                let forward = Forward { size, x, moments, weight, bias, residual, y, epsilon, rectifier };
                kernel!(size.scratch(), c => batch_norm::normalize(c, &forward))
            }
            &Op::BatchNormReduce { epsilon, rectifier } => {
                let gradient = o.gradient::<E>(epsilon, rectifier, 4)?;
                let (dbias, dweight) = (o.output(0)?, o.output(1)?);
                kernel!(gradient.size.scratch(), c => batch_norm::reduce(c, &gradient, dbias, dweight))
            }
            &Op::BatchNormBackward { epsilon, statistics, rectifier, residual } => {
                let (sums, gate) = match statistics {
                    NormStatistics::Batch { count } => (Some((o.input(5)?, o.input(6)?, count)), 7),
                    NormStatistics::Running => (None, 5),
                };
                let gradient = o.gradient::<E>(epsilon, rectifier, gate)?;
                let (weight, dx) = (o.input(4)?, o.output(0)?);
                let dresidual = if residual { Some(o.output(1)?) } else { None };
                kernel!(gradient.size.scratch(), c => {
                    batch_norm::backward(c, &gradient, weight, sums, dx, dresidual);
                })
            }
            &Op::RunningShare { count, shards } => {
                let (moments, share) = (o.moments(0)?, o.output(0)?);
                kernel!(none, _c => batch_norm::running_share(moments, count, shards, share))
            }
            &Op::RunningUpdate { momentum } => {
                let (update, mean, variance) = (o.input::<f32>(0)?, o.input(1)?, o.input(2)?);
                let channels = update.len() / 2;
                let [means, variances] = [0, channels].map(|start| update.part(start, channels));
                kernel!(none, _c => {
                    batch_norm::running_update(means, mean, momentum);
                    batch_norm::running_update(variances, variance, momentum);
                })
            }
            &Op::Rectify(rectifier) => {
                let (x, y) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => elementwise::rectify(c, rectifier, x, y))
            }
            &Op::RectifyBackward(rectifier) => {
                let (dy, y, dx) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => elementwise::rectify_backward(c, rectifier, dy, y, dx))
            }
            Op::MaxPool(window) => {
                let shape = o.pool(o.input_size(0)?, o.output_size(0)?);
                if window.kernel[0] * window.kernel[1] > usize::from(u8::MAX) {
                    return Err(o.unsupported());
                }
                let (x, y, position) = (o.input::<E>(0)?, o.output(0)?, o.output(1)?);
                let maximum = Maximum::new(shape, window);
                kernel!(none, c => maximum.forward(c, x, y, position))
            }
            Op::MaxPoolBackward(window) => {
                let maximum = Maximum::new(o.pool(o.output_size(0)?, o.input_size(0)?), window);
                let (dy, position, dx) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => maximum.backward(c, dy, position, dx))
            }
            Op::AvgPool(window) => {
                let average = Average::window(o.pool(o.input_size(0)?, o.output_size(0)?), window);
                let (x, y) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => average.forward(c, x, y))
            }
            Op::AdaptiveAvgPool(_) => {
                let average = Average::adaptive(o.pool(o.input_size(0)?, o.output_size(0)?));
                let (x, y) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => average.forward(c, x, y))
            }
            Op::AvgPoolBackward(window) => {
                let average = Average::window(o.pool(o.output_size(0)?, o.input_size(0)?), window);
                let (dy, dx) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => average.backward(c, dy, dx))
            }
            Op::AdaptiveAvgPoolBackward(_) => {
                let average = Average::adaptive(o.pool(o.output_size(0)?, o.input_size(0)?));
                let (dy, dx) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => average.backward(c, dy, dx))
            }
            Op::Dropout { probability, seed, layer } => {
                let layer = Dropout { key: key(*seed, &format!("dropout {layer}")), probability: *probability };
                let (x, samples, y) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, (c, step) => elementwise::dropout(c, layer, step.epoch, samples, x, y))
            }
            Op::Add => {
                let (a, b, sum) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => elementwise::add(c, a, b, sum))
            }
            Op::Flatten => {
                let [height, width, channels] = o.input_size(0)?;
                let sizes = [self.plan.batch, height * width, channels];
                let (x, y) = (o.input::<E>(0)?, o.output::<f32>(0)?);
                kernel!(none, c => elementwise::transpose(c, sizes, x, y))
            }
            Op::FlattenBackward => {
                let [height, width, channels] = o.output_size(0)?;
                let sizes = [self.plan.batch, channels, height * width];
                let (x, y) = (o.input::<f32>(0)?, o.output::<E>(0)?);
                kernel!(none, c => elementwise::transpose(c, sizes, x, y))
            }
            &Op::CrossEntropy { scale, smoothing } => {
                let (entropy, logits, labels) = (o.cross_entropy(scale, smoothing)?, o.input(0)?, o.input(1)?);
                let (probabilities, loss, correct) = (o.output(0)?, o.output(1)?, o.output(2)?);
                kernel!(entropy.scratch(), c => {
                    loss::forward(c, &entropy, logits, labels, probabilities, loss, correct);
                })
            }
            &Op::CrossEntropyBackward { scale, smoothing } => {
                let (entropy, probabilities) = (o.cross_entropy(scale, smoothing)?, o.input(0)?);
                let (labels, dlogits) = (o.input(1)?, o.output(0)?);
                kernel!(none, c => loss::backward(c, &entropy, probabilities, labels, dlogits))
            }
            Op::ShareMetrics { .. } => {
                let (loss, correct, metrics) = (o.input(0)?, o.input(1)?, o.output(0)?);
                let shard = self.shard;
                kernel!(none, (_c, step) => loss::share(shard, loss, correct, step.stop, metrics))
            }
            &Op::SyncStatistics { count } => {
                let (own, all) = (o.moments(0)?, Moments { mean: o.output(0)?, variance: o.output(1)? });
                let shards = self.plan.shards;
                Instruction::fallible(collectives::statistics_scratch(own.mean.len(), shards), move |machine| {
                    // SAFETY: see `Instruction::execute`.
                    unsafe { collectives::sync_statistics(machine, count, shards, own, all) }
                })
            }
            Op::SyncSum => {
                let (values, sums) = ([o.input::<f32>(0)?, o.input(1)?], [o.output(0)?, o.output(1)?]);
                let scratch = Scratch { shared: 2 * values[0].len(), private: 0 };
                // SAFETY: see `Instruction::execute`.
                Instruction::fallible(scratch, move |machine| unsafe { collectives::sync_sum(machine, values, sums) })
            }
            &Op::AllReduceStart { bucket } => {
                let single = |range: &&Bucket| range.dtype == DType::F32;
                let range = self.plan.buckets.get(bucket).filter(single).ok_or_else(|| o.unsupported())?;
                let range = self.range(Arena::Gradients, range.start, range.len);
                Instruction::fallible(none, move |machine| {
                    // SAFETY: the plan leaves the range alone until it waits; see `Instruction::execute`.
                    unsafe { collectives::all_reduce_start(machine, bucket, range) }
                })
            }
            &Op::AllReduceWait { bucket } => {
                Instruction::fallible(none, move |machine| collectives::all_reduce_wait(machine, bucket))
            }
            Op::CheckFinite => {
                let losses = o.input(0)?.part(0, self.plan.shards);
                // SAFETY: see `Instruction::execute`.
                Instruction::fallible(none, move |_| unsafe { collectives::check_finite(losses) })
            }
            Op::Update(update) => {
                let update = o.update(update)?;
                kernel!(none, (c, step) => update.run(c, step.learning_rate, step.optimizer_step))
            }
        };
        Ok(instruction)
    }
}
