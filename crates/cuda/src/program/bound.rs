//! A sequence bound to addresses: kernels with the bytes of their arguments, engines, and graphs of whole steps.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use enmasse_graph::{Mode, Phase};

use super::arenas::{Arenas, STEPS, State};
use crate::CudaError;
use crate::card::Card;
use crate::cublas_lt::{ProductOperands, ProductPlan};
use crate::cudnn::{ConvolutionPlan, Operands};
use crate::driver::{Event, Function, Graph, Stream};
use crate::sequence::{Call, Convolution, MatrixProduct, Part, Sequence};
use crate::work::{Kernel, Memory, Place};

/// A call with addresses.
enum Bound {
    Kernel(Launch),
    Convolution(Arc<ConvolutionPlan>, Operands),
    Product(Arc<Mutex<ProductPlan>>, ProductOperands),
    Copy { from: u64, to: u64, bytes: usize },
    Read { from: u64, to: *mut u8, bytes: usize },
}

/// A kernel with its argument.
pub(crate) struct Launch {
    function: Function,
    grid: [u32; 3],
    block: u32,
    argument: Vec<u8>,
}

impl Launch {
    pub fn new(card: &Card, kernel: &Kernel, address: &dyn Fn(Place) -> u64) -> Result<Self, CudaError> {
        let function = card.function(&kernel.name)?;
        Ok(Launch { function, grid: kernel.grid, block: kernel.block, argument: kernel.pack(address) })
    }

    /// # Safety
    /// The addresses are those of the program's regions, which live until the stream has run the kernel.
    pub unsafe fn run(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the struct is laid out as the kernel declares it, which tests check; for the rest, the caller's promise.
        unsafe { self.function.launch(stream, self.grid, self.block, &self.argument) }
    }
}

