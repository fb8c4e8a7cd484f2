//! The program: plans bound to the memory of a GPU, and the steps in flight.
//!
//! A sequence of work is bound to addresses. A whole step then becomes one CUDA graph, which is
//! launched again and again.
//!
//! Work goes into one stream, copies of batches into another. While the GPU computes a step, it
//! copies the batch of the next from page-locked memory, so each of two steps has its own inputs
//! and results. The host waits for the GPU only where it reads: the metrics of a step, or a tensor.
//!
//! The learning rate, the step's number and the first loss that was not finite are in the GPU's
//! memory. After such a loss the kernels that change state do nothing until the host has read it.

mod arenas;
mod bound;
mod collectives;
mod exchange;
mod state;
mod step;

use std::sync::Arc;
use std::time::Duration;

use enmasse_comm::{Group, Watch, tree_fold};
use enmasse_device::{
    DeviceError, Fill, Hosting, Ledger, Program, ProgramTensor, Read, ShardSchedule, StepInputs, StepMetrics,
    Summation, Ticket, Which, check_batch, check_same_state, find_state, find_tensor, from_torch, step_metrics,
    to_torch,
};
use enmasse_graph::{Arena, Init, Mode, Phase, Plan, Plans, ValueId};

use crate::CudaError;
use crate::driver::Stream;
use crate::gpu::Gpu;
use crate::kernels::step::StepValues;
use crate::lower::{Places, lower};
use crate::sequence::Sequence;
use crate::way::Way;
use crate::work::{Constants, Memory, Place};
pub(crate) use arenas::Sizes;
use arenas::{ALIGNMENT, Arenas, GRADIENTS, STEPS, State};
pub(crate) use bound::Launch;
use bound::{Prepared, SetStep, StepContext};
use collectives::Collectives;
use exchange::{Exchanges, Ranks};
use step::Step;

/// Plans bound to a GPU. The fields are dropped in this order: streams wait for their work before its memory goes, and the GPU
/// goes last.
pub(crate) struct CudaProgram {
    plans: Plans,
    compute: Stream,
    copies: Stream,
    bound: Bound,
    state: State,
    ledger: Ledger,
    /// Steps begun.
    begun: u64,
    /// Steps begun when the failure was last cleared.
    cleared: u64,
    profile: Option<[Vec<Duration>; 2]>,
    summation: Summation,
    gpu: Arc<Gpu>,
}

/// The part that a program makes anew when it joins another group.
struct Bound {
    schedule: ShardSchedule,
    sequences: Sequences,
    train: Option<Prepared>,
    evaluate: Prepared,
    steps: [Step; STEPS],
    set_steps: [SetStep; STEPS],
    ranks: Ranks,
    arenas: Arenas,
}

/// What a program will do, before it has memory for it.
struct Work {
    schedule: ShardSchedule,
    sequences: Sequences,
    /// The group with whose ranks it exchanges numbers, if there are others.
    group: Option<Group>,
    way: Way,
}

impl Work {
    fn new(plans: &Plans, group: Option<&Group>, gpu: &Gpu, summation: Summation) -> Result<Self, DeviceError> {
        let hosting = Hosting::new(plans, group)?;
        let schedule = ShardSchedule::new(&hosting, plans.train.as_ref());
        let group = group.filter(|_| hosting.map().ranks() > 1).cloned();
        let way = match &group {
            Some(group) => Way::agree(gpu, group, summation)?.0,
            None => Way::Host,
        };
        let sequences = Sequences::new(plans, &hosting, &schedule, (gpu, way))?;
        Ok(Work { schedule, sequences, group, way })
    }
}

/// The work of both plans.
pub(crate) struct Sequences {
    pub train: Option<Sequence>,
    pub evaluate: Sequence,
}

