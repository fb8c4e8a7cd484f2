//! Checks that the places of a plan's values are safe: the oracle of the memory pass.
//!
//! The reference device ignores slots, so it cannot notice that two values overlap. This check goes through the
//! instructions and tracks which values are intact in every arena.

use std::collections::HashMap;
use std::ops::Range;

use enmasse_graph::ops::{
    AllReduceStart, AllReduceWait, ReduceScatterStart, ReduceScatterWait, ReduceStart, ReduceWait,
};
use enmasse_graph::{Arena, Bucket, Node, Op, Plan, Role, Update, ValueId};
use thiserror::Error;

/// An instruction that would not find a value, or would destroy one that is still needed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{place}: %{} {name} {problem}", value.0)]
pub struct UnsafeAliasing {
    /// The instruction, such as `instruction 12 (conv2d of layer1.0.conv1)`, or `before the step` or `after the step`.
    pub place: String,
    /// The affected value.
    pub value: ValueId,
    /// The value's name.
    pub name: String,
    /// The problem with its place.
    pub problem: Problem,
}

/// A problem with a value's place at some instruction.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// It is read before any instruction has written it.
    #[error("is read before anything is written to it")]
    Unwritten,
    /// It is read after this value was written over it.
    #[error("is read after %{} was written over it", .0.0)]
    Overwritten(ValueId),
    /// It is written over this operand of the same instruction, which devices need not support.
    #[error("is written over the operand %{}", .0.0)]
    OverOperand(ValueId),
    /// It shares bytes with this value: both are results of one instruction, or must exist from the start.
    #[error("shares bytes with %{}", .0.0)]
    Shared(ValueId),
    /// It is written by a second instruction.
    #[error("is written a second time")]
    Rewritten,
    /// It ends after the end of its arena, or its start is not aligned.
    #[error("is at bytes {start}..{end} of the {arena} arena: it is not aligned, or ends after the end of the arena")]
    Misplaced {
        /// The arena.
        arena: Arena,
        /// First byte.
        start: usize,
        /// The index after the last byte.
        end: usize,
    },
    /// It is read or written while the sum of its bucket is in progress, which is the one with this number.
    #[error("is used while bucket {0} is being summed")]
    InFlight(usize),
    /// It is summed with the bucket with this number, whose range does not include it.
    #[error("is summed with bucket {0}, but does not lie in its range")]
    OutsideBucket(usize),
    /// The number of an update's operands does not match the state that its optimiser keeps.
    #[error("is the first of operands that are not gradients, parameters and the state of the update's optimiser")]
    Operands,
    /// An update changes elements outside its operands, or changes elements twice.
    #[error(
        "is the first parameter of an update whose range {start}..{end} is outside its operands, or is updated twice"
    )]
    OutsideUpdate {
        /// First f32 element of the range.
        start: usize,
        /// The index after its last element.
        end: usize,
    },
    /// It is a gradient or optimiser state, and does not lie at the offset of its parameter among the trainable ones.
    #[error("does not lie at the offset of its parameter %{} among the trainable ones", .0.0)]
    Displaced(ValueId),
}

/// Checks that the places of a plan's values are safe:
///
/// - every read finds the value intact,
/// - no instruction writes over its own operands except where [`Op::in_place`] allows it,
/// - no instruction uses a bucket in flight,
/// - updates change only their operands,
/// - gradients and optimiser state lie at the offsets of their parameters,
/// - every value is aligned and inside its arena,
/// - the values that are read after the step are still intact.
///
/// # Errors
/// The first value whose place is not safe.
pub fn aliasing_is_safe(plan: &Plan) -> Result<(), UnsafeAliasing> {
    let mut memory = Memory::new(plan);
    memory.start()?;
    for (index, node) in plan.instructions.iter().enumerate() {
        memory.place = format!("instruction {index} ({} of {})", node.op.name(), node.layer);
        memory.execute(node)?;
    }
    memory.place = "after the step".into();
    let gradients = plan.values.iter().enumerate().filter(|(_, value)| matches!(value.role, Role::Gradient { .. }));
    let measured = plan.measured.iter().map(|metric| metric.value);
    let results = [plan.logits, plan.loss].into_iter().chain(plan.correct).chain(measured);
    let results = results.chain(plan.metrics).chain(plan.gradient_norm());
    results.chain(gradients.map(|(index, _)| ValueId(index))).try_for_each(|id| memory.read(id))
}

