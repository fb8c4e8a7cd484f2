//! Turns a plan into prepared instructions: operands become addresses, and every matmul is divided into tasks.
//!
//! This is the one table from operations to kernels. All activations of a node are stored as one element type, f32 or bf16, and its
//! kernel is generic over that type. All other values (per-channel values, weights, matrices of a bf16 plan) are f32.

mod convolution;
mod operand;
mod update;

use std::ops::Range;

use enmasse_comm::ShardMap;
use enmasse_device::{DeviceError, ShardSchedule};
use enmasse_graph::{Arena, Bucket, FilterOrder, Node, NormStatistics, Op, Plan, Precision};
use enmasse_tensor::random::key;
use enmasse_tensor::{Bf16, DType};

use crate::algorithm::Algorithm;
use crate::batch_norm::{self, Forward};
use crate::collectives::{self, BucketSum, StatisticsExchange, SumExchange};
use crate::element::Element;
use crate::elementwise::{self, Dropout, NormalizeTable};
use crate::function;
use crate::instruction::{Instruction, fallible, kernel};
use crate::isa::Isa;
use crate::loss;
use crate::pooling::Maximum;
use crate::region::Region;
use crate::samples;
use crate::statistics::{self, Moments};
use crate::workspace::Workspace;
use operand::{Operand, Side};

/// The options that decide which kernels a plan gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelOptions {
    pub isa: Isa,
    /// See [`crate::CpuOptions::exact`].
    pub exact: bool,
}

/// A plan ready to run.
pub(crate) struct Prepared {
    /// The instructions of each local shard, parallel to those of the plan. An instruction that runs once for all
    /// shards is in the first shard's list, and the other lists have an empty one in its place.
    pub shards: Vec<Vec<Instruction>>,
    /// Workspace that is enough for any instruction.
    pub workspace: Workspace,
}

/// The data, apart from the plan, that determines an operand's address.
pub(crate) struct Preparation<'a> {
    pub plan: &'a Plan,
    /// Where each arena begins; for gradients and activations, the first one.
    pub start: &'a dyn Fn(Arena) -> *mut u8,
    pub kernels: KernelOptions,
    pub schedule: &'a ShardSchedule,
    /// Bytes from one arena of gradients, and of activations, to the next.
    pub strides: [usize; 2],
    /// All shards over all ranks.
    pub map: ShardMap,
}

impl<'a> Preparation<'a> {
    /// A preparation for inspecting or measuring instructions: of one shard, in arenas that begin at given addresses.
    pub(crate) fn sample(
        plan: &'a Plan,
        start: &'a dyn Fn(Arena) -> *mut u8,
        kernels: KernelOptions,
        schedule: &'a ShardSchedule,
    ) -> Result<Self, DeviceError> {
        let map = ShardMap::new(plan.shards, 1).map_err(|error| DeviceError::Unsupported(error.to_string()))?;
        Ok(Preparation { plan, start, kernels, schedule, strides: [0; 2], map })
    }

    /// Prepares every instruction of the plan for every local shard.
    pub(crate) fn run(&self) -> Result<Prepared, DeviceError> {
        let plan = self.plan;
        if plan.filters != FilterOrder::Hwio {
            let (found, own) = (plan.filters, FilterOrder::Hwio);
            let reason = format!("the cpu keeps filters in the order {own}, not {found}: compile for the cpu's target");
            return Err(DeviceError::Unsupported(reason));
        }
        if let Precision::Tf32 | Precision::F16 = plan.precision {
            let reason = format!("the cpu has no {}: use `precision = bf16` or f32", plan.precision);
            return Err(DeviceError::Unsupported(reason));
        }
        let prepare = |local: usize, index: usize, node: &Node| {
            if local > 0 && (node.op.is_joint() || !node.phase.is_of_a_shard()) {
                return Ok(Instruction::nothing());
            }
            let chosen = Algorithm::chosen(plan, index)?;
            let operand = Operand { preparation: self, local, node, chosen };
            let instruction = match operand.stores(DType::Bf16) {
                true => self.instruction::<Bf16>(&operand),
                false => self.instruction::<f32>(&operand),
            }?;
            match chosen {
                Some(chosen) if chosen.name() != instruction.algorithm => Err(operand.unsupported()),
                _ => Ok(instruction),
            }
        };
        let of_shard = |local: usize| {
            let nodes = plan.instructions.iter().enumerate();
            nodes.map(|(index, node)| prepare(local, index, node)).collect::<Result<Vec<_>, _>>()
        };
        let shards = self.local().map(of_shard).collect::<Result<Vec<_>, _>>()?;
        let workspace = shards.iter().flatten().fold(Workspace::default(), |workspace, i| workspace.max(i.workspace));
        Ok(Prepared { shards, workspace })
    }

