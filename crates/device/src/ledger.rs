//! The steps that a program has begun: which are in flight, what they measured, and which are void.

use enmasse_graph::{Mode, Phase};

use crate::{DeviceError, StepMetrics};

/// Names a submitted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// One step: all submissions from one forward phase to the next.
#[derive(Clone, Copy, Debug)]
struct Step {
    mode: Mode,
    number: u64,
    metrics: Option<StepMetrics>,
    /// The shard whose loss was not finite, and that loss.
    failure: Option<(usize, f64)>,
}

/// The step last begun and the one before: a program may be asked for the metrics of both.
///
/// A step whose loss is not finite changes nothing, and voids every step that is begun before somebody reads of it: a
/// trainer that submits step t + 1 before it reads step t's metrics finds the parameters as they were before step t.
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
    /// Why the next step is void.
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

    /// The step last begun, whose `phase` is asked for. An error where there is none of this mode.
    pub fn go_on(&self, mode: Mode, phase: Phase) -> Result<Ticket, DeviceError> {
        match self.latest {
            Some(step) if step.mode == mode => Ok(Ticket(step.number)),
            _ => {
                let reason = format!("phase {} goes on with a forward phase of its mode", phase.name());
                Err(DeviceError::Unsupported(reason))
            }
        }
    }

    /// The step last begun.
    pub fn latest(&self) -> Result<Ticket, DeviceError> {
        let none = || DeviceError::Unsupported("no step has begun".into());
        self.latest.map(|step| Ticket(step.number)).ok_or_else(none)
    }

    /// The mode of the step last begun.
    pub fn mode(&self) -> Option<Mode> {
        self.latest.map(|step| step.mode)
    }

    /// Whether nothing of the step last begun runs any more.
    pub fn is_void(&self) -> bool {
        self.latest.is_some_and(|step| step.failure.is_some())
    }

    /// The step last begun found a loss that is not finite.
    pub fn fail(&mut self, shard: usize, loss: f64) {
        self.unread = Some((shard, loss));
        if let Some(step) = &mut self.latest {
            step.failure = self.unread;
        }
    }

    /// The step last begun has measured.
    pub fn measured(&mut self, metrics: StepMetrics) {
        if let Some(step) = &mut self.latest {
            step.metrics = Some(metrics);
        }
    }

    /// What a step measured. Who reads that it failed may begin a new one.
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
    fn phases_go_on_with_a_forward_of_their_mode() {
        let mut ledger = Ledger::default();
        assert!(ledger.go_on(Mode::Train, Phase::Loss).is_err());
        let ticket = ledger.begin(Mode::Train);
        assert_eq!(ledger.go_on(Mode::Train, Phase::Loss).ok(), Some(ticket));
        assert!(ledger.go_on(Mode::Evaluate, Phase::Loss).is_err());
        assert!(ledger.metrics(ticket).is_err(), "nothing is measured yet");
    }

    #[test]
    fn a_failure_that_nobody_has_read_voids_what_is_begun() {
        let mut ledger = Ledger::default();
        let first = ledger.begin(Mode::Train);
        ledger.fail(2, f64::INFINITY);
        ledger.begin(Mode::Train);
        let third = ledger.begin(Mode::Train);
        assert!(ledger.is_void(), "not even where the failed step is no longer among the last two");
        assert!(ledger.metrics(first).is_err());
        assert!(matches!(ledger.metrics(third), Err(DeviceError::NonFinite { shard: 2, .. })));
        ledger.begin(Mode::Train);
        assert!(!ledger.is_void());
    }
}
