//! A sequence bound to addresses: kernels with the bytes of their arguments, engines, and graphs of whole steps.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use enmasse_device::DeviceError;
use enmasse_graph::{Mode, Phase};

use super::arenas::{Arenas, STEPS, State};
use super::collectives::{self, Collectives};
use super::exchange::{BoundExchange, Ranks};
use crate::CudaError;
use crate::cublas_lt::MatmulPlan;
use crate::cudnn::ConvolutionPlan;
use crate::driver::{Function, Graph, Stream, Timestamp};
use crate::gpu::Gpu;
use crate::kernels::step::{StepValues, change_step, set_step};
use crate::nccl::Operation;
use crate::operands::Operands;
use crate::sequence::{Call, LibraryCall, Part, Sequence, StreamKind, Work, WorkRange, work_ranges};
use crate::work::{Kernel, Memory, Place};

/// A call with addresses.
enum Bound {
    Kernel(Launch),
    Convolution(Arc<ConvolutionPlan>, Operands),
    Matmul(Arc<Mutex<MatmulPlan>>, Operands),
    Copy { from: u64, to: u64, bytes: usize },
    Read { from: u64, to: *mut u8, bytes: usize },
    Exchange(BoundExchange),
    Start(usize, BoundExchange),
    Finish(usize, u64),
    Collective(Operation),
    Record(usize),
    Await(usize),
}

/// What a step runs with.
pub(super) struct StepContext<'a> {
    pub gpu: &'a Gpu,
    /// Where its own work goes.
    pub stream: &'a Stream,
    pub ranks: &'a mut Ranks,
    /// Its number among [`STEPS`].
    pub step: usize,
}

/// A kernel with its argument.
pub(crate) struct Launch {
    function: Function,
    grid: [u32; 3],
    block: u32,
    argument: Vec<u8>,
}

impl Launch {
    pub fn new(gpu: &Gpu, kernel: &Kernel, address: &dyn Fn(Place) -> u64) -> Result<Self, CudaError> {
        let function = gpu.function(&kernel.name)?;
        Ok(Launch { function, grid: kernel.grid, block: kernel.block, argument: kernel.pack(address) })
    }

    /// # Safety
    /// The addresses are those of the program's regions, which live until the stream has run the kernel.
    pub unsafe fn run(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the struct is laid out as the kernel declares it, which tests check; for the rest, the caller's promise.
        unsafe { self.function.launch(stream, self.grid, self.block, &self.argument) }
    }
}

/// The kernel that gives a step its numbers. They change in place, so that a step allocates nothing.
pub(super) struct SetStep {
    kernel: Kernel,
    /// Of [`Memory::Step`].
    address: u64,
    launch: Launch,
}

impl SetStep {
    pub fn new(gpu: &Gpu, address: u64) -> Result<Self, CudaError> {
        let kernel = set_step(&StepValues::default());
        let launch = Launch::new(gpu, &kernel, &|_| address)?;
        Ok(SetStep { kernel, address, launch })
    }

    /// The launch with these numbers.
    pub fn with(&mut self, values: &StepValues) -> &Launch {
        change_step(&mut self.kernel, values);
        self.kernel.pack_into(&|_| self.address, &mut self.launch.argument);
        &self.launch
    }
}

/// A sequence, ready to run for each of the steps that may be in flight.
pub(crate) struct Prepared {
    mode: Mode,
    parts: Vec<Part>,
    /// The instruction of each piece of work.
    instructions: Vec<usize>,
    /// Whether each piece of work is of several ranks.
    is_of_ranks: Vec<bool>,
    /// A whole step.
    whole: Vec<WorkRange>,
    steps: [Vec<(StreamKind, Bound)>; STEPS],
    /// The ranges of a whole step that are the rank's own, once they have been captured.
    graphs: [Vec<Graph>; STEPS],
    /// Whether a whole step has run. Libraries load their kernels when they first need them, which a capture does not allow.
    warm: bool,
}

// SAFETY: the addresses of the host are those of results, which belong to the program, as this does.
unsafe impl Send for Prepared {}

impl Prepared {
    /// Binds a sequence to regions, and to the `results` of each step on the host. Its constants begin at byte `constants`.
    pub fn new(
        mode: Mode,
        sequence: &Sequence,
        constants: usize,
        gpu: &Gpu,
        arenas: &Arenas,
        state: &State,
        results: [*mut u8; STEPS],
    ) -> Result<Self, CudaError> {
        let bind = |step: usize| {
            let address = |place: Place| {
                let before = if place.memory == Memory::Constants { constants } else { 0 };
                arenas.address(state, step, Place { offset: before + place.offset, ..place })
            };
            let bind = |work: &Work| Ok((work.lane, bind(&work.call, gpu, &address, results[step])?));
            let calls = sequence.work.iter().map(bind);
            calls.collect::<Result<Vec<_>, CudaError>>()
        };
        let is_of_ranks: Vec<bool> = sequence.work.iter().map(|work| work.call.is_of_ranks()).collect();
        Ok(Prepared {
            mode,
            whole: work_ranges(&is_of_ranks, 0..is_of_ranks.len()),
            parts: sequence.parts.clone(),
            instructions: sequence.work.iter().map(|work| work.instruction).collect(),
            is_of_ranks,
            steps: [bind(0)?, bind(1)?],
            graphs: [Vec::new(), Vec::new()],
            warm: false,
        })
    }

