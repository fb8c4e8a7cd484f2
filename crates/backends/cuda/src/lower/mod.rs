//! Turns a plan into a sequence of CUDA work: the one table from operations to kernels and calls of libraries.
//!
//! Nothing here runs on the GPU. The engines that libraries choose for it decide the work around them.
//!
//! Weights that multiply bf16 activations are rounded once a step, all at once.

mod collectives;
mod matrix;
mod operand;
mod ranks;
mod running;
mod update;

use std::ops::Range;

use enmasse_device::{Hosting, ShardSchedule};
use enmasse_graph::{FilterOrder, Mode, NormStatistics, Op, Per, Phase, Plan, Plans, Precision, ValueId};
use enmasse_tensor::DType;
use enmasse_tensor::random::key;

use crate::CudaError;
use crate::check::check;
use crate::driver::Properties;
use crate::gpu::Gpu;
use crate::kernels::step::FAILURE_BYTES;
use crate::kernels::{batch_norm, bias, elementwise, layout, loss, loss_scale, metrics, pooling, samples};
use crate::sequence::{Call, Joins, Number, Part, Sequence, StreamKind, Work};
use crate::way::Way;
use crate::work::{Kernel, Memory, Place, Span};
use matrix::chosen;
pub(crate) use matrix::{convolution_of, engine_of};
use operand::Operands;
pub(crate) use operand::Places;
use ranks::{Placed, Ranks, computed};

/// The work of a plan for the shards that a program hosts, whose rank exchanges numbers with others in this way.
pub(crate) fn lower(
    plans: &Plans,
    plan: &Plan,
    hosting: &Hosting,
    schedule: &ShardSchedule,
    (gpu, way): (&Gpu, Way),
) -> Result<Sequence, CudaError> {
    if plan.filters != FilterOrder::Ohwi {
        let (found, own) = (plan.filters, FilterOrder::Ohwi);
        let reason = format!("the gpu keeps filters in the order {own}, not {found}: compile for the gpu's target");
        return Err(CudaError::Unsupported(reason));
    }
    let Properties { name, capability: [major, minor], .. } = &gpu.context.properties;
    if matches!(plan.precision, Precision::Tf32 | Precision::Bf16) && *major < 8 {
        let precision = plan.precision;
        let reason =
            format!("{name} (compute capability {major}.{minor}) has no {precision}: use `precision = f16` or f32");
        return Err(CudaError::Unsupported(reason));
    }
    let places = Places { plans, schedule };
    let mut lowering = Lowering { plan, places, hosting, gpu, way, sequence: Sequence::default() };
    // A failure comes before the numbers.
    lowering.sequence.results = FAILURE_BYTES;
    let of_shards = || Phase::ALL.into_iter().filter(|phase| phase.is_of_a_shard());
    let shards = 0..schedule.shards.len();
    if schedule.lockstep {
        of_shards().try_for_each(|phase| lowering.phase(phase, shards.clone()))?;
    } else {
        let one = |local: usize| of_shards().map(move |phase| (phase, local..local + 1));
        shards.flat_map(one).try_for_each(|(phase, local)| lowering.phase(phase, local))?;
    }
    for phase in Phase::ALL.into_iter().filter(|phase| !phase.is_of_a_shard()) {
        lowering.phase(phase, 0..1)?;
    }
    let written = places.before_a_step(plan, &lowering.sequence.constants);
    check(&lowering.sequence, &written)
        .map_err(|why| CudaError::Unsupported(format!("a defect of the gpu's plan: {why}")))?;
    Ok(lowering.sequence)
}

/// The weights of convolutions as they are multiplied, for the place of an f32 parameter or of its average.
fn rounded(span: Span) -> Span {
    let place = Place { memory: Memory::Rounded, offset: span.place.offset / 2 };
    Span { place, bytes: span.bytes / 2 }
}

fn scratch(offset: usize, bytes: usize) -> Span {
    Span { place: Place { memory: Memory::Scratch, offset }, bytes }
}

/// A sequence in the making.
struct Lowering<'a> {
    plan: &'a Plan,
    places: Places<'a>,
    hosting: &'a Hosting,
    gpu: &'a Gpu,
    way: Way,
    sequence: Sequence,
}