/// A sequence, ready to run for each of the steps that may be in flight.
pub(crate) struct Prepared {
    mode: Mode,
    parts: Vec<Part>,
    /// The instruction of each piece of work.
    instructions: Vec<usize>,
    steps: [Vec<Bound>; STEPS],
    /// Whole steps, once each has been captured.
    graphs: [Option<Graph>; STEPS],
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
        card: &Card,
        arenas: &Arenas,
        state: &State,
        results: [*mut u8; STEPS],
    ) -> Result<Self, CudaError> {
        let bind = |step: usize| {
            let address = |place: Place| {
                let before = if place.memory == Memory::Constants { constants } else { 0 };
                arenas.address(state, step, Place { offset: before + place.offset, ..place })
            };
            let calls = sequence.work.iter().map(|work| bind(&work.call, card, &address, results[step]));
            calls.collect::<Result<Vec<_>, _>>()
        };
        Ok(Prepared {
            mode,
            parts: sequence.parts.clone(),
            instructions: sequence.work.iter().map(|work| work.instruction).collect(),
            steps: [bind(0)?, bind(1)?],
            graphs: [None, None],
            warm: false,
        })
    }

    /// Puts phases of a step into the stream: a whole step as a graph, which is captured after the first one.
    ///
    /// # Safety
    /// The regions and the host's memory that the sequence was bound to live until the stream has run it.
    pub unsafe fn run(&mut self, card: &Card, stream: &Stream, step: usize, phases: &[Phase]) -> Result<(), CudaError> {
        let whole = match self.mode {
            Mode::Train => &Phase::ALL[..],
            Mode::Evaluate => &[Phase::Forward, Phase::Loss],
        };
        if phases != whole || !self.warm {
            self.warm |= phases == whole;
            // SAFETY: the caller's promise.
            return self.ranges(phases).try_for_each(|range| unsafe { self.launch(card, stream, step, range) });
        }
        if self.graphs[step].is_none() {
            let all = 0..self.instructions.len();
            // SAFETY: the caller's promise, which also holds for launches of the graph: it lives as long as `self`.
            self.graphs[step] = Some(Graph::capture(stream, |stream| unsafe { self.launch(card, stream, step, all) })?);
        }
        self.graphs[step].as_ref().map_or(Ok(()), |graph| graph.launch(stream))
    }

    /// The same, while the time of each instruction is added to `times`.
    ///
    /// # Safety
    /// As for [`Prepared::run`].
    pub unsafe fn profile(
        &self,
        card: &Card,
        stream: &Stream,
        step: usize,
        phases: &[Phase],
        times: &mut [Duration],
    ) -> Result<(), CudaError> {
        let mut events = vec![Event::new(&card.context)?];
        events[0].record(stream)?;
        let work: Vec<usize> = self.ranges(phases).flatten().collect();
        for &work in &work {
            // SAFETY: the caller's promise.
            unsafe { self.launch(card, stream, step, work..work + 1) }?;
            let event = Event::new(&card.context)?;
            event.record(stream)?;
            events.push(event);
        }
        stream.wait()?;
        for (work, pair) in work.iter().zip(events.windows(2)) {
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
    unsafe fn launch(&self, card: &Card, stream: &Stream, step: usize, range: Range<usize>) -> Result<(), CudaError> {
        let mut handle = card.engines.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream is the program's, which outlives this call, and every call sets its own.
        unsafe { handle.set_stream(stream.raw()) }?;
        for bound in &self.steps[step][range] {
            match bound {
                // SAFETY: the caller's promise.
                Bound::Kernel(launch) => unsafe { launch.run(stream) }?,
                // SAFETY: the caller's promise; the operands have the sizes of the problem.
                Bound::Convolution(plan, operands) => unsafe { plan.execute(&handle, operands) }?,
                Bound::Product(plan, operands) => {
                    let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
                    let handle = card.products.handle.lock().unwrap_or_else(PoisonError::into_inner);
                    // SAFETY: the caller's promise; the operands have the sizes of the product.
                    unsafe { plan.execute(&handle, operands, stream.raw()) }?;
                }
                // SAFETY: the caller's promise.
                Bound::Copy { from, to, bytes } => unsafe { stream.copy(*from, *to, *bytes) }?,
                // SAFETY: the caller's promise.
                Bound::Read { from, to, bytes } => unsafe { stream.read(*from, *to, *bytes) }?,
            }
        }
        Ok(())
    }
}

fn bind(
    call: &Call,
    card: &Card,
    at: &dyn Fn(Place) -> Result<u64, CudaError>,
    results: *mut u8,
) -> Result<Bound, CudaError> {
    Ok(match call {
        Call::Kernel(kernel) => {
            // Every place has an address: the first that has none is an error.
            crate::check::reads(call)
                .iter()
                .chain(&crate::check::writes(call))
                .try_for_each(|span| at(span.place).map(drop))?;
            Bound::Kernel(Launch::new(card, kernel, &|place| at(place).unwrap_or(0))?)
        }
        Call::Convolution(Convolution { problem, x, w, y, bias, workspace, .. }) => {
            let operands = Operands {
                x: at(x.place)?,
                w: at(w.place)?,
                y: at(y.place)?,
                bias: bias.map_or(Ok(0), |bias| at(bias.place))?,
                workspace: at(workspace.place)?,
            };
            Bound::Convolution(card.engines.convolution(problem)?, operands)
        }
        Call::Product(MatrixProduct { problem, x, w, y, bias, workspace, .. }) => {
            let operands = ProductOperands {
                x: at(x.place)?,
                w: at(w.place)?,
                y: at(y.place)?,
                bias: bias.map_or(Ok(0), |bias| at(bias.place))?,
                workspace: at(workspace.place)?,
            };
            Bound::Product(card.products.plan(problem)?, operands)
        }
        Call::Copy { from, to } => Bound::Copy { from: at(from.place)?, to: at(to.place)?, bytes: from.bytes },
        Call::Read { from, to } => {
            Bound::Read { from: at(from.place)?, to: results.wrapping_add(*to), bytes: from.bytes }
        }
    })
}