    /// The local shards, as indices into the schedule.
    fn local(&self) -> Range<usize> {
        0..self.schedule.shards.len()
    }

    /// Where an arena of a local shard begins.
    fn arena(&self, arena: Arena, local: usize) -> *mut u8 {
        let [gradients, activations] = self.strides;
        let offset = match arena {
            Arena::Gradients => gradients * self.schedule.shards[local].slot,
            Arena::Activations if self.schedule.lockstep => activations * local,
            Arena::Activations | Arena::Input => 0,
            Arena::Parameters | Arena::Buffers | Arena::Optimizer(_) | Arena::Average | Arena::LossScale => 0,
        };
        (self.start)(arena).wrapping_add(offset)
    }

    /// `elements` f32 values of a local shard's arena, from `start`.
    fn range(&self, arena: Arena, local: usize, start: usize, elements: usize) -> Region<f32> {
        Region::new(self.arena(arena, local).cast::<f32>().wrapping_add(start), elements)
    }

    /// The instruction of a node whose activations are stored as `E`.
    fn instruction<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let none = Workspace::default();
        let instruction = match &o.node.op {
            Op::Normalize { mean, std } => {
                let table = NormalizeTable::new(mean, std).ok_or_else(|| o.unsupported())?;
                if (o.size(Side::Input(0))?[2], o.size(Side::Output(0))?[2]) != (3, mean.len()) {
                    return Err(o.unsupported());
                }
                let (x, y) = (o.batch_input(0, |batch| Region::of(batch.images()))?, o.output::<E>(0)?);
                kernel!(none, (c, step) => elementwise::normalize(c, &table, x.of(step), y))
            }
            Op::Conv2d(_) | Op::Linear => o.forward::<E>()?,
            Op::Conv2dBackwardData(_) | Op::LinearBackwardData => o.backward_data::<E>()?,
            Op::Conv2dBackwardWeights(_) | Op::LinearBackwardWeights => o.backward_weights::<E>()?,
            Op::BiasBackward => {
                let (size, dy, sums) = (o.rows(0)?, o.input::<E>(0)?, o.output(0)?);
                kernel!(size.workspace(), c => batch_norm::bias_backward(c, size, dy, sums))
            }
            Op::BatchNormStatistics => {
                let moments = Moments { mean: o.output(0)?, variance: o.output(1)? };
                let (size, x) = (o.rows(0)?, o.input::<E>(0)?);
                kernel!(size.workspace(), c => statistics::statistics(c, size, x, moments))
            }
            &Op::BatchNormNormalize { epsilon, activation, .. } => {
                let (moments, weight, bias, residual) = (o.moments(1)?, o.input(3)?, o.input(4)?, o.optional(5)?);
                let (size, x, y) = (o.rows(0)?, o.input::<E>(0)?, o.output(0)?);
                let forward = Forward { size, x, moments, weight, bias, residual, y, epsilon, activation };
                kernel!(size.workspace(), c => batch_norm::normalize(c, &forward))
            }
            &Op::BatchNormReduce { epsilon, activation } => {
                let gradient = o.gradient::<E>(epsilon, activation, 4)?;
                let (dbias, dweight) = (o.output(0)?, o.output(1)?);
                kernel!(gradient.size.workspace(), c => batch_norm::reduce(c, &gradient, dbias, dweight))
            }
            &Op::BatchNormBackward { epsilon, statistics, activation, residual } => {
                let (sums, gate) = match statistics {
                    NormStatistics::Batch { count } => (Some((o.input(5)?, o.input(6)?, count)), 7),
                    NormStatistics::Running => (None, 5),
                };
                let gradient = o.gradient::<E>(epsilon, activation, gate)?;
                let (weight, dx) = (o.input(4)?, o.output(0)?);
                let dresidual = if residual { Some(o.output(1)?) } else { None };
                kernel!(gradient.size.workspace(), c => {
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
            &Op::Activation(activation) => {
                let (x, y) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => elementwise::activate(c, activation, x, y))
            }
            &Op::ActivationBackward(activation) => {
                let (dy, y, dx) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => elementwise::activate_backward(c, activation, dy, y, dx))
            }
            Op::MaxPool(window) => {
                let shape = o.pool(Side::Input(0), Side::Output(0))?;
                // Positions are bytes, from 0.
                if window.kernel[0] * window.kernel[1] > usize::from(u8::MAX) + 1 {
                    return Err(o.unsupported());
                }
                let (x, y, position) = (o.input::<E>(0)?, o.output(0)?, o.output(1)?);
                let maximum = Maximum::new(shape, window);
                kernel!(none, c => maximum.forward(c, x, y, position))
            }
            Op::MaxPoolBackward(window) => {
                let maximum = Maximum::new(o.pool(Side::Output(0), Side::Input(0))?, window);
                let (dy, position, dx) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => maximum.backward(c, dy, position, dx))
            }
            Op::AvgPool(_) | Op::AdaptiveAvgPool(_) => {
                let average = o.average(Side::Input(0), Side::Output(0))?;
                let (x, y) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => average.forward(c, x, y))
            }
            Op::AvgPoolBackward(_) | Op::AdaptiveAvgPoolBackward(_) => {
                let average = o.average(Side::Output(0), Side::Input(0))?;
                let (dy, dx) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => average.backward(c, dy, dx))
            }
            Op::Dropout { probability, seed, layer } => {
                let layer = Dropout { key: key(*seed, &format!("dropout {layer}")), probability: *probability };
                let samples = o.batch_input(1, |batch| Region::of(batch.sample_indices()).cast())?;
                let (x, y) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, (c, step) => elementwise::dropout(c, layer, step.epoch, samples.of(step), x, y))
            }
            Op::Add => {
                let (a, b, sum) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => elementwise::add(c, a, b, sum))
            }
            Op::Multiply => {
                let (a, b, matmul) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => elementwise::multiply(c, a, b, matmul))
            }
            &Op::Map(function) => {
                let (x, y) = (o.input::<E>(0)?, o.output(0)?);
                kernel!(none, c => function::map(c, function, x, y))
            }
            &Op::MapBackward(function) => {
                let (dy, x, dx) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => function::map_backward(c, function, dy, x, dx))
            }
            Op::Flatten => {
                let [height, width, channels] = o.size(Side::Input(0))?;
                let sizes = [self.plan.batch, height * width, channels];
                let (x, y) = (o.input::<E>(0)?, o.output::<f32>(0)?);
                kernel!(none, c => elementwise::transpose(c, sizes, x, y))
            }
            Op::FlattenBackward => {
                let [height, width, channels] = o.size(Side::Output(0))?;
                let sizes = [self.plan.batch, channels, height * width];
                let (x, y) = (o.input::<f32>(0)?, o.output::<E>(0)?);
                kernel!(none, c => elementwise::transpose(c, sizes, x, y))
            }
            &Op::CrossEntropy { scale, smoothing } => {
                let (entropy, logits) = (o.cross_entropy(scale, smoothing)?, o.input(0)?);
                let labels = o.labels(1)?;
                let (probabilities, loss, correct) = (o.output(0)?, o.output(1)?, o.output(2)?);
                kernel!(entropy.workspace(), (c, step) => {
                    loss::forward(c, &entropy, logits, labels.of(step), probabilities, loss, correct);
                })
            }
            &Op::CrossEntropyBackward { scale, smoothing } => {
                let (entropy, probabilities) = (o.cross_entropy(scale, smoothing)?, o.input(0)?);
                let (labels, dlogits) = (o.labels(1)?, o.output(0)?);
                kernel!(none, (c, step) => loss::backward(c, &entropy, probabilities, labels.of(step), dlogits))
            }
            Op::LogSoftmax => {
                let (classes, x, y) = (o.rows(0)?.channels, o.input(0)?, o.output(0)?);
                kernel!(none, c => samples::log_softmax(c, classes, x, y))
            }
            Op::LogSoftmaxBackward => {
                let (classes, dy, y, dx) = (o.rows(0)?.channels, o.input(0)?, o.input(1)?, o.output(0)?);
                kernel!(none, c => samples::log_softmax_backward(c, classes, dy, y, dx))
            }
            Op::ScaleClasses { factors } => {
                if factors.len() != o.rows(0)?.channels {
                    return Err(o.unsupported());
                }
                let (factors, x, y) = (factors.clone(), o.input(0)?, o.output(0)?);
                kernel!(none, c => samples::scale_classes(c, &factors, x, y))
            }
            Op::SumClasses => {
                let (x, y) = (o.input(0)?, o.output(0)?);
                kernel!(none, c => samples::sum_classes(c, x, y))
            }
            Op::SumClassesBackward => {
                let (dy, dx) = (o.input(0)?, o.output(0)?);
                kernel!(none, c => samples::sum_classes_backward(c, dy, dx))
            }
            Op::Targets => {
                let (labels, targets) = (o.labels(0)?, o.output(0)?);
                kernel!(none, (c, step) => samples::targets(c, labels.of(step), targets))
            }
            &Op::TopKCorrect { k } => {
                let (logits, labels) = (o.input(0)?, o.labels_alone(1)?);
                let top_k_correct = o.output(0)?;
                kernel!(none, (c, step) => samples::top_k_correct(c, k, logits, labels.of(step), top_k_correct))
            }
            &Op::SampleSum { scale } => {
                let (values, labels) = (o.input(0)?, o.labels_alone(1)?);
                let sum = o.output(0)?;
                kernel!(none, (_c, step) => samples::sample_sum(scale, values, labels.of(step), sum))
            }
            &Op::SampleSumBackward { scale } => {
                let (labels, dvalues) = (o.labels_alone(0)?, o.output(0)?);
                kernel!(none, (_c, step) => samples::sample_sum_backward(scale, labels.of(step), dvalues))
            }
            Op::MaskSamples => {
                let (x, labels, y) = (o.input(0)?, o.labels_alone(1)?, o.output(0)?);
                kernel!(none, (c, step) => samples::mask(c, x, labels.of(step), y))
            }
            Op::ShareMetrics { .. } => {
                let numbers = (1..o.node.inputs.len()).map(|index| o.input(index)).collect::<Result<Vec<_>, _>>()?;
                let (loss, metrics) = (o.input(0)?, o.output(0)?);
                let shard = self.schedule.shards[o.local].shard;
                kernel!(none, (_c, step) => loss::share(shard, loss, &numbers, [step.stop, step.save], metrics))
            }
            &Op::SyncStatistics { count } => {
                let moments = |side: fn(usize) -> Side| -> Result<Vec<Moments>, DeviceError> {
                    let [means, variances] = [o.of_all(side(0))?, o.of_all(side(1))?];
                    Ok(means.into_iter().zip(variances).map(|(mean, variance)| Moments { mean, variance }).collect())
                };
                let (own, all) = (moments(Side::Input)?, moments(Side::Output)?);
                let exchange = StatisticsExchange::new(&self.map, count, own, all);
                fallible!(exchange.workspace(), machine => exchange.run(machine))
            }
            Op::SyncSum => {
                let values = [o.of_all(Side::Input(0))?, o.of_all(Side::Input(1))?];
                let (shards, partials) = (self.map.shards(), self.schedule.partials.clone());
                let sums = [o.of_all(Side::Output(0))?, o.of_all(Side::Output(1))?];
                let exchange = SumExchange { shards, partials, values, sums };
                fallible!(exchange.workspace(), machine => exchange.run(machine))
            }
            &Op::AllReduceStart { bucket } | &Op::ReduceStart { bucket } => {
                let single = |range: &&Bucket| range.dtype == DType::F32;
                let range = self.plan.buckets.get(bucket).filter(single).ok_or_else(|| o.unsupported())?;
                // The arenas of all slots, starting at the bucket's place in the first one.
                let start = (self.start)(Arena::Gradients).cast::<f32>().wrapping_add(range.start);
                let sum = BucketSum {
                    bucket,
                    start: Region::new(start, range.len),
                    stride: self.strides[0] / size_of::<f32>(),
                    shards: self.map.shards(),
                    is_for_all: matches!(o.node.op, Op::AllReduceStart { .. }),
                    folds: self.schedule.shards[o.local].folds.clone(),
                    is_last: o.local + 1 == self.schedule.shards.len(),
                };
                // The plan does not touch the range until it waits.
                fallible!(none, machine => sum.run(machine))
            }
            &Op::AllReduceWait { bucket } | &Op::ReduceWait { bucket } => {
                Instruction::new(none, move |machine, _| collectives::all_reduce_wait(machine, bucket))
            }
            Op::Replicate => {
                let values = (0..o.node.inputs.len()).map(|index| o.input(index)).collect::<Result<Vec<_>, _>>()?;
                let ranges = collectives::adjacent(values);
                fallible!(none, machine => collectives::replicate(machine, &ranges))
            }
            Op::CheckFinite => {
                let losses = o.input(0)?.part(0, self.plan.shards);
                fallible!(none, _machine => collectives::check_finite(losses))
            }
            Op::GradientNorm { scaled: false } => {
                let (norm, result) = (o.gradient_norm()?, o.output(0)?);
                kernel!(norm.workspace(), c => norm.run(c, result))
            }
            Op::Update(update) => {
                let update = o.update(update)?;
                kernel!(update.workspace(), (c, step) => update.run(c, step.learning_rate, step.optimizer_step))
            }
            &Op::Average { decay, scaled: false } => {
                let averages = o.averages(decay)?;
                kernel!(none, (c, step) => averages.run(c, step.optimizer_step))
            }
            Op::Scale if o.is_loss_weight(1) => {
                let (x, y) = (o.input(0)?, o.output(0)?);
                kernel!(none, (c, step) => samples::scale(c, step.batch.loss_weight(), x, y))
            }
            // The loss is scaled by state for f16, which the CPU does not store.
            Op::Scale
            | Op::Unscale
            | Op::UpdateScale { .. }
            | Op::GradientNorm { scaled: true }
            | Op::Average { scaled: true, .. } => return Err(o.unsupported()),
        };
        Ok(instruction)
    }
}