impl Sequences {
    /// The work of plans on a GPU, whose rank exchanges numbers with others in this way.
    pub fn new(
        plans: &Plans,
        hosting: &Hosting,
        schedule: &ShardSchedule,
        (gpu, way): (&Gpu, Way),
    ) -> Result<Self, CudaError> {
        gpu.context.enter()?;
        let lower = |plan: &Plan| lower(plans, plan, hosting, schedule, (gpu, way));
        Ok(Sequences { train: plans.train.as_ref().map(lower).transpose()?, evaluate: lower(&plans.evaluate)? })
    }

    fn all(&self) -> impl Iterator<Item = &Sequence> {
        self.train.iter().chain([&self.evaluate])
    }

    /// The regions of a program that runs them.
    pub fn sizes(&self, plans: &Plans, schedule: &ShardSchedule) -> Sizes {
        let most = |bytes: fn(&Sequence) -> usize| self.all().map(bytes).max().unwrap_or(0);
        let [narrow, scratch] = [most(|sequence| sequence.narrow), most(|sequence| sequence.scratch)];
        let [counters, collectives] = [most(|sequence| sequence.counters), most(|sequence| sequence.collectives)];
        let staging = most(|sequence| sequence.staging);
        let constants = self.all().map(|sequence| sequence.constants.bytes().len().next_multiple_of(ALIGNMENT)).sum();
        Sizes::new(plans, schedule, [narrow, scratch, counters, collectives, constants, staging])
    }

    /// The work of a mode's plan.
    pub fn of_mode(&self, mode: Mode) -> Option<&Sequence> {
        match mode {
            Mode::Train => self.train.as_ref(),
            Mode::Evaluate => Some(&self.evaluate),
        }
    }
}

impl Bound {
    fn new(work: Work, plans: &Plans, gpu: &Gpu, compute: &Stream, state: &State) -> Result<Self, DeviceError> {
        let Work { schedule, sequences, group, way } = work;
        let nccl = match (&group, way) {
            (Some(_), Way::Nccl(_)) => Some(gpu.nccl()?),
            _ => None,
        };
        let arenas = Arenas::new(&gpu.context, &sequences.sizes(plans, &schedule), compute, nccl.as_ref())?;
        let results = sequences.all().map(|sequence| sequence.results).max().unwrap_or(0);
        let steps = [Step::new(gpu, plans, &schedule, results)?, Step::new(gpu, plans, &schedule, results)?];
        let places = [steps[0].results(), steps[1].results()];
        let bind = |mode: Mode, sequence: &Sequence, constants: usize| {
            Prepared::new(mode, sequence, constants, gpu, &arenas, state, places)
        };
        let constants: Vec<&Constants> = sequences.all().map(|sequence| &sequence.constants).collect();
        let of_train = if sequences.train.is_some() { constants[0].bytes().len() } else { 0 };
        let train = sequences.train.as_ref().map(|sequence| bind(Mode::Train, sequence, 0)).transpose()?;
        let evaluate = bind(Mode::Evaluate, &sequences.evaluate, of_train.next_multiple_of(ALIGNMENT))?;
        arenas.fill_constants(compute, &constants)?;
        let numbers = |step: usize| {
            let place = Place { memory: Memory::Step, offset: 0 };
            SetStep::new(gpu, arenas.address(state, step, place)?)
        };
        let set_steps = [numbers(0)?, numbers(1)?];
        let ranks = match (group, &plans.train, &sequences.train) {
            (Some(group), Some(plan), Some(sequence)) if way == Way::Host => {
                Ranks::Host(Exchanges::new(gpu, group, plan, sequence.staging)?)
            }
            (Some(group), Some(_), Some(sequence)) => {
                let failure = arenas.address(state, 0, Place { memory: Memory::Failure, offset: 0 })?;
                let collectives = Collectives::new(gpu, &group, sequence.events, failure)?;
                collectives.register(arenas.region(state, 0, GRADIENTS)?)?;
                Ranks::Nccl(collectives)
            }
            _ => Ranks::Alone,
        };
        Ok(Bound { schedule, sequences, train, evaluate, steps, set_steps, ranks, arenas })
    }
}