impl Lowering<'_> {
    /// Adds the work of a phase: of one local shard, or of several that run each instruction together.
    fn phase(&mut self, phase: Phase, shards: Range<usize>) -> Result<(), CudaError> {
        let start = self.sequence.work.len();
        let mut last = 0;
        for (index, node) in self.plan.instructions.iter().enumerate().filter(|(_, node)| node.phase == phase) {
            if start == self.sequence.work.len() && phase == Phase::Forward {
                self.round_weights(index)?;
            }
            // A joint operation is one piece of work for all shards.
            let shards = if node.op.is_joint() { shards.start..shards.start + 1 } else { shards.clone() };
            let chosen = chosen(self.plan, index)?;
            for local in shards {
                let operands = Operands { plan: self.plan, places: self.places, local, node, chosen };
                let calls = self.instruction(&operands)?;
                calls.into_iter().for_each(|(lane, call)| self.push_to(lane, index, call));
            }
            last = index;
        }
        for local in shards {
            self.read_results(phase, local, last);
        }
        if self.sequence.work.len() > start {
            self.sequence.parts.push(Part { phase, work: start..self.sequence.work.len() });
        }
        Ok(())
    }

    fn push(&mut self, instruction: usize, call: Call) {
        self.push_to(StreamKind::Compute, instruction, call);
    }

    fn push_to(&mut self, lane: StreamKind, instruction: usize, call: Call) {
        let accesses = call.accesses();
        let workspace = match &call {
            Call::Convolution(call) => Some(call.workspace),
            Call::Matmul(call) => Some(call.workspace),
            _ => None,
        };
        for span in accesses.all().chain(workspace).filter(|span| span.place.memory == Memory::Scratch) {
            self.sequence.scratch = self.sequence.scratch.max(span.place.offset + span.bytes);
        }
        for span in accesses.writes.iter().filter(|span| span.place.memory == Memory::Collectives) {
            self.sequence.collectives = self.sequence.collectives.max(span.place.offset + span.bytes);
        }
        self.sequence.work.push(Work { instruction, lane, call });
    }

    /// Rounds the weights that convolutions multiply with narrower activations, all at once.
    fn round_weights(&mut self, index: usize) -> Result<(), CudaError> {
        let activations = self.plan.precision.activations();
        let multiplied = self.plan.instructions.iter().filter_map(|node| match node.op {
            Op::Conv2d(_) => node.inputs.get(1).filter(|_| activations != DType::F32),
            _ => None,
        });
        let weights = multiplied.map(|&id| self.places.span(self.plan, id, 0));
        let Some(whole) = weights.reduce(Span::hull) else { return Ok(()) };
        self.push(index, Call::Kernel(elementwise::cast(DType::F32, whole, activations, rounded(whole))));
        Ok(())
    }

    /// Copies what the host reads, after the phase that completes it.
    fn read_results(&mut self, phase: Phase, local: usize, index: usize) {
        let plan = self.plan;
        let values: Vec<ValueId> = match (plan.mode, phase) {
            (Mode::Train, Phase::Reduce) => {
                let measured = plan.measured.iter().filter(|metric| metric.per == Per::Step);
                plan.metrics.into_iter().chain(measured.map(|metric| metric.value)).chain(plan.unscale()).collect()
            }
            (Mode::Evaluate, Phase::Loss) => plan.of_samples().collect(),
            (Mode::Train, Phase::Check) => {
                let failure = Span { place: Place { memory: Memory::Failure, offset: 0 }, bytes: FAILURE_BYTES };
                self.push(index, Call::Read { from: failure, to: 0 });
                return;
            }
            _ => Vec::new(),
        };
        let number_of = if plan.mode == Mode::Train { 0 } else { local };
        for value in values {
            let from = self.places.span(plan, value, local);
            let at = self.sequence.results;
            self.sequence.results += from.bytes;
            self.sequence.numbers.push(Number { value, local: number_of, at });
            self.push(index, Call::Read { from, to: at });
        }
        // The next shard overwrites what callers may ask for.
        if phase == Phase::Loss && self.places.schedule.overwrites() {
            for value in std::iter::once(plan.logits).chain(plan.of_samples()) {
                let (from, to) = (self.places.span(plan, value, local), self.places.saved(plan, value, local));
                self.push(index, Call::Copy { from, to });
            }
        }
    }

    /// The work of one instruction.
    fn instruction(&mut self, o: &Operands) -> Result<Vec<Placed>, CudaError> {
        let dtype = o.activations();
        let Sequence { constants, staging, events, .. } = &mut self.sequence;
        let mut ranks = Ranks { hosting: self.hosting, way: self.way, staging, events };
        let kernels: Vec<Kernel> = match &o.node.op {
            Op::Conv2d(_) | Op::Conv2dBackwardData(_) | Op::Conv2dBackwardWeights(_) => {
                return Ok(computed(o.convolution(&self.gpu.engines)?));
            }
            Op::Linear | Op::LinearBackwardData | Op::LinearBackwardWeights => {
                return Ok(computed(o.matmul(&self.gpu.matmuls)?));
            }
            Op::Normalize { mean, std } => vec![elementwise::normalize(dtype, o.input(0)?, o.output(0)?, mean, std)],
            Op::BiasBackward => bias::bias_backward(o.rows(0)?, o.input(0)?, o.output(0)?),
            Op::BatchNormStatistics => o.statistics()?,
            &Op::BatchNormNormalize { epsilon, activation, .. } => {
                let (x, by, y) = (o.input(0)?, o.normalizer(1, epsilon)?, o.output(0)?);
                let (weight, bias, residual) = (o.input(3)?, o.input(4)?, o.optional(5));
                let forward = batch_norm::Forward { x, by, weight, bias, residual, y, activation };
                vec![batch_norm::normalize(o.rows(0)?, &forward)]
            }
            &Op::BatchNormReduce { epsilon, activation } => {
                let gradient = o.gradient(epsilon, activation, 4)?;
                batch_norm::reduce(o.rows(0)?, &gradient, o.output(0)?, o.output(1)?)
            }
            &Op::BatchNormBackward { epsilon, statistics, activation, residual } => {
                let (sums, gate) = match statistics {
                    NormStatistics::Batch { count } => {
                        (Some(batch_norm::BatchSums { dbias: o.input(5)?, dweight: o.input(6)?, count }), 7)
                    }
                    NormStatistics::Running => (None, 5),
                };
                let gradient = o.gradient(epsilon, activation, gate)?;
                let dresidual = if residual { Some(o.output(1)?) } else { None };
                vec![batch_norm::backward(o.rows(0)?, &gradient, o.input(4)?, sums, o.output(0)?, dresidual)]
            }
            Op::RunningShare { .. } => o.running_share()?,
            &Op::Activation(activation) => vec![elementwise::activate(dtype, activation, o.input(0)?, o.output(0)?)],
            &Op::ActivationBackward(activation) => {
                vec![elementwise::activate_backward(dtype, activation, o.input(0)?, o.input(1)?, o.output(0)?)]
            }
            Op::MaxPool(window) => {
                vec![pooling::max(dtype, o.shapes()?, window, o.input(0)?, o.output(0)?, o.output(1)?)]
            }
            Op::MaxPoolBackward(window) => {
                vec![pooling::max_backward(dtype, o.shapes_backward()?, window, o.input(0)?, o.input(1)?, o.output(0)?)]
            }
            Op::AvgPool(window) => vec![pooling::average(dtype, o.shapes()?, window, o.input(0)?, o.output(0)?)],
            Op::AvgPoolBackward(window) => {
                vec![pooling::average_backward(dtype, o.shapes_backward()?, window, o.input(0)?, o.output(0)?)]
            }
            Op::AdaptiveAvgPool(_) => vec![pooling::adaptive_average(dtype, o.shapes()?, o.input(0)?, o.output(0)?)],
            Op::AdaptiveAvgPoolBackward(_) => {
                vec![pooling::adaptive_average_backward(dtype, o.shapes_backward()?, o.input(0)?, o.output(0)?)]
            }
            Op::Dropout { probability, seed, layer } => {
                let key = key(*seed, &format!("dropout {layer}"));
                vec![elementwise::dropout(dtype, key, *probability, o.input(0)?, o.input(1)?, o.output(0)?)]
            }
            Op::Add => vec![elementwise::add(dtype, o.input(0)?, o.input(1)?, o.output(0)?)],
            Op::Multiply => vec![elementwise::multiply(dtype, o.input(0)?, o.input(1)?, o.output(0)?)],
            &Op::Map(function) => vec![elementwise::map(dtype, function, o.input(0)?, o.output(0)?)],
            &Op::MapBackward(function) => {
                vec![elementwise::map_backward(dtype, function, o.input(0)?, o.input(1)?, o.output(0)?)]
            }
            Op::Flatten => vec![layout::flatten(dtype, o.input_dimensions(0)?, o.input(0)?, o.output(0)?)],
            Op::FlattenBackward => {
                vec![layout::flatten_backward(dtype, o.output_dimensions(0)?, o.input(0)?, o.output(0)?)]
            }
            &Op::CrossEntropy { scale, smoothing } => {
                let entropy = loss::CrossEntropy { scale, smoothing };
                entropy.forward(o.input(0)?, o.labels(1)?, o.output(0)?, o.output(1)?, o.output(2)?).into()
            }
            &Op::CrossEntropyBackward { scale, smoothing } => {
                let entropy = loss::CrossEntropy { scale, smoothing };
                vec![entropy.backward(o.input(0)?, o.labels(1)?, o.output(0)?)]
            }
            Op::LogSoftmax => vec![samples::log_softmax(o.rows(0)?.channels, o.input(0)?, o.output(0)?)],
            Op::LogSoftmaxBackward => {
                vec![samples::log_softmax_backward(o.rows(0)?.channels, o.input(0)?, o.input(1)?, o.output(0)?)]
            }
            Op::ScaleClasses { factors } => {
                if factors.len() != o.rows(0)?.channels {
                    return Err(o.unsupported());
                }
                vec![samples::scale_classes(factors, o.input(0)?, o.output(0)?, constants)]
            }
            Op::SumClasses => vec![samples::sum_classes(o.input(0)?, o.output(0)?)],
            Op::SumClassesBackward => vec![samples::sum_classes_backward(o.input(0)?, o.output(0)?)],
            Op::Targets => vec![samples::targets(o.labels(0)?, o.output(0)?)],
            &Op::TopKCorrect { k } => vec![samples::top_k_correct(k, o.input(0)?, o.input(1)?, o.output(0)?)],
            &Op::SampleSum { scale } => vec![samples::sample_sum(scale, o.input(0)?, o.input(1)?, o.output(0)?)],
            &Op::SampleSumBackward { scale } => vec![samples::sample_sum_backward(scale, o.input(0)?, o.output(0)?)],
            Op::MaskSamples => vec![samples::mask_samples(o.input(0)?, o.input(1)?, o.output(0)?)],
            &Op::ShareMetrics { shards } => {
                let numbers = (1..o.node.inputs.len()).map(|index| o.input(index)).collect::<Result<Vec<_>, _>>()?;
                let shard = self.places.schedule.shards[o.local].shard;
                metrics::share_metrics(shard, shards, o.input(0)?, &numbers, o.output(0)?)
            }
            &Op::AllReduceStart { bucket } => return ranks.start(o, bucket, Joins::Sum),
            &Op::ReduceStart { bucket } => return ranks.start(o, bucket, Joins::Reduce),
            &Op::AllReduceWait { bucket } | &Op::ReduceWait { bucket } => return ranks.finish(o, bucket),
            Op::Replicate => return ranks.replicate(o),
            Op::CheckFinite => {
                let metrics = o.input(0)?;
                vec![metrics::check_finite(Span { bytes: self.plan.shards * size_of::<f32>(), ..metrics })]
            }
            &Op::GradientNorm { scaled } => o.gradient_norm(scaled)?,
            Op::Scale => vec![loss_scale::scale(o.input(0)?, o.input(1)?, o.output(0)?)],
            Op::Unscale => o.unscale()?,
            &Op::UpdateScale { growth, backoff, interval } => {
                let rule = loss_scale::ScaleRule { growth, backoff, interval };
                vec![loss_scale::update_scale(rule, o.input(0)?, [o.input(1)?, o.input(2)?, o.input(3)?])]
            }
            Op::Update(update) => o.update(update, constants)?,
            &Op::Average { decay, scaled } => o.averages(decay, scaled)?,
            Op::RunningUpdate { .. } => o.running_updates(constants)?,
            Op::SyncStatistics { .. } => return ranks.statistics(o),
            Op::SyncSum => return ranks.sums(o),
        };
        Ok(computed(kernels.into_iter().map(Call::Kernel)))
    }
}
