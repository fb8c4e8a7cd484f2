//! The ledger of a program's steps: which are in flight, their metrics, and which are void.

use enmasse_graph::{Mode, Phase};

use crate::{DeviceError, StepMetrics};

/// Identifies a submitted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// One step: all submissions from one forward phase to the next.
#[derive(Clone, Copy, Debug)]
struct Step {
    mode: Mode,
    number: u64,
    metrics: Option<StepMetrics>,
    /// The shard whose loss was not finite, and that loss. If set, the step is void.
    failure: Option<(usize, f64)>,
}

/// The two steps that were begun last. A caller may ask for the metrics of both.
///
/// A step whose loss is not finite changes nothing, and voids every step that begins before the caller reads the failure. If
/// a trainer submits step t + 1 before it reads the metrics of a failed step t, the parameters are as before step t.
///
/// ```
/// use enmasse_device::{Ledger, StepMetrics};
/// use enmasse_graph::Mode;
/// let mut ledger = Ledger::default();
/// let first = ledger.begin(Mode::Train);
/// ledger.fail(1, f64::NAN);
/// let second = ledger.begin(Mode::Train);
/// assert!(ledger.is_void());
/// assert!(ledger.metrics(first).is_err() && ledger.metrics(second).is_err());
/// let third = ledger.begin(Mode::Train);
/// ledger.measured(StepMetrics::default());
/// assert!(ledger.metrics(third).is_ok());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    latest: Option<Step>,
    before: Option<Step>,
    /// A failure that the caller has not read. It voids the next step.
    unread: Option<(usize, f64)>,
}

impl Ledger {
    /// Begins a step.
    pub fn begin(&mut self, mode: Mode) -> Ticket {
        let number = self.latest.map_or(0, |step| step.number) + 1;
        self.before = self.latest;
        self.latest = Some(Step { mode, number, metrics: None, failure: self.unread });
        Ticket(number)
    }

    /// The latest step, which `phase` continues.
    ///
    /// # Errors
    /// There is none, or its mode differs.
    pub fn go_on(&self, mode: Mode, phase: Phase) -> Result<Ticket, DeviceError> {
        match self.latest {
            Some(step) if step.mode == mode => Ok(Ticket(step.number)),
            _ => {
                let reason = format!("phase {} needs a forward phase of the same mode before it", phase.name());
                Err(DeviceError::Unsupported(reason))
            }
        }
    }

    /// The ticket of the latest step.
    ///
    /// # Errors
    /// No step has begun.
    pub fn latest(&self) -> Result<Ticket, DeviceError> {
        let none = || DeviceError::Unsupported("no step has begun".into());
        self.latest.map(|step| Ticket(step.number)).ok_or_else(none)
    }

    /// The mode of the latest step.
    pub fn mode(&self) -> Option<Mode> {
        self.latest.map(|step| step.mode)
    }

    /// Whether the latest step is void: its remaining instructions must not run.
    pub fn is_void(&self) -> bool {
        self.latest.is_some_and(|step| step.failure.is_some())
    }

    /// Records that the latest step found a loss that is not finite.
    pub fn fail(&mut self, shard: usize, loss: f64) {
        self.unread = Some((shard, loss));
        if let Some(step) = &mut self.latest {
            step.failure = self.unread;
        }
    }

    /// Records the metrics of the latest step.
    pub fn measured(&mut self, metrics: StepMetrics) {
        if let Some(step) = &mut self.latest {
            step.metrics = Some(metrics);
        }
    }

    /// Records how a step ended, for a device that learns it only when it is asked: later steps may have begun. A failure
    /// voids those, too.
    pub fn settle(&mut self, ticket: Ticket, outcome: Result<StepMetrics, (usize, f64)>) {
        for step in [&mut self.latest, &mut self.before].into_iter().flatten() {
            match outcome {
                Ok(metrics) if step.number == ticket.0 => step.metrics = Some(metrics),
                Err(failure) if step.number >= ticket.0 => step.failure = Some(failure),
                _ => {}
            }
        }
    }

    /// The metrics of a step. A failure that is read no longer voids later steps.
    ///
    /// # Errors
    /// [`DeviceError::NonFinite`] if the step's loss was not finite. [`DeviceError::Unsupported`] if the step is not
    /// among the last two, or has not run the phases that measure it.
    pub fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError> {
        let Some(step) = [self.latest, self.before].into_iter().flatten().find(|step| step.number == ticket.0) else {
            return Err(DeviceError::Unsupported(format!("step {} is not among the last two", ticket.0)));
        };
        if let Some((shard, loss)) = step.failure {
            self.unread = None;
            return Err(DeviceError::NonFinite { shard, loss });
        }
        let unknown = || DeviceError::Unsupported("the step has not yet run the phases that measure it".into());
        step.metrics.ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_name_the_last_two_steps() {
        let mut ledger = Ledger::default();
        let tickets = [1.0, 2.0, 3.0].map(|loss| {
            let ticket = ledger.begin(Mode::Evaluate);
            ledger.measured(StepMetrics { loss, ..StepMetrics::default() });
            ticket
        });
        let losses = tickets.map(|ticket| ledger.metrics(ticket).ok().map(|metrics| metrics.loss));
        assert_eq!(losses, [None, Some(2.0), Some(3.0)]);
    }

    #[test]
    fn phases_need_a_forward_phase_of_their_mode() {
        let mut ledger = Ledger::default();
        assert!(ledger.go_on(Mode::Train, Phase::Loss).is_err());
        let ticket = ledger.begin(Mode::Train);
        assert_eq!(ledger.go_on(Mode::Train, Phase::Loss).ok(), Some(ticket));
        assert!(ledger.go_on(Mode::Evaluate, Phase::Loss).is_err());
        assert!(ledger.metrics(ticket).is_err(), "nothing is measured yet");
    }

    #[test]
    fn a_failure_that_is_learnt_late_voids_the_steps_since() {
        let mut ledger = Ledger::default();
        let tickets = [(); 2].map(|()| ledger.begin(Mode::Train));
        ledger.settle(tickets[0], Err((1, f64::NAN)));
        assert!(tickets.map(|ticket| ledger.metrics(ticket).is_err()) == [true; 2]);
        let third = ledger.begin(Mode::Train);
        ledger.settle(third, Ok(StepMetrics { loss: 2.0, ..StepMetrics::default() }));
        assert_eq!(ledger.metrics(third).ok().map(|metrics| metrics.loss), Some(2.0));
    }

    #[test]
    fn an_unread_failure_voids_later_steps() {
        let mut ledger = Ledger::default();
        let first = ledger.begin(Mode::Train);
        ledger.fail(2, f64::INFINITY);
        ledger.begin(Mode::Train);
        let third = ledger.begin(Mode::Train);
        assert!(ledger.is_void(), "the failed step is no longer among the last two");
        assert!(ledger.metrics(first).is_err());
        assert!(matches!(ledger.metrics(third), Err(DeviceError::NonFinite { shard: 2, .. })));
        ledger.begin(Mode::Train);
        assert!(!ledger.is_void());
    }
}
