//! The program: a plan's arenas, its prepared instructions, and the loop that runs them.

mod state;

use std::time::{Duration, Instant};

use enmasse_comm::Group;
use enmasse_device::{DeviceError, Fill, Program, Read, StepInputs, StepMetrics, Ticket, Which};
use enmasse_graph::{Arena, Init, Layout, Mode, Phase, Plan, Plans, Role, Slot, ValueId};
use enmasse_tensor::{AlignedBuffer, Shape};

use crate::instruction::{Machine, StepValues};
use crate::pool::Threads;
use crate::prepare::{KernelOptions, Preparation, Prepared};
use crate::region::Region;
use crate::scratch::{Context, Scratch};

/// One step: all submissions from one forward phase to the next.
#[derive(Clone, Copy, Debug)]
struct Step {
    mode: Mode,
    number: u64,
    values: StepValues,
    metrics: Option<StepMetrics>,
    /// The shard whose loss was not finite, with that loss: nothing of this step runs any more.
    failure: Option<(usize, f64)>,
}

/// Plans bound to memory and threads.
pub(crate) struct CpuProgram {
    plans: Plans,
    train: Option<Prepared>,
    evaluate: Prepared,
    /// Before the arenas, because dropping it waits for collectives that use them.
    machine: Machine,
    arenas: Vec<(Arena, AlignedBuffer)>,
    /// The step last begun, and the one before.
    steps: [Option<Step>; 2],
    profile: Option<Profile>,
}

/// How long each instruction has run, of the plans for training and for evaluation.
struct Profile {
    train: Vec<Duration>,
    evaluate: Vec<Duration>,
}

/// Prepares the plans for arenas at given places, and states the scratch they need together.
pub(crate) fn prepare(
    plans: &Plans,
    arena: &dyn Fn(Arena) -> *mut u8,
    options: KernelOptions,
    shard: usize,
) -> Result<(Option<Prepared>, Prepared, Scratch), DeviceError> {
    let run = |plan: &Plan| Preparation::of(plan, arena, options, shard).run();
    let train = plans.train.as_ref().map(run).transpose()?;
    let evaluate = run(&plans.evaluate)?;
    let scratch = train.iter().fold(evaluate.scratch, |scratch, train| scratch.max(train.scratch));
    Ok((train, evaluate, scratch))
}

impl CpuProgram {
    pub(crate) fn new(
        plans: Plans,
        group: Option<Group>,
        threads: Threads,
        options: KernelOptions,
    ) -> Result<Self, DeviceError> {
        let world_size = group.as_ref().map_or(1, Group::world_size);
        // Evaluation has no collectives: any number of ranks may share it out.
        let shards = plans.train.as_ref().map_or(world_size, |plan| plan.shards);
        if shards != world_size {
            let reason =
                format!("the plan has {shards} shards, but there are {world_size} ranks: each hosts one shard");
            return Err(DeviceError::Unsupported(reason));
        }
        let mut arenas = Vec::new();
        for (arena, bytes) in plans.arenas() {
            let memory = |_| DeviceError::Memory { arena: arena.to_string(), bytes };
            arenas.push((arena, AlignedBuffer::zeroed(bytes).map_err(memory)?));
        }
        let place =
            |arena: Arena| arenas.iter().find(|(a, _)| *a == arena).map_or(std::ptr::null_mut(), |(_, b)| b.as_ptr());
        let shard = group.as_ref().map_or(0, Group::rank);
        let (train, evaluate, scratch) = prepare(&plans, &place, options, shard)?;
        let memory =
            |_| DeviceError::Memory { arena: "threads and scratch".into(), bytes: scratch.bytes(threads.count) };
        let context = Context::new(threads, options.isa, scratch).map_err(memory)?;
        let buckets = plans.train.as_ref().map_or(0, |plan| plan.buckets.len());
        let machine = Machine { context, group, handles: (0..buckets).map(|_| None).collect() };
        let mut program = CpuProgram { plans, train, evaluate, machine, arenas, steps: [None, None], profile: None };
        program.set_buffers();
        Ok(program)
    }

    fn set_buffers(&mut self) {
        for tensor in &self.plans.state {
            if let (Arena::Buffers, Init::Constant(value)) = (tensor.slot.arena, tensor.init) {
                // SAFETY: the slot lies in its arena, and nothing runs.
                unsafe { self.floats(tensor.slot, &tensor.shape).slice_mut(0, tensor.shape.elements()) }.fill(value);
            }
        }
    }

    fn arena(&self, arena: Arena) -> *mut u8 {
        self.arenas.iter().find(|(a, _)| *a == arena).map_or(std::ptr::null_mut(), |(_, buffer)| buffer.as_ptr())
    }

    fn floats(&self, slot: Slot, shape: &Shape) -> Region<f32> {
        Region::new(self.arena(slot.arena).wrapping_add(slot.offset).cast(), shape.elements())
    }

