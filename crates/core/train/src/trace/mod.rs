//! A timeline of some steps on all ranks (`--trace-steps`), on one clock. It has three sources:
//!
//! - the trainer: what the thread that trains does,
//! - the program: each instruction, as far as the device can tell (`Program::start_timeline`; the
//!   CPU can),
//! - the flight recorder: the operations of the communication thread, which `FlightFollower` copies
//!   after each step.
//!
//! Recording allocates nothing within a step, since its memory is sized before the first one. After
//! the last one the ranks compare their clocks once more, and put their times on rank 0's clock
//! themselves (`Group::compare_clocks`). Rank 0 writes the file (`report.rs`), one rank's events
//! after another.

mod chrome;
mod overlap;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use enmasse_comm::{Clock, ClockOffset, FlightFollower, Group};
use enmasse_device::Program;

use crate::TrainError;
pub use overlap::Overlap;

/// Steps before the first traced one. They touch memory for the first time, and libraries load their kernels.
const WARM_UP: u64 = 10;

/// Operations of a step that are recorded; the recorder keeps no more.
const OPERATIONS: usize = 512;

/// Activities of a step that are recorded, with some to spare for those between epochs.
const ACTIVITIES: usize = 16;

/// Records a run's traced steps on this rank. Without any it does nothing.
#[derive(Debug)]
pub(crate) struct Tracer {
    /// Steps to trace.
    wanted: u64,
    /// Steps that this process has begun.
    begun: u64,
    recording: Option<Recording>,
}

/// What was recorded so far.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The run's number of the first traced step.
    first_step: u64,
    clock: Clock,
    /// The clocks of all ranks before the first step, and when they were compared.
    before: (Instant, Vec<ClockOffset>),
    /// The current activity of the thread that trains, and since when.
    activity: (&'static str, Instant),
    activities: Vec<(&'static str, [Instant; 2])>,
    /// When each step was begun, and handed to the device.
    steps: Vec<[Instant; 2]>,
    /// Of a rank in a group.
    operations: Option<FlightFollower>,
}

/// A trace that is complete. Every rank knows the same, except for the path.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// The file, on rank 0; `None` if the run ended before the first step to trace.
    pub path: Option<PathBuf>,
    /// The first traced step of the run, from 1.
    pub first_step: u64,
    /// Number of traced steps.
    pub steps: u64,
    /// By how much the clocks of two ranks may differ in the trace.
    pub accuracy: Duration,
    /// The sums of gradients; `None` if there were none that could be measured.
    pub sums: Option<Overlap>,
}

impl Traced {
    /// Of a run that ended before the first step to trace.
    pub(crate) fn none() -> Self {
        Traced { path: None, first_step: 0, steps: 0, accuracy: Duration::ZERO, sums: None }
    }
}

impl Tracer {
    /// Traces `steps` steps.
    pub fn new(steps: u64) -> Self {
        Tracer { wanted: steps, begun: 0, recording: None }
    }

    /// Records the activity of this rank's own code, also for ranks that may have to wait for it.
    pub fn at(&mut self, group: Option<&Group>, activity: &'static str) {
        at(group, activity);
        if let Some(recording) = &mut self.recording {
            recording.at(activity);
        }
    }

    /// Comes just before step `number` of the run. All ranks call it for the same steps.
    pub fn begin_step(
        &mut self,
        number: u64,
        program: &mut dyn Program,
        group: Option<&Group>,
    ) -> Result<(), TrainError> {
        self.begun += 1;
        if self.wanted > 0 && self.begun == WARM_UP + 1 {
            self.recording = Some(Recording::start(number, self.wanted as usize, program, group)?);
        }
        if let Some(recording) = &mut self.recording {
            // What ranks exchange between steps is no part of them.
            recording.operations.iter_mut().for_each(FlightFollower::skip);
            let now = Instant::now();
            recording.steps.push([now, now]);
        }
        Ok(())
    }

    /// Comes after a step has been handed to the device, with whose sums it has ended.
    pub fn end_step(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording.operations.iter_mut().for_each(FlightFollower::collect);
            if let Some([_, ended]) = recording.steps.last_mut() {
                *ended = Instant::now();
            }
        }
    }

    /// Ends the trace if all its steps are done, or at the end of training. Otherwise `None`.
    pub fn take(&mut self, training_ends: bool) -> Option<Recording> {
        let steps = self.recording.as_ref().map_or(0, |recording| recording.steps.len() as u64);
        if steps == 0 || (steps < self.wanted && !training_ends) {
            return None;
        }
        self.wanted = 0;
        self.recording.take()
    }

    /// Whether steps were to be traced, but none has been.
    pub fn is_missing(&self) -> bool {
        self.wanted > 0
    }
}

impl Recording {
    fn start(
        first_step: u64,
        steps: usize,
        program: &mut dyn Program,
        group: Option<&Group>,
    ) -> Result<Self, TrainError> {
        program.start_timeline(steps);
        let operations = group.map(|group| group.flight_recorder().follow(steps * OPERATIONS));
        let activities = Vec::with_capacity(steps * ACTIVITIES);
        let steps = Vec::with_capacity(steps);
        let clock = Clock::new();
        let before = compare_clocks(&clock, group)?;
        let activity = ("computing a step", Instant::now());
        Ok(Recording { first_step, clock, before, activity, activities, steps, operations })
    }

    fn at(&mut self, activity: &'static str) {
        let now = Instant::now();
        let (name, began) = std::mem::replace(&mut self.activity, (activity, now));
        if self.activities.len() < self.activities.capacity() {
            self.activities.push((name, [began, now]));
        }
    }
}

/// The clocks of all ranks, and when they were compared.
fn compare_clocks(clock: &Clock, group: Option<&Group>) -> Result<(Instant, Vec<ClockOffset>), TrainError> {
    let offsets = match group {
        Some(group) => group.compare_clocks(clock)?,
        None => vec![ClockOffset { ahead: 0, accuracy: 0 }],
    };
    Ok((Instant::now(), offsets))
}

/// Records the current activity of this rank, for ranks that may have to wait for it.
pub(crate) fn at(group: Option<&Group>, activity: &'static str) {
    if let Some(group) = group {
        group.flight_recorder().at(activity);
    }
}