impl CudaProgram {
    /// Allocates everything that the plans need on the GPU. Parameters and the optimiser's state are zero.
    pub fn new(plans: Plans, group: Option<&Group>, gpu: Arc<Gpu>, summation: Summation) -> Result<Self, DeviceError> {
        let compute = Stream::new(&gpu.context)?;
        let copies = Stream::new(&gpu.context)?;
        let state = State::new(&gpu.context, &plans, &compute)?;
        let bound = Bound::new(Work::new(&plans, group, &gpu, summation)?, &plans, &gpu, &compute, &state)?;
        let mut program = CudaProgram {
            plans,
            compute,
            copies,
            bound,
            state,
            ledger: Ledger::default(),
            begun: 0,
            cleared: 0,
            profile: None,
            summation,
            gpu,
        };
        program.set_buffers()?;
        Ok(program)
    }

    fn set_buffers(&mut self) -> Result<(), DeviceError> {
        let constants = self.plans.state.iter().filter_map(|tensor| match (tensor.slot.arena, tensor.init) {
            (Arena::Buffers | Arena::LossScale, Init::Constant(value)) => Some((tensor, value)),
            _ => None,
        });
        for (tensor, value) in constants {
            self.state.write(&self.compute, tensor, &vec![value; tensor.shape.elements()])?;
        }
        Ok(())
    }

    /// The plan of the step last begun.
    fn latest_plan(&self) -> Option<&Plan> {
        self.plans.plan(self.ledger.mode()?)
    }

    /// The place among [`STEPS`] of the step last begun.
    fn latest(&self) -> usize {
        (self.begun % STEPS as u64) as usize
    }

    /// Begins a step, if the batch fits the plan: copies the batch, as soon as the step before the last has ended.
    fn begin(&mut self, mode: Mode, inputs: &StepInputs) -> Result<(), DeviceError> {
        let plan = self.plans.plan(mode).ok_or_else(DeviceError::only_evaluates)?;
        let local = self.bound.schedule.shards.len();
        check_batch(plan, local, inputs.batch.as_ref())?;
        // The copy of the latest batch had the time of a step, so this hardly waits; the caller may reuse the memory.
        let latest = self.latest();
        self.bound.steps[latest].release_batch()?;
        let place = (latest + 1) % STEPS;
        self.settle(place)?;
        let plan = self.plans.plan(mode).ok_or_else(DeviceError::only_evaluates)?;
        let Bound { schedule, steps, arenas, .. } = &mut self.bound;
        // Comes first: without it, no step begins.
        let input = arenas.region(&self.state, place, Memory::Arena(Arena::Input))?;
        self.begun += 1;
        let ticket = self.ledger.begin(mode);
        let places = Places { plans: &self.plans, schedule };
        steps[place].begin((ticket, self.begun), plan, &places, inputs, input, &self.copies)?;
        self.compute.wait_for(steps[place].copied())?;
        Ok(())
    }

