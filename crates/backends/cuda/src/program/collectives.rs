//! Exchanges of ranks by NCCL: work of a second stream, which events order with the step's own, in
//! one graph. `check` proves that they do. The host watches each wait (`Group::watch`).

use std::ops::Range;

use enmasse_comm::{Group, Watch};
use enmasse_device::DeviceError;
use enmasse_graph::Phase;

use super::arenas::STEPS;
use crate::CudaError;
use crate::driver::{Buffer, Event, Stream};
use crate::gpu::Gpu;
use crate::kernels::step::FAILURE_BYTES;
use crate::nccl::{Communicator, Operation};
use crate::sequence::{Collective, StreamKind};
use crate::work::{Place, Span};

/// A collective with addresses.
pub(super) fn bind(
    collective: &Collective,
    address: &dyn Fn(Place) -> Result<u64, CudaError>,
) -> Result<Operation, CudaError> {
    let floats = |span: Span| span.bytes / size_of::<f32>();
    Ok(match *collective {
        Collective::AllReduce { at, dtype } => {
            Operation::AllReduce { at: address(at.place)?, count: at.bytes / dtype.size(), dtype }
        }
        Collective::Reduce { at } => Operation::Reduce { at: address(at.place)?, count: floats(at) },
        Collective::Broadcast { at, .. } => Operation::Broadcast { at: address(at.place)?, count: floats(at) },
        Collective::AllGather { from, to, ranks } => {
            Operation::AllGather { from: address(from.place)?, to: address(to.place)?, count: floats(to) / ranks }
        }
    })
}

/// A program's part in the collectives of its group. NCCL ends before the stream goes.
pub(super) struct Collectives {
    communicator: Communicator,
    stream: Stream,
    events: Vec<Event>,
    group: Group,
    /// Whether each step has work that nobody has waited for.
    in_flight: [bool; STEPS],
    /// Whether NCCL has connected the ranks, which it does in their first collectives.
    connected: bool,
}

impl Collectives {
    /// For sequences with this number of events. If NCCL is aborted, the 8 bytes at `failure` first say that the step is void.
    pub fn new(gpu: &Gpu, group: &Group, events: usize, failure: u64) -> Result<Self, DeviceError> {
        let context = &gpu.context;
        let (marks, stream) = (Stream::new(context)?, Stream::new(context)?);
        let events = (0..events).map(|_| Event::new(context)).collect::<Result<_, CudaError>>()?;
        let mut filled = None;
        let is_void = move || {
            // SAFETY: the communicator calls this while it lives, and so does the failure's memory. An error leaves the numbers
            // undefined, as in a program whose GPU is lost.
            let filled = filled.get_or_insert_with(|| unsafe { marks.fill(failure, 0xFF, FAILURE_BYTES) }.is_ok());
            !*filled || marks.is_done().unwrap_or(true)
        };
        let communicator = Communicator::new(&gpu.nccl()?, context, group, is_void)?;
        let group = group.clone();
        Ok(Collectives { communicator, stream, events, group, in_flight: [false; STEPS], connected: false })
    }

    /// Lets the collectives work in memory that NCCL has allocated, without copies.
    pub fn register(&self, buffer: &Buffer) -> Result<(), DeviceError> {
        self.communicator.register(buffer)
    }

    /// The stream of a lane.
    pub fn stream<'a>(&'a self, lane: StreamKind, compute: &'a Stream) -> &'a Stream {
        if lane == StreamKind::Compute { compute } else { &self.stream }
    }

    /// Before phases of a training step go into the streams; an error once the group has failed. What the caller then waits for
    /// is watched: NCCL connects the ranks in their first collectives. The caller says whether it `waits` in later ones, too.
    pub fn begin(&mut self, step: usize, phases: &[Phase], waits: bool) -> Result<Option<Watch>, DeviceError> {
        self.group.check()?;
        self.in_flight[step] = true;
        if self.connected && !waits {
            return Ok(None);
        }
        self.connected = phases.contains(&Phase::Backward);
        Ok(Some(self.group.watch("the first collectives of NCCL", 0)?))
    }

    /// Waits for steps, with the deadline of the group's own operations.
    pub fn watch<T>(
        &mut self,
        steps: Range<usize>,
        wait: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        if !self.in_flight[steps.clone()].contains(&true) {
            return wait();
        }
        let watch = self.group.watch("a step's collectives by NCCL", 0)?;
        let waited = wait();
        // After an abort the step's numbers mean nothing, nor does what the GPU says of them.
        watch.done()?;
        self.in_flight[steps].fill(false);
        waited
    }

    /// An error if NCCL was aborted before the GPU could say that the steps in flight are void: they may have changed the state
    /// with undefined numbers.
    pub fn check_state(&self) -> Result<(), DeviceError> {
        if self.in_flight.contains(&true) && self.communicator.is_aborted_unready() {
            let reason =
                "a step may have changed the weights on the GPU with undefined numbers: go on from a checkpoint";
            return Err(DeviceError::Unsupported(reason.into()));
        }
        Ok(())
    }

    /// # Safety
    /// The operation is bound to regions that live until the stream has run it.
    pub unsafe fn run(&self, operation: &Operation) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.communicator.run(operation, &self.stream) }
    }

    /// Records an event in a stream.
    pub fn record(&self, event: usize, stream: &Stream) -> Result<(), CudaError> {
        self.events[event].record(stream)
    }

    /// Lets a stream wait for an event.
    pub fn wait_for(&self, event: usize, stream: &Stream) -> Result<(), CudaError> {
        stream.wait_for(&self.events[event])
    }
}
