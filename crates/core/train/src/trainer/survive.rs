//! The death of another rank: the state after the last finished step becomes the checkpoint that the run goes on from.
//!
//! After a step all ranks have the same state. On a rank it is finished once the rank's own update is done, which the failure of the
//! group does not interrupt. A rank updates only after all ranks have given their gradients, and so have finished the step before:
//! those that are left are at most one step apart, and each has a state that the run has passed. The latest one stays.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use enmasse_comm::{Cause, CauseKind, Group};

use super::diverged::LastCheckpoint;
use super::{Epoch, Session, Trainer};
use crate::survivor::Standing;
use crate::{StrategyKind, Survival, TrainError};

/// How long a rank takes at most, of the time that launchers leave to ranks after a failure.
const LIMIT: Duration = Duration::from_secs(20);

/// Whether ranks with this cause may have lost another rank. Any other failure is the run's own, and would come again after the same step.
fn is_death(cause: &Cause) -> bool {
    matches!(cause.kind, CauseKind::Exited | CauseKind::Killed(_) | CauseKind::Silent | CauseKind::Timeout)
}

/// Whether the group has failed by the death of another rank than this one.
fn has_lost_another(group: &Group) -> bool {
    group.cause().is_some_and(|cause| is_death(&cause) && cause.rank != Some(group.rank()))
}

impl Session {
    /// Saves what this rank has finished, if the run ends by the death of another rank. Tells callbacks what came of it.
    pub(super) fn survive(mut self, trainer: &mut Trainer, epoch: Option<Epoch>, error: &TrainError) {
        let Some(survivor) = self.survivor.take() else { return };
        let has_lost_one = match error {
            TrainError::Cause(cause) => is_death(cause),
            // Callbacks exchange data, too. What they return may be a text of their own, so the group is asked.
            TrainError::Callback { .. } => trainer.group.as_ref().is_some_and(has_lost_another),
            _ => false,
        };
        // Elsewhere than under `ddp` a rank has a part of the state alone.
        let is_whole = trainer.config.strategy == StrategyKind::Ddp && !trainer.config.is_cut();
        if !has_lost_one || !is_whole {
            return;
        }
        let Trainer { config, callbacks, group, .. } = trainer;
        if let Some(mut epoch) = epoch {
            for step in [epoch.finishing.take(), epoch.in_flight.take()].into_iter().flatten() {
                // What has not ended has changed nothing.
                let Ok(metrics) = self.program.metrics(step.ticket) else { break };
                self.add(&metrics, step.samples);
                if self.last_checkpoint != LastCheckpoint::Missing {
                    self.last_checkpoint = LastCheckpoint::Proven;
                }
                // The failure is the error to report.
                let _ = callbacks.on_train_batch_end(&self.progress_after(config, &epoch, step, &metrics));
            }
        }
        let (position, states) = match self.epoch_end.take() {
            Some((position, states)) => (position, Ok(states)),
            None => (self.position, callbacks.state_dicts()),
        };
        let step = position.optimizer_step;
        let unsaved = |reason: String| Some(Survival::Unsaved { step, reason });
        let survival = match states {
            _ if step == 0 => None,
            _ if self.has_set_weights || !callbacks.control.written.is_empty() => {
                unsaved("callbacks have set weights since".to_owned())
            }
            Err(error) => unsaved(error.to_string()),
            Ok(states) => {
                self.tracer.at(group.as_ref(), "writing a checkpoint");
                let standing = Standing { position, states, keeps_last: self.last_checkpoint.is_kept() };
                let (sender, outcome) = channel();
                let mut program = self.program;
                // A disk that hangs does not keep this rank.
                let thread = std::thread::Builder::new().name("survivor".to_owned());
                let thread = thread.spawn(move || sender.send(survivor.save(program.as_mut(), standing)));
                match (thread, outcome.recv_timeout(LIMIT)) {
                    (Err(error), _) => unsaved(error.to_string()),
                    (Ok(_), Ok(Ok(true))) => Some(Survival::Saved { step }),
                    // Another rank has saved this step, or rank 0 before the failure.
                    (Ok(_), Ok(Ok(false))) => None,
                    (Ok(_), Ok(Err(error))) => unsaved(error.to_string()),
                    (Ok(_), Err(RecvTimeoutError::Timeout)) => {
                        unsaved(format!("it took longer than {} s", LIMIT.as_secs()))
                    }
                    (Ok(_), Err(RecvTimeoutError::Disconnected)) => {
                        unsaved("the thread that saves has panicked".to_owned())
                    }
                }
            }
        };
        if let Some(survival) = survival {
            // As above.
            let _ = callbacks.on_survival(&survival);
        }
    }
}
