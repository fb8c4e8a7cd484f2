//! Keeping what a run has reached: checkpoints, and that only finite state gets into one.

use enmasse_wording::shell_word;

use super::{Session, Trainer};
use crate::callback::{Callbacks, Request};
use crate::stop::agree;
use crate::weights::first_non_finite;
use crate::{EpochRecord, Position, SaveReason, Saved, TrainConfig, TrainError};

/// Beyond this, a tenth of a learning rate is still no rate to recommend.
const HIGHEST_RATE: f64 = 0.01;

impl Session {
    /// Saves what an epoch leaves, and moves on to the next one. An epoch that is only a part of one is no candidate for the best,
    /// and goes on where it ended.
    pub(super) fn finish_epoch(
        &mut self,
        record: &EpochRecord,
        config: &TrainConfig,
        callbacks: &mut Callbacks,
    ) -> Result<(), TrainError> {
        let reason = SaveReason::EpochEnd(record);
        if record.partial {
            self.position.validated_samples = self.position.samples;
            return self.save(reason, config, callbacks);
        }
        // Before anything replaces a good checkpoint.
        self.check_finite(config)?;
        let best = self.position.best_val_accuracy.is_none_or(|best| record.val_accuracy > best);
        if best {
            self.position.best_val_accuracy = Some(record.val_accuracy);
        }
        self.position.next_epoch();
        if let Some(writer) = &mut self.writer {
            writer.save_epoch(self.program.as_mut(), &self.position, record.epoch, best)?;
        }
        self.saved(reason, callbacks)
    }

    /// Saves where the run is, and returns the request to end it once all ranks have come here: no rank leaves before the
    /// checkpoint is written.
    pub(super) fn stop(&mut self, trainer: &mut Trainer) -> Result<Option<Request>, TrainError> {
        trainer.callbacks.on_bad_samples(&self.bad_samples.exchange(trainer.group.as_ref())?)?;
        self.list_bad_samples()?;
        self.tracer.at(trainer.group.as_ref(), "writing a checkpoint");
        self.save(SaveReason::Stop, &trainer.config, &mut trainer.callbacks)?;
        agree(trainer.callbacks.request(), trainer.group.as_ref())
    }

    /// Writes the list of samples that were skipped, if it has grown.
    pub(super) fn list_bad_samples(&mut self) -> Result<(), TrainError> {
        let known = self.bad_samples.known();
        self.writer.as_mut().map_or(Ok(()), |writer| writer.list_unreadable(known))
    }

    /// Saves a checkpoint in the middle of an epoch.
    pub(super) fn save(
        &mut self,
        reason: SaveReason,
        config: &TrainConfig,
        callbacks: &mut Callbacks,
    ) -> Result<(), TrainError> {
        self.check_finite(config)?;
        if let Some(writer) = &mut self.writer {
            writer.save(self.program.as_mut(), &self.position)?;
        }
        self.saved(reason, callbacks)
    }

    /// Tells callbacks of a checkpoint.
    fn saved(&mut self, reason: SaveReason, callbacks: &mut Callbacks) -> Result<(), TrainError> {
        self.has_checkpoint = true;
        let path = self.writer.as_ref().map(|writer| writer.paths().last_checkpoint());
        let Position { epoch, samples, .. } = self.position;
        callbacks.on_checkpoint(&Saved { path: path.as_deref(), reason, epoch, samples })
    }

    /// Checks the state on the rank that writes it. A value that is not finite is an error.
    fn check_finite(&mut self, config: &TrainConfig) -> Result<(), TrainError> {
        match self.writer.is_some().then(|| first_non_finite(self.program.as_mut())).transpose()?.flatten() {
            Some(name) => Err(self.non_finite(config, format!("values of {name}"))),
            None => Ok(()),
        }
    }

    /// The error of a validation loss that is not finite, on all ranks. It names the first tensor that is not either.
    pub(super) fn non_finite_validation(&mut self, config: &TrainConfig, loss: f64) -> Result<TrainError, TrainError> {
        let tensor = first_non_finite(self.program.as_mut())?;
        let tensor = tensor.map_or(String::new(), |name| format!(" and values of {name}"));
        Ok(self.non_finite(config, format!("validation loss {loss}{tensor}")))
    }

    fn non_finite(&self, config: &TrainConfig, found: String) -> TrainError {
        let run = config.out.clone().or_else(|| self.run_folder()).unwrap_or_default();
        let remedy = match self.has_checkpoint {
            true => {
                let rate = (config.lr / 10.0).min(HIGHEST_RATE);
                let run = shell_word(run);
                format!(
                    "the previous checkpoint stays; continue from it at a lower rate with: \
                     enmasse train --resume --out {run} --lr {rate:.0e}"
                )
            }
            false => "there is no checkpoint yet; start again with a lower --lr, or with --warmup-epochs".to_owned(),
        };
        let Position { epoch, optimizer_step: step, .. } = self.position;
        TrainError::NonFiniteState { found, epoch, step, remedy }
    }
}