    /// Whether [`Prepared::run`] will capture the graphs of a step.
    pub fn captures(&self, step: usize, phases: &[Phase]) -> bool {
        self.warm && phases == self.phases() && self.graphs[step].is_empty()
    }

    /// The phases of a whole step.
    fn phases(&self) -> &'static [Phase] {
        match self.mode {
            Mode::Train => &Phase::ALL,
            Mode::Evaluate => &[Phase::Forward, Phase::Loss],
        }
    }

    /// Puts phases of a step into the stream: a whole step as graphs, which are captured after the first one.
    ///
    /// # Safety
    /// The regions and the host's memory that the sequence was bound to live until the stream has run it.
    pub unsafe fn run(&mut self, context: &mut StepContext, phases: &[Phase]) -> Result<(), DeviceError> {
        let is_whole = phases == self.phases();
        if !is_whole || !self.warm {
            self.warm |= is_whole;
            // SAFETY: the caller's promise.
            return self.ranges(phases).try_for_each(|range| unsafe { self.work(context, range) });
        }
        if self.captures(context.step, phases) {
            let own = self.whole.iter().filter(|work_range| !work_range.is_of_ranks);
            let own = own.map(|work_range| work_range.work.clone());
            // SAFETY: the caller's promise, which also holds for launches of the graph: it lives as long as `self`.
            let capture = |work| Graph::capture(context.stream, |_| unsafe { self.launch(context, work) });
            self.graphs[context.step] = own.map(capture).collect::<Result<_, DeviceError>>()?;
        }
        let mut graphs = self.graphs[context.step].iter();
        for work_range in &self.whole {
            if work_range.is_of_ranks {
                // SAFETY: the caller's promise.
                unsafe { self.exchange(context, work_range.work.start) }?;
            } else if let Some(graph) = graphs.next() {
                graph.launch(context.stream)?;
            }
        }
        Ok(())
    }

    /// Puts a range of work into the stream, without graphs.
    ///
    /// # Safety
    /// As for [`Prepared::run`].
    unsafe fn work(&self, context: &mut StepContext, range: Range<usize>) -> Result<(), DeviceError> {
        for WorkRange { work, is_of_ranks } in work_ranges(&self.is_of_ranks, range) {
            // SAFETY: the caller's promise.
            unsafe { if is_of_ranks { self.exchange(context, work.start) } else { self.launch(context, work) } }?;
        }
        Ok(())
    }

    /// Carries out an exchange of ranks.
    ///
    /// # Safety
    /// As for [`Prepared::run`].
    unsafe fn exchange(&self, context: &mut StepContext, at: usize) -> Result<(), DeviceError> {
        let StepContext { stream, ref mut ranks, step, .. } = *context;
        let Ranks::Host(ranks) = ranks else { return Ok(()) };
        // SAFETY: the caller's promise. A sequence is checked to leave a bucket alone while it is summed.
        unsafe {
            match &self.steps[step][at].1 {
                Bound::Exchange(exchange) => ranks.exchange(exchange, stream),
                Bound::Start(bucket, exchange) => ranks.start(*bucket, exchange, stream),
                Bound::Finish(bucket, to) => ranks.finish(*bucket, *to, stream),
                _ => Ok(()),
            }
        }
    }

    /// The same, while the time of each instruction is added to `times`.
    ///
    /// # Safety
    /// As for [`Prepared::run`].
    pub unsafe fn profile(
        &self,
        context: &mut StepContext,
        phases: &[Phase],
        times: &mut [Duration],
    ) -> Result<(), DeviceError> {
        let StepContext { gpu, stream, .. } = *context;
        let mut timestamps = vec![Timestamp::new(&gpu.context)?];
        timestamps[0].record(stream)?;
        let work: Vec<usize> = self.ranges(phases).flatten().collect();
        for &work in &work {
            // SAFETY: the caller's promise.
            unsafe { self.work(context, work..work + 1) }?;
            let timestamp = Timestamp::new(&gpu.context)?;
            timestamp.record(stream)?;
            timestamps.push(timestamp);
        }
        stream.wait()?;
        for (work, pair) in work.iter().zip(timestamps.windows(2)) {
            times[self.instructions[*work]] += pair[1].since(&pair[0])?;
        }
        Ok(())
    }

    /// The work of phases, in the order of a step.
    fn ranges(&self, phases: &[Phase]) -> impl Iterator<Item = Range<usize>> {
        self.parts.iter().filter(|part| phases.contains(&part.phase)).map(|part| part.work.clone())
    }

    /// # Safety
    /// As for [`Prepared::run`].
    unsafe fn launch(&self, context: &StepContext, range: Range<usize>) -> Result<(), DeviceError> {
        let StepContext { gpu, stream: compute, ref ranks, step } = *context;
        let mut handle = gpu.engines.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream is the program's, which outlives this call, and every call sets its own.
        unsafe { handle.set_stream(compute.raw()) }?;
        let collectives = match ranks {
            Ranks::Nccl(collectives) => Some(collectives),
            Ranks::Alone | Ranks::Host(_) => None,
        };
        for (lane, bound) in &self.steps[step][range] {
            let stream = collectives.map_or(compute, |collectives| collectives.stream(*lane, compute));
            match bound {
                // SAFETY: the caller's promise.
                Bound::Kernel(launch) => unsafe { launch.run(stream) }?,
                // SAFETY: the caller's promise; the operands have the sizes of the problem.
                Bound::Convolution(plan, operands) => unsafe { plan.execute(&handle, operands) }?,
                Bound::Matmul(plan, operands) => {
                    let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
                    let handle = gpu.matmuls.handle.lock().unwrap_or_else(PoisonError::into_inner);
                    // SAFETY: the caller's promise; the operands have the sizes of the matmul.
                    unsafe { plan.execute(&handle, operands, stream.raw()) }?;
                }
                // SAFETY: the caller's promise.
                Bound::Copy { from, to, bytes } => unsafe { stream.copy(*from, *to, *bytes) }?,
                // SAFETY: the caller's promise.
                Bound::Read { from, to, bytes } => unsafe { stream.read(*from, *to, *bytes) }?,
                // A range of the rank's own has none.
                Bound::Exchange(_) | Bound::Start(..) | Bound::Finish(..) => {}
                Bound::Collective(_) | Bound::Record(_) | Bound::Await(_) => {
                    // SAFETY: the caller's promise.
                    collectives.map_or(Ok(()), |collectives| unsafe { collective(collectives, bound, stream) })?;
                }
            }
        }
        Ok(())
    }
}