/// The contents of the arenas at some point of the plan.
struct Memory<'a> {
    plan: &'a Plan,
    place: String,
    /// Values that are intact.
    contents: Vec<ValueId>,
    /// For each overwritten value, the value that overwrote it.
    destroyed: HashMap<ValueId, ValueId>,
    /// Values that some instruction has written.
    written: Vec<bool>,
    /// Buckets whose sums are in progress.
    in_flight: Vec<usize>,
}

impl<'a> Memory<'a> {
    fn new(plan: &'a Plan) -> Self {
        let written = vec![false; plan.values.len()];
        let place = "before the step".into();
        Memory { plan, place, contents: Vec::new(), destroyed: HashMap::new(), written, in_flight: Vec::new() }
    }

    /// Puts in place the values that exist before the first instruction: inputs, state, and gradients that no instruction
    /// writes, which are always zero.
    fn start(&mut self) -> Result<(), UnsafeAliasing> {
        let mut outputs = vec![false; self.plan.values.len()];
        for id in self.plan.instructions.iter().flat_map(|node| &node.outputs) {
            outputs[id.0] = true;
        }
        for (index, value) in self.plan.values.iter().enumerate() {
            let id = ValueId(index);
            if let Role::Gradient { parameter } | Role::Optimizer { parameter, .. } = value.role {
                let slot = self.plan.slot(id);
                let trainable = self.plan.trainable * value.dtype.size();
                if slot.offset != self.plan.slot(parameter).offset || self.bytes(id).end > trainable {
                    return Err(self.error(id, Problem::Displaced(parameter)));
                }
            }
            let resident = match value.role {
                Role::Input
                | Role::Parameter(_)
                | Role::Buffer { .. }
                | Role::Optimizer { .. }
                | Role::Average { .. }
                | Role::LossScale { .. }
                | Role::Residual { .. }
                | Role::Teacher { .. } => true,
                Role::Gradient { .. } => !outputs[index],
                Role::Activation | Role::Carried => false,
            };
            if resident {
                if let Some(&other) = self.contents.iter().find(|&&other| self.overlap(id, other)) {
                    return Err(self.error(id, Problem::Shared(other)));
                }
                self.write(id)?;
            }
        }
        Ok(())
    }

    fn execute(&mut self, node: &Node) -> Result<(), UnsafeAliasing> {
        if let Op::AllReduceWait(AllReduceWait { bucket })
        | Op::ReduceScatterWait(ReduceScatterWait { bucket })
        | Op::ReduceWait(ReduceWait { bucket }) = node.op
        {
            self.in_flight.retain(|&other| other != bucket);
        }
        node.inputs.iter().try_for_each(|&id| self.read(id))?;
        let through_cache = self.through_cache(node);
        through_cache.iter().try_for_each(|&id| self.read(id))?;
        for (position, &output) in node.outputs.iter().enumerate() {
            let allowed = node.op.in_place(node.inputs.len()).filter(|&(allowed, _)| allowed == position);
            for (i, &operand) in node.inputs.iter().enumerate() {
                // In place means exactly the same bytes, not bytes that are a few elements apart.
                let in_place =
                    allowed.is_some_and(|(_, input)| input == i) && self.bytes(output) == self.bytes(operand);
                if self.overlap(output, operand) && !in_place {
                    return Err(self.error(output, Problem::OverOperand(operand)));
                }
            }
            if let Some(&operand) = through_cache.iter().find(|&&operand| self.overlap(output, operand)) {
                return Err(self.error(output, Problem::OverOperand(operand)));
            }
            if let Some(&other) = node.outputs[..position].iter().find(|&&other| self.overlap(output, other)) {
                return Err(self.error(output, Problem::Shared(other)));
            }
        }
        for index in node.op.changes(node.inputs.len()) {
            self.write(node.inputs[index])?;
        }
        for &output in &node.outputs {
            if std::mem::replace(&mut self.written[output.0], true) {
                return Err(self.error(output, Problem::Rewritten));
            }
            self.write(output)?;
        }
        match &node.op {
            &Op::AllReduceStart(AllReduceStart { bucket })
            | &Op::ReduceScatterStart(ReduceScatterStart { bucket })
            | &Op::ReduceStart(ReduceStart { bucket }) => self.start_sum(node, bucket),
            Op::Update(update) => self.check_update(node, update),
            _ => Ok(()),
        }
    }