    /// The memory of a value of a plan.
    fn region<T>(&self, plan: &Plan, id: ValueId) -> Region<T> {
        let slot = plan.slot(id);
        Region::new(self.arena(slot.arena).wrapping_add(slot.offset).cast(), plan.shape(id).elements())
    }

    fn read(&self, plan: &Plan, id: ValueId) -> &[f32] {
        let region = self.region(plan, id);
        // SAFETY: the value lies in its arena; `submit` takes `&mut self`, so nothing runs meanwhile.
        unsafe { region.slice(0, region.len()) }
    }

    /// Where a tensor that is not state lies: gradients, and results of the step last begun.
    fn find(&self, name: &str) -> Option<(&Plan, ValueId)> {
        if name.starts_with("gradient.") {
            let plan = self.plans.train.as_ref()?;
            let named =
                |value: &enmasse_graph::Value| value.name == name && matches!(value.role, Role::Gradient { .. });
            return Some((plan, ValueId(plan.values.iter().position(named)?)));
        }
        let plan = self.plans.plan(self.steps[0]?.mode)?;
        let id = match name {
            "logits" => plan.logits,
            "loss" => plan.loss,
            "correct" => plan.correct,
            _ => return None,
        };
        Some((plan, id))
    }

    /// Checks a batch against the plan and copies it to where the instructions read it.
    fn begin(&mut self, mode: Mode, inputs: &StepInputs) -> Result<(), DeviceError> {
        let plan = self.plans.plan(mode).ok_or_else(not_compiled)?;
        let sizes = [
            ("image bytes", inputs.images.len(), plan.shape(plan.images).elements()),
            ("labels", inputs.labels.len(), plan.batch),
            ("sample indices", inputs.sample_indices.len(), plan.batch),
        ];
        if let Some((what, found, expected)) = sizes.into_iter().find(|(_, found, expected)| found != expected) {
            let batch = plan.batch;
            return Err(DeviceError::Batch(format!("{found} {what}, but {batch} samples take {expected}")));
        }
        let class = |label: &&i32| usize::try_from(**label).is_ok_and(|label| label >= plan.classes);
        if let Some(label) = inputs.labels.iter().find(class) {
            return Err(DeviceError::Batch(format!("label {label} is none of the {} classes", plan.classes)));
        }
        let images = self.region::<u8>(plan, plan.images);
        let labels = self.region::<i32>(plan, plan.labels);
        let samples = self.region::<u64>(plan, plan.sample_indices);
        // SAFETY: the values lie in the input arena, as large as checked above, and nothing runs.
        unsafe {
            images.slice_mut(0, inputs.images.len()).copy_from_slice(inputs.images);
            labels.slice_mut(0, inputs.labels.len()).copy_from_slice(inputs.labels);
            samples.slice_mut(0, inputs.sample_indices.len()).copy_from_slice(inputs.sample_indices);
        }
        let number = self.steps[0].map_or(0, |step| step.number) + 1;
        let values = StepValues { epoch: inputs.epoch, ..StepValues::default() };
        self.steps = [Some(Step { mode, number, values, metrics: None, failure: None }), self.steps[0]];
        Ok(())
    }

    /// Runs the instructions of one phase. This loop is the step: it allocates nothing.
    fn run(&mut self, mode: Mode, phase: usize, values: &StepValues) -> Result<(), DeviceError> {
        let prepared = match mode {
            Mode::Train => self.train.as_ref().ok_or_else(not_compiled)?,
            Mode::Evaluate => &self.evaluate,
        };
        let mut times = self.profile.as_mut().map(|profile| match mode {
            Mode::Train => &mut profile.train,
            Mode::Evaluate => &mut profile.evaluate,
        });
        for index in prepared.phases[phase].clone() {
            if let Some(group) = &self.machine.group {
                group.check()?;
            }
            // SAFETY: operands lie in the arenas of this program, which nobody else uses while it is borrowed.
            let mut run = || unsafe { prepared.instructions[index].execute(&mut self.machine, values) };
            match &mut times {
                None => run()?,
                Some(times) => {
                    let began = Instant::now();
                    run()?;
                    times[index] += began.elapsed();
                }
            }
        }
        Ok(())
    }

    /// What a step measured, once its sum over shards is complete; evaluation has no collectives.
    fn measure(&self, mode: Mode) -> Option<StepMetrics> {
        let plan = self.plans.plan(mode)?;
        match plan.metrics {
            Some(metrics) => {
                let (losses, rest) = self.read(plan, metrics).split_at(plan.shards);
                let loss = enmasse_comm::tree_fold(plan.shards, &mut |s| f64::from(losses[s]), &mut |a, b| a + b)?;
                Some(StepMetrics { loss, correct: rest[0] as u64, stop: rest[1] > 0.0 })
            }
            None => {
                let value = |id| self.read(plan, id)[0];
                let (loss, correct) = (value(plan.loss).into(), value(plan.correct) as u64);
                Some(StepMetrics { loss, correct, stop: false })
            }
        }
    }
}