    /// Puts phases of the step last begun into the stream.
    fn run(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<(), DeviceError> {
        let place = self.latest();
        let StepInputs { epoch, learning_rate, optimizer_step, lookahead, stop, save, .. } = *inputs;
        // Dropout in backward draws as in forward, whatever the caller gives.
        let epoch = self.bound.steps[place].epoch().unwrap_or(epoch);
        let Bound { schedule, train, evaluate, steps, set_steps, ranks, .. } = &mut self.bound;
        schedule.check_phases(mode, phases)?;
        let values = StepValues { epoch, optimizer_step, learning_rate, stop, save, lookahead };
        let launch = set_steps[place].with(&values);
        let prepared = match mode {
            Mode::Train => train.as_mut().ok_or_else(DeviceError::only_evaluates)?,
            Mode::Evaluate => evaluate,
        };
        let connecting = match ranks {
            Ranks::Nccl(collectives) if mode == Mode::Train => {
                // NCCL may exchange buffers with other ranks while it is captured, and a profile waits for each collective.
                let waits = self.profile.is_some() || prepared.captures(place, phases);
                collectives.begin(place, phases, waits)?
            }
            _ => None,
        };
        let mut context = StepContext { gpu: &self.gpu, stream: &self.compute, ranks, step: place };
        // SAFETY: the program owns the regions and the results, and waits for the stream before they go.
        unsafe {
            launch.run(&self.compute)?;
            match &mut self.profile {
                Some(times) => {
                    let times = &mut times[usize::from(mode == Mode::Evaluate)];
                    prepared.profile(&mut context, phases, times)?;
                }
                None => prepared.run(&mut context, phases)?,
            }
        }
        connecting.map_or(Ok(()), Watch::done)?;
        let measured = if mode == Mode::Train { Phase::Reduce } else { Phase::Loss };
        steps[place].submitted(&self.compute, phases.contains(&measured))?;
        Ok(())
    }

    /// Waits for a step, and records how it ended.
    fn settle(&mut self, place: usize) -> Result<(), DeviceError> {
        let Bound { steps, ranks, .. } = &mut self.bound;
        let ended = match ranks {
            Ranks::Nccl(collectives) => collectives.watch(place..place + 1, || steps[place].wait()),
            Ranks::Alone | Ranks::Host(_) => steps[place].wait(),
        };
        let Some(ended) = ended? else { return Ok(()) };
        if let Some(failure) = ended.failure {
            self.ledger.settle(ended.ticket, Err(failure));
            return Ok(());
        }
        let plan = self.plans.plan(ended.mode).ok_or_else(DeviceError::only_evaluates)?;
        let sequence = self.bound.sequences.of_mode(ended.mode).ok_or_else(DeviceError::only_evaluates)?;
        let step = &self.bound.steps[place];
        let local = self.bound.schedule.shards.len();
        let read = |value: ValueId, at: usize| {
            let number = |local| step.number(sequence, value, local, at);
            match ended.mode {
                Mode::Train => number(0),
                Mode::Evaluate => tree_fold(local, &mut |local| number(local), &mut |a, b| a + b).unwrap_or(0.0),
            }
        };
        self.ledger.settle(ended.ticket, Ok(step_metrics(plan, &read)));
        Ok(())
    }

    /// Waits for what other ranks do for steps in flight, before the host waits for the stream without a deadline.
    fn wait_for_ranks(&mut self) -> Result<(), DeviceError> {
        match &mut self.bound.ranks {
            Ranks::Nccl(collectives) => collectives.watch(0..STEPS, || Ok(self.compute.wait()?)),
            Ranks::Alone | Ranks::Host(_) => Ok(()),
        }
    }

    /// Reads a value of the step last begun, for the first local shard or for another.
    fn read(&self, plan: &Plan, value: ValueId, local: usize) -> Result<Vec<f32>, DeviceError> {
        let places = Places { plans: &self.plans, schedule: &self.bound.schedule };
        let span = places.after(plan, value, local);
        let region = self.bound.arenas.region(&self.state, self.latest(), span.place.memory)?;
        let mut bytes = vec![0; span.bytes];
        region.read(&self.compute, span.place.offset, &mut bytes)?;
        Ok(state::floats(&bytes))
    }
}

impl Program for CudaProgram {
    fn plans(&self) -> &Plans {
        &self.plans
    }

    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        self.wait_for_ranks()?;
        let tensor = find_state(&self.plans, name, values.len())?;
        let mut stored = vec![0.0; values.len()];
        from_torch(values, &tensor.shape, tensor.layout, |to, value| stored[to] = value as f32);
        Ok(self.state.write(&self.compute, tensor, &stored)?)
    }

    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError> {
        self.wait_for_ranks()?;
        let found = find_tensor(&self.plans, self.latest_plan(), name);
        match found.ok_or_else(|| DeviceError::Name(name.into()))? {
            ProgramTensor::State(tensor) => {
                Ok(to_torch(&self.state.read(&self.compute, tensor)?, &tensor.shape, tensor.layout))
            }
            ProgramTensor::Gradient { plan, value, layout } => {
                Ok(to_torch(&self.read(plan, value, 0)?, plan.shape(value), layout))
            }
            ProgramTensor::Result { plan, value } => {
                let shards = 0..self.bound.schedule.shards.len();
                let shards = shards.map(|local| self.read(plan, value, local)).collect::<Result<Vec<_>, _>>()?;
                if plan.is_of_samples(value) {
                    return Ok(shards.into_iter().flatten().map(f64::from).collect());
                }
                let number = &mut |local: usize| f64::from(shards[local][0]);
                Ok(vec![tree_fold(shards.len(), number, &mut |a, b| a + b).unwrap_or(0.0)])
            }
        }
    }

    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        self.wait_for_ranks()?;
        for tensor in self.plans.state.iter().filter(|tensor| which(tensor)) {
            let mut values = vec![0.0; tensor.shape.elements()];
            fill(tensor, 0, &mut values);
            self.state.write(&self.compute, tensor, &values)?;
        }
        Ok(())
    }

    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        self.wait_for_ranks()?;
        for (number, tensor) in self.plans.state.iter().enumerate().filter(|(_, tensor)| which(tensor)) {
            read(number, tensor, &self.state.read(&self.compute, tensor)?);
        }
        Ok(())
    }

    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let mut rest = phases;
        while let Some(&phase) = rest.first() {
            if phase == Phase::Forward {
                self.begin(mode, inputs)?;
            }
            self.ledger.go_on(mode, phase)?;
            // Another forward phase begins another step.
            let more = rest[1..].iter().take_while(|phase| **phase != Phase::Forward).count();
            let (now, later) = rest.split_at(1 + more);
            self.run(mode, now, inputs)?;
            rest = later;
        }
        self.ledger.latest()
    }

    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError> {
        let step = (0..STEPS).find_map(|place| Some((place, self.bound.steps[place].number_of(ticket)?)));
        if let Some((place, _)) = step {
            self.settle(place)?;
        }
        let result = self.ledger.metrics(ticket);
        if let (Err(DeviceError::NonFinite { .. }), Some((place, number))) = (&result, step) {
            // The caller knows of the failure, so it voids only the steps begun until now, which are in the stream.
            if number > self.cleared {
                self.bound.arenas.region(&self.state, place, Memory::Failure)?.zero(&self.compute)?;
                self.cleared = self.begun;
            }
        }
        result
    }

    fn rejoin(&mut self, plans: Plans, group: Option<Group>) -> Result<(), DeviceError> {
        check_same_state(&self.plans, &plans)?;
        // A failure of the old group voids its steps.
        let _ = self.wait_for_ranks();
        self.copies.wait()?;
        self.compute.wait()?;
        if let Ranks::Nccl(collectives) = &self.bound.ranks {
            collectives.check_state()?;
        }
        let work = Work::new(&plans, group.as_ref(), &self.gpu, self.summation)?;
        // The GPU may have no room for both. Should the new memory fail, no step begins without it, and none is there to go on.
        self.ledger = Ledger::default();
        // NCCL waits for its graphs.
        self.bound.train = None;
        self.bound.ranks = Ranks::Alone;
        self.bound.arenas.free();
        self.bound = Bound::new(work, &plans, &self.gpu, &self.compute, &self.state)?;
        self.plans = plans;
        Ok(())
    }

    fn start_profile(&mut self) {
        let zero = |plan: &Plan| vec![Duration::ZERO; plan.instructions.len()];
        let train = self.plans.train.as_ref().map(zero).unwrap_or_default();
        self.profile = Some([train, zero(&self.plans.evaluate)]);
    }

    fn profile(&self, mode: Mode) -> Vec<Duration> {
        let times = self.profile.as_ref().map(|times| times[usize::from(mode == Mode::Evaluate)].clone());
        times.unwrap_or_default()
    }
}

impl Drop for CudaProgram {
    fn drop(&mut self) {
        // Work in flight uses the regions and the results. An error has nobody to go to.
        let _ = self.wait_for_ranks();
        let _ = self.copies.wait();
        let _ = self.compute.wait();
    }
}