    /// What an instruction reads to compute operands that are not stored.
    fn through_cache(&self, node: &Node) -> Vec<ValueId> {
        let mut found = Vec::new();
        for id in node.inputs.iter().filter(|&&id| self.plan.slot(id).arena == Arena::Cache) {
            let producer = self.plan.instructions.iter().find(|node| node.outputs.contains(id));
            if let Some(producer) = producer {
                found.extend(&producer.inputs);
                found.extend(self.through_cache(producer));
            }
        }
        found
    }

    /// Checks that the ranges of an update, which it changes, are covered by its operands and do not overlap.
    fn check_update(&self, node: &Node, update: &Update) -> Result<(), UnsafeAliasing> {
        let Some(operands) = update.operands(&node.inputs) else {
            let first = node.inputs.first().copied().unwrap_or(self.plan.loss);
            return Err(self.error(first, Problem::Operands));
        };
        let mut free = 0;
        for range in &update.ranges {
            let mut covered = range.start * 4;
            let end = range.end() * 4;
            let twice = covered < free;
            // Parameters are in the order of the arena, like gradients. The padding of a parameter belongs to it.
            for bytes in operands.parameters.iter().map(|&id| self.bytes(id)) {
                if bytes.contains(&covered) {
                    covered = bytes.end.next_multiple_of(Plan::ALIGNMENT);
                }
            }
            if twice || covered < end {
                let problem = Problem::OutsideUpdate { start: range.start, end: range.end() };
                return Err(self.error(operands.parameters[0], problem));
            }
            free = end;
        }
        Ok(())
    }

    fn start_sum(&mut self, node: &Node, bucket: usize) -> Result<(), UnsafeAliasing> {
        let range = self.plan.buckets.get(bucket).map_or(0..0, Bucket::bytes);
        for &id in &node.inputs {
            let bytes = self.bytes(id);
            let inside = range.start <= bytes.start && bytes.end <= range.end;
            if !inside || self.plan.slot(id).arena != Arena::Gradients {
                return Err(self.error(id, Problem::OutsideBucket(bucket)));
            }
        }
        self.in_flight.push(bucket);
        Ok(())
    }

    fn read(&mut self, id: ValueId) -> Result<(), UnsafeAliasing> {
        self.touch(id)?;
        if self.contents.contains(&id) {
            return Ok(());
        }
        let problem = self.destroyed.get(&id).map_or(Problem::Unwritten, |&by| Problem::Overwritten(by));
        Err(self.error(id, problem))
    }

    fn write(&mut self, id: ValueId) -> Result<(), UnsafeAliasing> {
        self.touch(id)?;
        let bytes = self.bytes(id);
        let arena = self.plan.slot(id).arena;
        if !bytes.start.is_multiple_of(Plan::ALIGNMENT) || bytes.end > self.plan.arena_bytes(arena) {
            return Err(self.error(id, Problem::Misplaced { arena, start: bytes.start, end: bytes.end }));
        }
        let (gone, kept) = std::mem::take(&mut self.contents).into_iter().partition(|&other| self.overlap(id, other));
        self.contents = kept;
        self.contents.push(id);
        let gone: Vec<ValueId> = gone;
        self.destroyed.extend(gone.into_iter().map(|other| (other, id)));
        Ok(())
    }

    /// Refuses the use of a value in a bucket in flight, which belongs to the collective.
    fn touch(&self, id: ValueId) -> Result<(), UnsafeAliasing> {
        let bytes = self.bytes(id);
        let inside = |&&bucket: &&usize| {
            let range = self.plan.buckets[bucket].bytes();
            bytes.start < range.end && range.start < bytes.end
        };
        let in_arena = self.plan.slot(id).arena == Arena::Gradients;
        match self.in_flight.iter().find(inside).filter(|_| in_arena) {
            Some(&bucket) => Err(self.error(id, Problem::InFlight(bucket))),
            None => Ok(()),
        }
    }

    fn bytes(&self, id: ValueId) -> Range<usize> {
        let (slot, value) = (self.plan.slot(id), self.plan.value(id));
        let bytes = if slot.arena == Arena::Cache { 0 } else { value.shape.elements() * value.dtype.size() };
        slot.offset..slot.offset + bytes
    }

    fn overlap(&self, a: ValueId, b: ValueId) -> bool {
        let (x, y) = (self.bytes(a), self.bytes(b));
        self.plan.slot(a).arena == self.plan.slot(b).arena && x.start < y.end && y.start < x.end
    }

    fn error(&self, value: ValueId, problem: Problem) -> UnsafeAliasing {
        UnsafeAliasing { place: self.place.clone(), value, name: self.plan.value(value).name.clone(), problem }
    }
}
