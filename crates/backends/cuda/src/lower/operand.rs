//! The operands of an instruction as places on the GPU, for one local shard.

use enmasse_device::ShardSchedule;
use enmasse_graph::{Arena, Node, Plan, Plans, Precision, Scaling, ValueId};
use enmasse_tensor::DType;

use crate::CudaError;
use crate::kernels::operands::Labels;
use crate::kernels::rows::Rows;
use crate::kernels::step::{self, FAILURE_BYTES};
use crate::sequence::Sequence;
use crate::work::{Memory, Place, Span};

/// The error for an instruction that no kernel takes.
pub(crate) fn unsupported(plan: &Plan, node: &Node) -> CudaError {
    CudaError::Unsupported(format!("layer {}: the gpu cannot run {}", node.layer, plan.signature(node)))
}

/// The element type of an instruction's activations, of which this is one, and how it multiplies them.
pub(crate) fn arithmetic(plan: &Plan, node: &Node, id: Option<&ValueId>) -> Result<Precision, CudaError> {
    match id.map(|&id| plan.value(id).dtype) {
        Some(DType::F32) if plan.precision == Precision::Tf32 => Ok(Precision::Tf32),
        Some(DType::F32) => Ok(Precision::F32),
        Some(DType::Bf16) => Ok(Precision::Bf16),
        Some(DType::F16) => Ok(Precision::F16),
        _ => Err(unsupported(plan, node)),
    }
}

/// An instruction, and where its operands are.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    pub plan: &'a Plan,
    pub places: Places<'a>,
    /// The local shard, by its index.
    pub local: usize,
    pub node: &'a Node,
    /// The engine that the plan chooses for it.
    pub chosen: Option<&'a str>,
}

/// Where the values of a plan are on the GPU.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub plans: &'a Plans,
    pub schedule: &'a ShardSchedule,
}

impl Places<'_> {
    /// The place of a value of a local shard.
    pub fn of(&self, plan: &Plan, value: ValueId, local: usize) -> Place {
        let slot = plan.slot(value);
        let stride = self.plans.arena_bytes(slot.arena);
        let before = match slot.arena {
            Arena::Gradients => stride * self.schedule.shards[local].slot,
            Arena::Activations if self.schedule.lockstep => stride * local,
            Arena::Input => stride * local,
            Arena::Activations | Arena::Parameters | Arena::Buffers | Arena::Optimizer(_) => 0,
            Arena::Average | Arena::LossScale | Arena::Residuals | Arena::Teacher | Arena::Cache => 0,
        };
        Place { memory: Memory::Arena(slot.arena), offset: before + slot.offset }
    }

    /// Its bytes.
    pub fn span(&self, plan: &Plan, value: ValueId, local: usize) -> Span {
        let bytes = plan.shape(value).elements() * plan.value(value).dtype.size();
        Span { place: self.of(plan, value, local), bytes }
    }

    /// Bytes of a shard's saved results: its logits, then its numbers in the order of [`Plan::of_samples`].
    pub fn saved_bytes(&self) -> usize {
        let plan = &self.plans.evaluate;
        let floats = plan.shape(plan.logits).elements() + plan.of_samples().count();
        if self.schedule.overwrites() { (floats * size_of::<f32>()).next_multiple_of(Plan::ALIGNMENT) } else { 0 }
    }

    /// Where a result of a shard is saved.
    pub fn saved(&self, plan: &Plan, value: ValueId, local: usize) -> Span {
        let bytes = plan.shape(value).elements() * size_of::<f32>();
        let within = match plan.of_samples().position(|other| other == value) {
            Some(number) => (plan.shape(plan.logits).elements() + number) * size_of::<f32>(),
            None => 0,
        };
        Span { place: Place { memory: Memory::Saved, offset: local * self.saved_bytes() + within }, bytes }
    }

    /// What has contents before each step: state, the batch, gradients that no instruction writes, tables, counters.
    pub fn before_a_step(&self, plan: &Plan, sequence: &Sequence) -> Vec<Span> {
        let whole = |memory, bytes| Span { place: Place { memory, offset: 0 }, bytes };
        let times = |arena: Arena| match arena {
            Arena::Gradients => self.schedule.slots,
            Arena::Input => self.schedule.shards.len(),
            Arena::Activations | Arena::Cache => 0,
            Arena::Parameters | Arena::Buffers | Arena::Optimizer(_) | Arena::Average => 1,
            Arena::LossScale | Arena::Residuals | Arena::Teacher => 1,
        };
        let arenas = plan
            .arenas
            .iter()
            .map(|&(arena, _)| whole(Memory::Arena(arena), times(arena) * self.plans.arena_bytes(arena)));
        let own = [
            whole(Memory::Constants, sequence.constants.bytes().len()),
            whole(Memory::Counters, sequence.counters),
            whole(Memory::Step, step::BYTES),
            whole(Memory::Failure, FAILURE_BYTES),
        ];
        arenas.chain(own).collect()
    }

    /// Where a value of a shard is after a step: a result where it is saved, if it is.
    pub fn after(&self, plan: &Plan, value: ValueId, local: usize) -> Span {
        let is_result = value == plan.logits || plan.of_samples().any(|other| other == value);
        let is_saved = is_result && self.schedule.overwrites();
        if is_saved { self.saved(plan, value, local) } else { self.span(plan, value, local) }
    }
}

