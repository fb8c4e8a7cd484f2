//! Plans bound to the shards that a rank hosts: memory of a step, prepared instructions, and the loop that runs them.

use std::sync::Arc;
use std::time::Instant;

use enmasse_comm::{Group, tree_fold};
use enmasse_device::{
    DeviceError, Hosting, Memory, ProgramGroups, ShardSchedule, StepInputs, StepMetrics, step_metrics,
};
use enmasse_graph::{Arena, Mode, Phase, Plan, Plans, StageAction, ValueId};
use enmasse_tensor::AlignedBuffer;

use super::allocate;
use super::observed::Observed;
use crate::affinity::Pinned;
use crate::instruction::{Machine, SentCopy};
use crate::ops::sends;
use crate::pool::{Pool, Threads};
use crate::prepare::{KernelOptions, Preparation, Prepared};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// The part that [`super::CpuProgram`] rebuilds when it joins another group.
pub(super) struct Bound {
    train: Option<Prepared>,
    evaluate: Prepared,
    schedule: ShardSchedule,
    machine: Machine,
    /// Arenas that do not outlive a step, one for each slot of gradients or set of activations.
    arenas: Vec<(Arena, Arc<AlignedBuffer>)>,
    /// Bytes from one arena of gradients, and of activations, to the next.
    strides: [usize; 2],
    /// Results of each local shard, if the next shard overwrites them.
    saved: Vec<ShardResults>,
}

/// A shard's logits, and its numbers in the order of [`Plan::of_samples`], from the step last run.
struct ShardResults {
    logits: Vec<f32>,
    numbers: Vec<f32>,
}

/// The memory of a program with these plans.
pub(crate) fn memory(
    plans: &Plans,
    hosting: &Hosting,
    threads: Threads,
    kernels: KernelOptions,
) -> Result<Memory, DeviceError> {
    let schedule = ShardSchedule::new(hosting, plans.train.as_ref());
    // Preparing touches no operand, so null addresses are enough.
    let (_, _, workspace) = prepare(plans, hosting, &schedule, &|_| std::ptr::null_mut(), kernels)?;
    let state = plans.arenas().into_iter().filter(|&(arena, _)| arena.outlives_step()).map(|(_, bytes)| bytes).sum();
    Ok(Memory {
        state,
        gradients: schedule.slots * plans.arena_bytes(Arena::Gradients),
        activations: schedule.activations() * plans.arena_bytes(Arena::Activations),
        scratch: workspace.bytes(threads.count) + sent_bytes(plans, &schedule).iter().sum::<usize>(),
        library: 0,
        staging: 0,
    })
}

/// The prepared plans for training and for evaluation, in arenas that begin at `start`, and the workspace of both.
fn prepare(
    plans: &Plans,
    hosting: &Hosting,
    schedule: &ShardSchedule,
    start: &dyn Fn(Arena) -> *mut u8,
    kernels: KernelOptions,
) -> Result<(Option<Prepared>, Prepared, Workspace), DeviceError> {
    let map = *hosting.map();
    let strides = strides(plans);
    let prepare = |plan| Preparation { plan, start, kernels, schedule, strides, map }.run();
    let train = plans.train.as_ref().map(prepare).transpose()?;
    let evaluate = prepare(&plans.evaluate)?;
    let workspace = train.iter().fold(evaluate.workspace, |workspace, train| workspace.max(train.workspace));
    Ok((train, evaluate, workspace))
}

/// Bytes of an arena of gradients, and of activations.
fn strides(plans: &Plans) -> [usize; 2] {
    [Arena::Gradients, Arena::Activations].map(|arena| plans.arena_bytes(arena))
}