/// # Safety
/// As for [`Prepared::run`].
unsafe fn collective(collectives: &Collectives, bound: &Bound, stream: &Stream) -> Result<(), DeviceError> {
    match bound {
        // SAFETY: the caller's promise.
        Bound::Collective(collective) => unsafe { collectives.run(collective) }?,
        Bound::Record(event) => collectives.record(*event, stream)?,
        Bound::Await(event) => collectives.wait_for(*event, stream)?,
        _ => {}
    }
    Ok(())
}

fn bind(
    call: &Call,
    gpu: &Gpu,
    at: &dyn Fn(Place) -> Result<u64, CudaError>,
    results: *mut u8,
) -> Result<Bound, CudaError> {
    Ok(match call {
        Call::Kernel(kernel) => {
            // Every place has an address: the first that has none is an error.
            call.accesses().all().try_for_each(|span| at(span.place).map(drop))?;
            Bound::Kernel(Launch::new(gpu, kernel, &|place| at(place).unwrap_or(0))?)
        }
        Call::Convolution(call) => {
            Bound::Convolution(gpu.engines.named(&call.problem, &call.engine)?, operands(call, at)?)
        }
        Call::Matmul(call) => Bound::Matmul(gpu.matmuls.plan(&call.problem)?, operands(call, at)?),
        Call::Copy { from, to } => Bound::Copy { from: at(from.place)?, to: at(to.place)?, bytes: from.bytes },
        Call::Read { from, to } => {
            Bound::Read { from: at(from.place)?, to: results.wrapping_add(*to), bytes: from.bytes }
        }
        Call::Exchange(exchange) => Bound::Exchange(BoundExchange::new(exchange, at)?),
        Call::Start(bucket, exchange) => Bound::Start(*bucket, BoundExchange::new(exchange, at)?),
        Call::Finish(bucket, to) => Bound::Finish(*bucket, at(to.place)?),
        Call::Collective(collective) => Bound::Collective(collectives::bind(collective, at)?),
        Call::Record(event) => Bound::Record(*event),
        Call::Await(event) => Bound::Await(*event),
    })
}

fn operands<P>(call: &LibraryCall<P>, at: &dyn Fn(Place) -> Result<u64, CudaError>) -> Result<Operands, CudaError> {
    Ok(Operands {
        x: at(call.x.place)?,
        w: at(call.w.place)?,
        y: at(call.y.place)?,
        bias: call.bias.map_or(Ok(0), |bias| at(bias.place))?,
        workspace: at(call.workspace.place)?,
    })
}