impl Operands<'_> {
    pub fn unsupported(&self) -> CudaError {
        unsupported(self.plan, self.node)
    }

    /// The place of a value.
    pub fn span(&self, id: ValueId) -> Span {
        self.places.span(self.plan, id, self.local)
    }

    /// An operand that no instruction of the operation lacks.
    pub fn input(&self, index: usize) -> Span {
        self.span(self.node.inputs[index])
    }

    /// A result that no instruction of the operation lacks.
    pub fn output(&self, index: usize) -> Span {
        self.span(self.node.outputs[index])
    }

    /// An operand that may be left out.
    pub fn optional(&self, index: usize) -> Option<Span> {
        self.node.inputs.get(index).map(|&id| self.span(id))
    }

    /// An operand or a result that may be left out, unless attributes or other operands ask for it.
    pub fn required(&self, id: Option<&ValueId>) -> Result<Span, CudaError> {
        id.map(|&id| self.span(id)).ok_or_else(|| self.unsupported())
    }

    /// The labels, which are the operand at `index`. Of mixtures the other labels and the lambdas follow.
    pub fn labels(&self, index: usize) -> Result<Labels, CudaError> {
        let mixture = match self.optional(index + 1) {
            None => None,
            Some(others) => Some([others, self.required(self.node.inputs.get(index + 2))?]),
        };
        Ok(Labels { own: self.input(index), mixture })
    }

    /// The element type of the instruction's activations, or f32.
    pub fn activations(&self) -> DType {
        let ids = self.node.inputs.iter().chain(&self.node.outputs);
        let mut types = ids.map(|&id| self.plan.value(id).dtype);
        types.find(|dtype| matches!(dtype, DType::Bf16 | DType::F16)).unwrap_or(DType::F32)
    }

    /// The dimensions of the first operand and of the first result.
    pub fn shapes(&self) -> Result<[[usize; 4]; 2], CudaError> {
        Ok([self.input_dimensions(0)?, self.output_dimensions(0)?])
    }

    /// The same of the instruction whose gradient this is.
    pub fn shapes_backward(&self) -> Result<[[usize; 4]; 2], CudaError> {
        Ok([self.output_dimensions(0)?, self.input_dimensions(0)?])
    }

    /// The dimensions of a feature map `[N,H,W,C]`; a matrix is a feature map of one pixel, and tokens are
    /// a column.
    fn dimensions(&self, id: ValueId) -> Result<[usize; 4], CudaError> {
        match self.plan.shape(id)[..] {
            [n, h, w, c] => Ok([n, h, w, c]),
            [n, t, c] => Ok([n, t, 1, c]),
            [n, c] => Ok([n, 1, 1, c]),
            [n] => Ok([n, 1, 1, 1]),
            _ => Err(self.unsupported()),
        }
    }

    pub fn input_dimensions(&self, index: usize) -> Result<[usize; 4], CudaError> {
        self.dimensions(self.node.inputs[index])
    }

    pub fn output_dimensions(&self, index: usize) -> Result<[usize; 4], CudaError> {
        self.dimensions(self.node.outputs[index])
    }

    /// The size of an operand as rows of channels.
    pub fn rows(&self, index: usize) -> Result<Rows, CudaError> {
        let [n, h, w, channels] = self.input_dimensions(index)?;
        Ok(Rows { rows: n * h * w, channels, dtype: self.activations() })
    }

    /// A range of the gradient arena in a slot.
    pub fn gradient_range(&self, slot: usize, offset: usize, bytes: usize) -> Span {
        let before = slot * self.places.plans.arena_bytes(Arena::Gradients);
        Span { place: Place { memory: Memory::Arena(Arena::Gradients), offset: before + offset }, bytes }
    }

    /// The gradients of a node, which are adjacent and come before its `others` last operands.
    pub fn gradients(&self, others: usize) -> Option<Span> {
        let gradients = self.node.inputs.get(..self.node.inputs.len().checked_sub(others)?)?;
        Some(self.gradient_range(0, 0, self.plan.adjacent_gradients(gradients)?))
    }

    pub fn scaling(&self, Scaling { unscale, skipped_steps }: Scaling<ValueId>) -> Scaling<Span> {
        Scaling { unscale: self.span(unscale), skipped_steps: self.span(skipped_steps) }
    }
}