impl Bound {
    /// Allocates and prepares; `state` holds the arenas that outlive a step.
    pub(super) fn new(
        plans: &Plans,
        state: &[(Arena, AlignedBuffer)],
        group: Option<Group>,
        threads: Threads,
        kernels: KernelOptions,
    ) -> Result<Self, DeviceError> {
        let groups = ProgramGroups::new(plans, group)?;
        let hosting = Hosting::new(plans, groups.replicas.as_ref())?;
        let schedule = ShardSchedule::new(&hosting, plans.train.as_ref());
        let strides = strides(plans);
        let mut arenas = Vec::new();
        for (arena, count) in [(Arena::Gradients, schedule.slots), (Arena::Activations, schedule.activations())] {
            let memory = Arc::new(allocate(arena, count * plans.arena_bytes(arena))?);
            // SAFETY: the buffer owns these bytes, and never moves them.
            let share = |group: &Group| unsafe { group.register_memory(&memory, memory.as_ptr(), memory.len()) };
            groups.replicas.iter().for_each(share);
            arenas.push((arena, memory));
        }
        let start = |arena: Arena| {
            let of_step = arenas.iter().map(|(arena, memory)| (*arena, &**memory));
            let mut all = state.iter().map(|(arena, memory)| (*arena, memory)).chain(of_step);
            all.find(|(other, _)| *other == arena).map_or(std::ptr::null_mut(), |(_, memory)| memory.as_ptr())
        };
        let (train, evaluate, workspace) = prepare(plans, &hosting, &schedule, &start, kernels)?;
        let memory =
            |_| DeviceError::Memory { arena: "threads and workspace".into(), bytes: workspace.bytes(threads.count) };
        let context = Context::new(threads, kernels.isa, workspace).map_err(memory)?;
        let buckets = plans.train.as_ref().map_or(0, |plan| plan.buckets.len());
        let sent = sent_bytes(plans, &schedule).into_iter().map(|bytes| {
            let memory =
                AlignedBuffer::zeroed(bytes).map_err(|_| DeviceError::Memory { arena: "sent values".into(), bytes })?;
            Ok(SentCopy { transfer: None, memory })
        });
        let sent = sent.collect::<Result<_, DeviceError>>()?;
        let machine = Machine { context, groups, handles: (0..buckets).map(|_| None).collect(), sent };
        let logits = plans.evaluate.shape(plans.evaluate.logits).elements();
        // Training has the same number of per-sample values.
        let numbers = plans.evaluate.of_samples().count();
        let saved = schedule.shards.iter().filter(|_| schedule.overwrites());
        let saved = saved.map(|_| ShardResults { logits: vec![0.0; logits], numbers: vec![0.0; numbers] }).collect();
        Ok(Bound { train, evaluate, schedule, machine, arenas, strides, saved })
    }

    /// Number of local shards.
    pub(super) fn local(&self) -> usize {
        self.schedule.shards.len()
    }

    /// Keeps the calling thread on its core while the returned value lives.
    pub(super) fn pin_caller(&self) -> Option<Pinned> {
        self.machine.context.pool.pin_caller()
    }

    /// The threads of the program.
    pub(super) fn pool(&mut self) -> &mut Pool {
        &mut self.machine.context.pool
    }

    /// Waits for sums in progress, after which all memory belongs to the program again. If the group has failed, the
    /// sums end at once, and the group reports the failure.
    pub(super) fn drain(&mut self) {
        self.machine.handles.iter_mut().for_each(|handle| drop(handle.take()));
    }

    /// Runs phases of a step, which all run either for each shard or once for all shards. It allocates nothing.
    pub(super) fn run(
        &mut self,
        plan: &Plan,
        phases: &[Phase],
        inputs: &StepInputs,
        observed: &mut Observed,
    ) -> Result<(), DeviceError> {
        let prepared = match plan.mode {
            Mode::Train => self.train.as_ref().ok_or_else(DeviceError::only_evaluates)?,
            Mode::Evaluate => &self.evaluate,
        };
        let (Some(&first), Some(&last)) = (phases.first(), phases.last()) else { return Ok(()) };
        // The phases are consecutive, and so are their instructions.
        let start = plan.instructions.partition_point(|node| node.phase < first);
        let range = start..plan.instructions.partition_point(|node| node.phase <= last);
        let machine = &mut self.machine;
        let mut execute = |shard: usize, index: usize| {
            // Once a step changes the state, it does so to its end: nothing of the rest waits for others.
            if first < Phase::Check {
                machine.groups.check()?;
            }
            // SAFETY: operands are in the arenas of this program. No other code uses these while the program is
            // borrowed, except for sums in progress, whose memory the plan does not touch.
            let mut run = || unsafe { prepared.shards[shard][index].execute(machine, inputs) };
            if !observed.asks(plan.mode) {
                return run();
            }
            let began = Instant::now();
            run()?;
            observed.ran(plan.mode, shard, index, began);
            Ok(())
        };
        self.schedule.check_phases(plan.mode, phases)?;
        if let (Some(stage), Phase::Backward) = (&plan.stage, last) {
            let backward = plan.instructions.partition_point(|node| node.phase < Phase::Backward);
            for action in &stage.actions {
                match *action {
                    StageAction::Forward(shard) => {
                        (range.start..backward).try_for_each(|index| execute(shard, index))?;
                        save(
                            &mut self.saved,
                            &self.arenas,
                            plan,
                            shard,
                            self.schedule.activations_of(shard) * self.strides[1],
                        );
                    }
                    StageAction::Backward(shard) => {
                        (backward..range.end).try_for_each(|index| execute(shard, index))?
                    }
                }
            }
            return Ok(());
        }
        let shards = if first.is_of_a_shard() { self.schedule.shards.len() } else { 1 };
        if self.schedule.lockstep || shards == 1 {
            for index in range {
                (0..shards).try_for_each(|shard| execute(shard, index))?;
            }
            return Ok(());
        }
        for shard in 0..shards {
            range.clone().try_for_each(|index| execute(shard, index))?;
            save(&mut self.saved, &self.arenas, plan, shard, self.schedule.activations_of(shard) * self.strides[1]);
        }
        Ok(())
    }