fn not_compiled() -> DeviceError {
    DeviceError::Unsupported("the program was compiled for evaluation alone".into())
}

impl Program for CpuProgram {
    fn plans(&self) -> &Plans {
        &self.plans
    }

    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        let tensor = self.plans.find(name).ok_or_else(|| DeviceError::Name(name.into()))?;
        let expected = tensor.shape.elements();
        if values.len() != expected {
            return Err(DeviceError::Size { name: name.into(), expected, found: values.len() });
        }
        // SAFETY: the slot lies in its arena, and nothing runs.
        let stored = unsafe { self.floats(tensor.slot, &tensor.shape).slice_mut(0, expected) };
        tensor.layout.for_each(&tensor.shape, |to, from| stored[to] = values[from] as f32);
        Ok(())
    }

    fn store(&self, name: &str) -> Result<Vec<f64>, DeviceError> {
        if let Some(tensor) = self.plans.find(name) {
            // SAFETY: the slot lies in its arena; `submit` takes `&mut self`, so nothing runs meanwhile.
            let stored = unsafe { self.floats(tensor.slot, &tensor.shape).slice(0, tensor.shape.elements()) };
            return Ok(to_torch(stored, &tensor.shape, tensor.layout));
        }
        let (plan, id) = self.find(name).ok_or_else(|| DeviceError::Name(name.into()))?;
        let layout = match plan.value(id).role {
            Role::Gradient { parameter } => self.plans.find(&plan.value(parameter).name).map(|tensor| tensor.layout),
            _ => None,
        };
        Ok(to_torch(self.read(plan, id), plan.shape(id), layout.unwrap_or(Layout::Plain)))
    }

    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        self.fill_all(which, fill);
        Ok(())
    }

    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        self.read_all(which, read);
        Ok(())
    }

    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        let _pinned = self.machine.context.pool.pin_caller();
        for &phase in phases {
            if phase == Phase::Forward {
                self.begin(mode, inputs)?;
            }
            let Some(mut step) = self.steps[0].filter(|step| step.mode == mode) else {
                let reason = format!("phase {} goes on with a forward phase of its mode", phase.name());
                return Err(DeviceError::Unsupported(reason));
            };
            if step.failure.is_some() {
                continue;
            }
            step.values.learning_rate = inputs.learning_rate;
            step.values.optimizer_step = inputs.optimizer_step;
            step.values.stop = inputs.stop;
            let index = Phase::ALL.iter().position(|&p| p == phase).unwrap_or(0);
            match self.run(mode, index, &step.values) {
                Ok(()) => {}
                Err(DeviceError::NonFinite { shard, loss }) => step.failure = Some((shard, loss)),
                Err(error) => return Err(error),
            }
            let measured = if mode == Mode::Train { Phase::Reduce } else { Phase::Loss };
            if phase == measured {
                step.metrics = self.measure(mode);
            }
            self.steps[0] = Some(step);
        }
        Ok(Ticket(self.steps[0].map_or(0, |step| step.number)))
    }

    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError> {
        let step = self.steps.iter().flatten().find(|step| step.number == ticket.0);
        let Some(step) = step else {
            return Err(DeviceError::Unsupported(format!("step {} is not among the last two", ticket.0)));
        };
        if let Some((shard, loss)) = step.failure {
            return Err(DeviceError::NonFinite { shard, loss });
        }
        let unknown = || DeviceError::Unsupported("the step has not yet run the phases that measure it".into());
        step.metrics.ok_or_else(unknown)
    }

    fn start_profile(&mut self) {
        let zero = |prepared: &Prepared| vec![Duration::ZERO; prepared.instructions.len()];
        let train = self.train.as_ref().map(zero).unwrap_or_default();
        self.profile = Some(Profile { train, evaluate: zero(&self.evaluate) });
    }

    fn profile(&self, mode: Mode) -> Vec<Duration> {
        let times = self.profile.as_ref().map(|profile| match mode {
            Mode::Train => &profile.train,
            Mode::Evaluate => &profile.evaluate,
        });
        times.cloned().unwrap_or_default()
    }
}

fn to_torch(stored: &[f32], shape: &Shape, layout: Layout) -> Vec<f64> {
    let mut values = vec![0.0; stored.len()];
    layout.for_each(shape, |from, to| values[to] = f64::from(stored[from]));
    values
}

impl Drop for CpuProgram {
    fn drop(&mut self) {
        // Collectives under way use the arenas: dropping a handle waits for its end.
        self.machine.handles.clear();
    }
}
