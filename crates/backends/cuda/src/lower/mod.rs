//! Turns a plan into a sequence of CUDA work: the kernels and calls of libraries that `ops` has for each operation.
//!
//! Nothing here runs on the GPU. The engines that libraries choose for it decide the work around them.

mod engine;
mod operand;
mod ranks;
mod widen;

use std::ops::Range;

use enmasse_device::{Hosting, ShardSchedule};
use enmasse_graph::{FilterOrder, Mode, Per, Phase, Plan, Plans, Precision, ValueId, with_op};

use crate::CudaError;
use crate::check::check;
use crate::driver::Properties;
use crate::gpu::Gpu;
use crate::kernels::step::FAILURE_BYTES;
use crate::ops::OnCuda;
use crate::ops::conv2d::round_weights;
use crate::sequence::{Call, Number, Part, Sequence, StreamKind, Work};
use crate::way::Way;
use crate::work::{Memory, Place, Span};
use engine::chosen;
pub(crate) use engine::engine_of;
pub(crate) use operand::{Operands, Places, arithmetic, unsupported};
pub(crate) use ranks::of_bucket;

/// A call in a stream.
pub(crate) type Placed = (StreamKind, Call);

/// The work of an instruction.
pub(crate) type Lowered = Result<Vec<Placed>, CudaError>;

/// Calls in the stream of the step's own work.
pub(crate) fn computed<C: Into<Call>>(calls: impl IntoIterator<Item = C>) -> Vec<Placed> {
    calls.into_iter().map(|call| (StreamKind::Compute, call.into())).collect()
}

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
    if let Some(node) = plan.instructions.iter().find(|node| !node.op.takes(node.inputs.len(), node.outputs.len())) {
        return Err(unsupported(plan, node));
    }
    let places = Places { plans, schedule };
    let mut lowering = Lowering { plan, places, hosting, gpu, way, sequence: Sequence::default(), narrow: Vec::new() };
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
    let written = places.before_a_step(plan, &lowering.sequence);
    check(&lowering.sequence, &written)
        .map_err(|why| CudaError::Unsupported(format!("a defect of the gpu's plan: {why}")))?;
    Ok(lowering.sequence)
}

/// A piece of an instruction's scratch.
pub(crate) fn scratch(offset: usize, bytes: usize) -> Span {
    Span { place: Place { memory: Memory::Scratch, offset }, bytes }
}

/// A sequence in the making.
pub(crate) struct Lowering<'a> {
    plan: &'a Plan,
    places: Places<'a>,
    pub hosting: &'a Hosting,
    pub gpu: &'a Gpu,
    pub way: Way,
    pub sequence: Sequence,
    /// Narrow gradients that are not f32 yet, and where they go.
    narrow: Vec<[Span; 2]>,
}

impl Lowering<'_> {
    /// Adds the work of a phase: of one local shard, or of several that run each instruction together.
    fn phase(&mut self, phase: Phase, shards: Range<usize>) -> Result<(), CudaError> {
        let start = self.sequence.work.len();
        let mut last = 0;
        for (index, node) in self.plan.instructions.iter().enumerate().filter(|(_, node)| node.phase == phase) {
            if start == self.sequence.work.len() && phase == Phase::Forward {
                let rounding = round_weights(self.plan, &self.places);
                rounding.for_each(|kernel| self.push(index, Call::Kernel(kernel)));
            }
            if self.is_full() {
                self.widen(index);
            }
            // A joint operation is one piece of work for all shards.
            let shards = if node.op.is_joint() { shards.start..shards.start + 1 } else { shards.clone() };
            let chosen = chosen(self.plan, index)?;
            for local in shards {
                let operands = Operands { plan: self.plan, places: self.places, local, node, chosen };
                let calls = with_op!(&node.op, op => op.lower(&operands, self))?;
                calls.into_iter().for_each(|(lane, call)| self.push_to(lane, index, call));
            }
            last = index;
        }
        self.widen(last);
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
        if self.needs_wide(&call) {
            self.widen(instruction);
        }
        let accesses = call.accesses();
        let workspace = match &call {
            Call::Convolution(call) => Some(call.workspace),
            Call::Matmul(call) => Some(call.workspace),
            _ => None,
        };
        for span in accesses.all().chain(workspace).filter(|span| span.place.memory == Memory::Scratch) {
            self.sequence.scratch = self.sequence.scratch.max(span.place.offset + span.bytes);
        }
        for span in accesses.writes {
            let bytes = match span.place.memory {
                Memory::Collectives => &mut self.sequence.collectives,
                Memory::Counters => &mut self.sequence.counters,
                Memory::Narrow => &mut self.sequence.narrow,
                _ => continue,
            };
            *bytes = (*bytes).max(span.place.offset + span.bytes);
        }
        self.sequence.work.push(Work { instruction, lane, call });
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
                let from = self.places.span(plan, value, local);
                let to = self.places.saved(plan, value, local);
                self.push(index, Call::Copy { from, to });
            }
        }
    }
}