    /// The metrics of a step: in training once its sums are complete, in evaluation once the loss is known.
    pub(super) fn measure(&self, plan: &Plan) -> StepMetrics {
        step_metrics(plan, &|id, at| match plan.mode {
            Mode::Train => self.read(plan, id, 0)[at].into(),
            Mode::Evaluate => self.sum(plan, id),
        })
    }

    /// A value of a plan in an arena of the step, for the first local shard, from byte `offset`.
    pub(super) fn read(&self, plan: &Plan, id: ValueId, offset: usize) -> &[f32] {
        read(&self.arenas, plan, id, offset)
    }

    /// Results of the step last run: the logits of all local shards, one after another; any other value summed over them.
    pub(super) fn results(&self, plan: &Plan, id: ValueId) -> Vec<f64> {
        if !plan.is_of_samples(id) {
            return vec![self.sum(plan, id)];
        }
        let values = |shard| self.result(plan, id, shard).iter().map(|&value| value.into());
        (0..self.local()).flat_map(values).collect()
    }

    /// A result with one value per shard, summed over the hosted ones.
    fn sum(&self, plan: &Plan, id: ValueId) -> f64 {
        let value = &mut |shard| f64::from(self.result(plan, id, shard)[0]);
        tree_fold(self.local(), value, &mut |a, b| a + b).unwrap_or(0.0)
    }

    fn result(&self, plan: &Plan, id: ValueId, shard: usize) -> &[f32] {
        match self.saved.get(shard) {
            Some(saved) if id == plan.logits => &saved.logits,
            Some(saved) => {
                let number = plan.of_samples().position(|other| other == id).unwrap_or(0);
                &saved.numbers[number..=number]
            }
            None => self.read(plan, id, self.schedule.activations_of(shard) * self.strides[1]),
        }
    }
}

/// Keeps the results of a shard, whose activations begin at byte `offset`, if another one will overwrite them.
fn save(saved: &mut [ShardResults], arenas: &[(Arena, Arc<AlignedBuffer>)], plan: &Plan, shard: usize, offset: usize) {
    let Some(saved) = saved.get_mut(shard) else { return };
    saved.logits.copy_from_slice(read(arenas, plan, plan.logits, offset));
    let numbers = saved.numbers.iter_mut().zip(plan.of_samples());
    numbers.for_each(|(number, id)| *number = read(arenas, plan, id, offset)[0]);
}

/// The memory of each copy of what a stage sends: for the micro-batches in flight one after another, of each sending instruction of
/// either plan.
fn sent_bytes(plans: &Plans, schedule: &ShardSchedule) -> Vec<usize> {
    let mut most: Vec<usize> = Vec::new();
    for plan in plans.train.iter().chain([&plans.evaluate]) {
        for (number, bytes) in sends(plan).map(|(_, bytes)| bytes).enumerate() {
            match most.get_mut(number) {
                Some(most) => *most = bytes.max(*most),
                None => most.push(bytes),
            }
        }
    }
    most.into_iter().flat_map(|bytes| std::iter::repeat_n(bytes, schedule.activations())).collect()
}

fn read<'a>(arenas: &'a [(Arena, Arc<AlignedBuffer>)], plan: &Plan, id: ValueId, offset: usize) -> &'a [f32] {
    let slot = plan.slot(id);
    let start = arenas.iter().find(|(arena, _)| *arena == slot.arena).map_or(std::ptr::null_mut(), |(_, b)| b.as_ptr());
    let region = Region::<f32>::new(start.wrapping_add(slot.offset + offset).cast(), plan.shape(id).elements());
    // SAFETY: the value lies in its arena, and nothing runs: running instructions borrows the whole program.
    unsafe { region.slice(0, region.len()) }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Collectives in progress use the arenas. Each ends by its group's deadline.
        self.drain();
        self.machine.sent.iter_mut().for_each(|sent| drop(sent.transfer.take()));
    }
}
