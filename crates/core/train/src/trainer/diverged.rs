//! Runs that diverge: which checkpoint stays the last one, and how the run can go on.
//!
//! A checkpoint is proven once a step after it has a finite loss. Until then the one before it
//! stays beside it, as `previous.safetensors` (another name of the same file), and takes its place
//! again if that loss, or the validation's, is not finite. It gets that name before the new one is
//! written. So a run that is killed at any moment has both, and its resume decides.

use enmasse_comm::Group;
use enmasse_graph::{Plan, Precision};
use enmasse_wording::shell_word;

use super::Session;
use crate::weights::first_non_finite;
use crate::{Position, Resume, ScheduleKind, TrainConfig, TrainError};

/// Beyond this, a tenth of a learning rate is still no rate to recommend.
const HIGHEST_RATE: f64 = 0.01;

/// What is known of the last checkpoint. All ranks know the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastCheckpoint {
    /// There is none.
    Missing,
    /// The run was resumed from it, and no step has followed it since.
    Resumed,
    /// No step has followed it. `earlier`: the one before it is kept.
    Unproven {
        /// Whether there was one before it.
        earlier: bool,
    },
    /// A step after it had a finite loss.
    Proven,
}

impl LastCheckpoint {
    /// Whether it must stay beside the next one.
    pub fn is_kept(self) -> bool {
        matches!(self, LastCheckpoint::Resumed | LastCheckpoint::Proven)
    }

    /// The state after another checkpoint has been written.
    pub fn replaced(self) -> Self {
        match self {
            LastCheckpoint::Missing => LastCheckpoint::Unproven { earlier: false },
            // Of two checkpoints of the same step the one before both stays.
            LastCheckpoint::Unproven { earlier } => LastCheckpoint::Unproven { earlier },
            LastCheckpoint::Resumed | LastCheckpoint::Proven => LastCheckpoint::Unproven { earlier: true },
        }
    }
}

impl Session {
    /// A loss is finite, or the run has ended: the last checkpoint needs none before it.
    pub(super) fn prove_last(&mut self) -> Result<(), TrainError> {
        if let (LastCheckpoint::Unproven { earlier: true }, Some(writer)) = (self.last_checkpoint, &self.writer) {
            writer.remove_previous()?;
        }
        if self.last_checkpoint != LastCheckpoint::Missing {
            self.last_checkpoint = LastCheckpoint::Proven;
        }
        Ok(())
    }

    /// The state of the last checkpoint has a loss that is not finite. Returns what becomes of it, as the beginning of a remedy.
    fn refute_last(&mut self) -> Result<Option<&'static str>, TrainError> {
        let LastCheckpoint::Unproven { earlier } = self.last_checkpoint else { return Ok(None) };
        if !earlier && self.position.best.is_some() {
            // The end of the first epoch, which is its best one, too.
            return Ok(None);
        }
        if let Some(writer) = &self.writer {
            writer.drop_last(earlier)?;
        }
        self.last_checkpoint = if earlier { LastCheckpoint::Proven } else { LastCheckpoint::Missing };
        Ok(Some(match earlier {
            true => "the checkpoint of the step before is no better and gives way to the one before it",
            false => "the only checkpoint, of the step before, is no better and is removed",
        }))
    }

    /// The error of a loss of training that is not finite.
    pub(super) fn non_finite_loss(&mut self, config: &TrainConfig, shard: usize, loss: f64) -> TrainError {
        let rank = (0..self.map.ranks()).find(|&rank| self.map.local(rank).contains(&shard)).unwrap_or(0);
        let rank = self.place.rank_of_loss(rank);
        let outcome = match (self.refute_last(), self.last_checkpoint) {
            (Err(error), _) => return error,
            (Ok(Some(outcome)), _) => outcome,
            (Ok(None), LastCheckpoint::Resumed) => "the checkpoint that the run was resumed from gives that loss",
            (Ok(None), _) => "the parameters are as before that step",
        };
        let mut remedy = format!("{outcome}; {}", self.way_on(config));
        if self.program.plans().evaluate.precision == Precision::F16 {
            // Forward has no scale that could be lowered.
            remedy = format!("forward may have overflowed f16, so try `precision = bf16`; {remedy}");
        }
        TrainError::NonFinite { rank, loss, epoch: self.position.epoch, step: self.position.optimizer_step + 1, remedy }
    }

    /// Checks the state on the rank that writes it, or if each rank has a part of it, on all. A value that is not finite is an error.
    pub(super) fn check_finite(&mut self, config: &TrainConfig, group: Option<&Group>) -> Result<(), TrainError> {
        let in_parts = self.program.plans().train.as_ref().is_some_and(Plan::is_partitioned) && !config.keeps_nothing();
        let checks = self.writer.is_some() || in_parts;
        let mut found = checks.then(|| first_non_finite(self.program.as_mut())).transpose()?.flatten();
        if let (true, Some(group)) = (in_parts, group) {
            let names = group.all_gather_bytes(found.unwrap_or_default().as_bytes())?;
            found = names.iter().find(|name| !name.is_empty()).map(|name| String::from_utf8_lossy(name).into_owned());
        }
        match found {
            Some(name) => Err(self.non_finite_state(config, format!("values of {name}"), None)),
            None => Ok(()),
        }
    }

    /// The error of a validation loss that is not finite, on all ranks. It names the first tensor that is not either.
    pub(super) fn non_finite_validation(&mut self, config: &TrainConfig, loss: f64) -> Result<TrainError, TrainError> {
        let tensor = first_non_finite(self.program.as_mut())?;
        let tensor = tensor.map_or(String::new(), |name| format!(" and values of {name}"));
        let outcome = self.refute_last()?;
        Ok(self.non_finite_state(config, format!("validation loss {loss}{tensor}"), outcome))
    }

    fn non_finite_state(&self, config: &TrainConfig, found: String, outcome: Option<&str>) -> TrainError {
        let outcome = match (outcome, self.last_checkpoint) {
            (Some(outcome), _) => format!("{outcome}; "),
            (None, LastCheckpoint::Missing) => String::new(),
            (None, _) => "the previous checkpoint stays; ".to_owned(),
        };
        let remedy = format!("{outcome}{}", self.way_on(config));
        let Position { epoch, optimizer_step: step, .. } = self.position;
        TrainError::NonFiniteState { found, epoch, step, remedy }
    }

    /// How the run can go on after it has diverged.
    fn way_on(&self, config: &TrainConfig) -> String {
        if config.schedule == ScheduleKind::Own {
            return "resume it, or start again, with lower rates of the program's own schedule".to_owned();
        }
        let run = shell_word(config.out.clone().or_else(|| self.run_folder()).unwrap_or_default());
        let rate = (config.lr / 10.0).min(HIGHEST_RATE);
        let command = |from: &str| format!("enmasse train --resume{from} --out {run} --lr {rate:.0e}");
        let has_best = self.position.best.is_some();
        match self.last_checkpoint {
            LastCheckpoint::Missing => {
                "there is no checkpoint yet; start again with a lower `lr`, or with `warmup_epochs`".to_owned()
            }
            LastCheckpoint::Resumed if has_best && config.resume != Resume::Best => {
                format!("go back to the best epoch with: {}", command("=best"))
            }
            LastCheckpoint::Resumed => {
                "start again with another `out` and a lower `lr`, or with `warmup_epochs`".to_owned()
            }
            LastCheckpoint::Unproven { .. } | LastCheckpoint::Proven => {
                let best = if has_best { ", or from the best epoch by `resume = best`," } else { "" };
                format!("continue from it{best} at a lower rate with: {}", command(""))
            }
        }
    }
}
