//! The program: state that outlives steps, and the plans bound to memory for the shards that this rank hosts.

mod bound;
mod observed;
mod state;

use std::time::Duration;

use enmasse_comm::Group;
use enmasse_device::{
    DeviceError, Fill, InstructionSpan, Ledger, Program, ProgramTensor, Read, StepInputs, StepMetrics, Ticket, Which,
    check_batch, check_same_state, find_state, find_tensor, from_torch, to_torch,
};
use enmasse_graph::{Arena, Init, Mode, Phase, Plan, Plans};
use enmasse_tensor::AlignedBuffer;

use crate::pool::Threads;
use crate::prepare::KernelOptions;
use bound::Bound;
pub(crate) use bound::memory;
use observed::Observed;

/// Plans bound to memory and threads.
pub(crate) struct CpuProgram {
    plans: Plans,
    threads: Threads,
    kernels: KernelOptions,
    /// Declared before the arenas, because dropping it waits for collectives that use memory.
    bound: Bound,
    /// The arenas that outlive a step.
    state: Vec<(Arena, AlignedBuffer)>,
    ledger: Ledger,
    /// The inputs of the step last begun, with its batch.
    latest: Option<StepInputs>,
    observed: Observed,
}

/// An arena filled with zeros.
fn allocate(arena: Arena, bytes: usize) -> Result<AlignedBuffer, DeviceError> {
    AlignedBuffer::zeroed(bytes).map_err(|_| DeviceError::Memory { arena: arena.to_string(), bytes })
}

impl CpuProgram {
    pub(crate) fn new(
        plans: Plans,
        group: Option<Group>,
        threads: Threads,
        kernels: KernelOptions,
    ) -> Result<Self, DeviceError> {
        let arenas = plans.arenas().into_iter().filter(|&(arena, _)| arena.outlives_step());
        let state = arenas.map(|(arena, bytes)| Ok((arena, allocate(arena, bytes)?)));
        let state = state.collect::<Result<Vec<_>, DeviceError>>()?;
        let bound = Bound::new(&plans, &state, group, threads, kernels)?;
        let mut program = CpuProgram {
            plans,
            threads,
            kernels,
            bound,
            state,
            ledger: Ledger::default(),
            latest: None,
            observed: Observed::default(),
        };
        program.set_buffers();
        Ok(program)
    }

    fn set_buffers(&mut self) {
        for tensor in &self.plans.state {
            if let (Arena::Buffers, Init::Constant(value)) = (tensor.slot.arena, tensor.init) {
                // SAFETY: the slot lies in its arena, and nothing runs.
                unsafe { self.floats(tensor).slice_mut(0, tensor.shape.elements()) }.fill(value);
            }
        }
    }

    /// The plan of the step last begun.
    fn latest_plan(&self) -> Option<&Plan> {
        self.plans.plan(self.ledger.mode()?)
    }

    /// Begins a step, if the batch fits the plan.
    fn begin(&mut self, mode: Mode, inputs: &StepInputs) -> Result<(), DeviceError> {
        let plan = self.plans.plan(mode).ok_or_else(DeviceError::only_evaluates)?;
        check_batch(plan, self.bound.local(), inputs.batch.as_ref())?;
        // A step that was abandoned in the middle may have sums in progress.
        self.bound.drain();
        self.latest = Some(inputs.clone());
        self.ledger.begin(mode);
        Ok(())
    }

    /// Runs phases of the step last begun: some of those that every shard has, or one that all shards share.
    fn run(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<(), DeviceError> {
        let plan = self.plans.plan(mode).ok_or_else(DeviceError::only_evaluates)?;
        match self.bound.run(plan, phases, inputs, &mut self.observed) {
            Ok(()) => {}
            Err(DeviceError::NonFinite { shard, loss }) => self.ledger.fail(shard, loss),
            Err(error) => return Err(error),
        }
        let measured = if mode == Mode::Train { Phase::Reduce } else { Phase::Loss };
        if phases.contains(&measured) {
            self.ledger.measured(self.bound.measure(plan));
        }
        Ok(())
    }
}

impl Program for CpuProgram {
    fn plans(&self) -> &Plans {
        &self.plans
    }

    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        self.bound.drain();
        let tensor = find_state(&self.plans, name, values.len())?;
        // SAFETY: the slot lies in its arena, and nothing runs.
        let stored = unsafe { self.floats(tensor).slice_mut(0, values.len()) };
        from_torch(values, &tensor.shape, tensor.layout, |to, value| stored[to] = value as f32);
        Ok(())
    }

    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError> {
        self.bound.drain();
        let found = find_tensor(&self.plans, self.latest_plan(), name);
        match found.ok_or_else(|| DeviceError::Name(name.into()))? {
            ProgramTensor::State(tensor) => {
                // SAFETY: the slot lies in its arena, and nothing runs.
                let stored = unsafe { self.floats(tensor).slice(0, tensor.shape.elements()) };
                Ok(to_torch(stored, &tensor.shape, tensor.layout))
            }
            ProgramTensor::Gradient { plan, value, layout } => {
                Ok(to_torch(self.bound.read(plan, value, 0), plan.shape(value), layout))
            }
            ProgramTensor::Result { plan, value } => Ok(self.bound.results(plan, value)),
        }
    }

    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        self.bound.drain();
        self.fill_all(which, fill);
        Ok(())
    }

    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        self.bound.drain();
        self.read_all(which, read);
        Ok(())
    }

    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let _pinned = self.bound.pin_caller();
        let mut rest = phases;
        while let Some((&phase, others)) = rest.split_first() {
            if phase == Phase::Forward {
                self.begin(mode, inputs)?;
            }
            self.ledger.go_on(mode, phase)?;
            // Phases of a shard run together; another forward phase begins another step.
            let goes_on = |phase: &&Phase| phase.is_of_a_shard() && **phase != Phase::Forward;
            let more = if phase.is_of_a_shard() { others.iter().take_while(goes_on).count() } else { 0 };
            let (now, later) = rest.split_at(1 + more);
            rest = later;
            if let (false, Some(begun)) = (self.ledger.is_void(), &self.latest) {
                let inputs = StepInputs { batch: begun.batch.clone(), epoch: begun.epoch, ..inputs.clone() };
                self.run(mode, now, &inputs)?;
            }
        }
        self.ledger.latest()
    }

    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError> {
        self.ledger.metrics(ticket)
    }

    fn rejoin(&mut self, plans: Plans, group: Option<Group>) -> Result<(), DeviceError> {
        check_same_state(&self.plans, &plans)?;
        self.bound.drain();
        self.bound = Bound::new(&plans, &self.state, group, self.threads, self.kernels)?;
        (self.plans, self.ledger, self.latest) = (plans, Ledger::default(), None);
        // Sums that did not end may have changed some of them.
        self.fill_all(&|tensor| tensor.slot.arena == Arena::Residuals, &|_, _, values| values.fill(0.0));
        Ok(())
    }

    fn start_profile(&mut self) {
        self.observed.start_totals(&self.plans);
    }

    fn profile(&self, mode: Mode) -> Vec<Duration> {
        self.observed.totals(mode)
    }

    fn start_timeline(&mut self, steps: usize) {
        let instructions = self.plans.train.as_ref().map_or(0, |plan| plan.instructions.len());
        self.observed.start_spans(steps * instructions * self.bound.local());
    }

    fn take_timeline(&mut self) -> Vec<InstructionSpan> {
        self.observed.take_spans()
    }
}
