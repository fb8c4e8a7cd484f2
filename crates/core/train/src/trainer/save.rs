//! Keeping what a run has reached: checkpoints, and that only finite state gets into one.
//!
//! A checkpoint replaces an earlier one only if every value in it is finite, and so is the
//! validation loss of the epoch that it ends.

use enmasse_comm::Group;

use super::{Session, Trainer};
use crate::agreement::compare_written;
use crate::callback::Callbacks;
use crate::parts::send_state;
use crate::stop::{Request, agree};
use crate::{Artifact, EpochRecord, Position, SaveReason, Saved, TrainConfig, TrainError};

impl Session {
    /// Saves what an epoch leaves, and moves on to the next one. An epoch that is only a part of one is no candidate for the best,
    /// and goes on where it ended.
    pub(super) fn finish_epoch(
        &mut self,
        record: &EpochRecord,
        config: &TrainConfig,
        group: Option<&Group>,
        callbacks: &mut Callbacks,
    ) -> Result<(), TrainError> {
        let reason = SaveReason::EpochEnd(record);
        if record.partial {
            self.position.validated_samples = self.position.samples;
            return self.save(reason, config, group, callbacks);
        }
        self.program.gather_state(false)?;
        // Before anything replaces a good checkpoint.
        self.check_finite(config, group)?;
        if record.best {
            self.position.best = record.value(&self.monitor.name);
        }
        self.position.next_epoch();
        if let Some(writer) = &mut self.writer {
            writer.keep_states(callbacks.state_dicts()?);
            let keeps_last = self.last_checkpoint.is_kept();
            let epoch = (record.epoch, record.best);
            writer.save_epoch(self.program.as_mut(), group, &self.position, epoch, keeps_last)?;
            if record.best {
                callbacks.control.artifacts.push((Artifact::Checkpoint, writer.paths().best_checkpoint()));
            }
        } else if !config.keeps_nothing() {
            send_state(self.program.as_mut(), group)?;
        }
        self.saved(reason, callbacks)
    }

    /// Saves where the run is, and returns the request to end it once all ranks have come here: no rank leaves before the
    /// checkpoint is written.
    pub(super) fn stop(&mut self, trainer: &mut Trainer) -> Result<Option<Request>, TrainError> {
        trainer.callbacks.on_bad_samples(&self.bad_samples.exchange(trainer.group.as_ref())?)?;
        self.list_bad_samples()?;
        self.tracer.at(trainer.group.as_ref(), "writing a checkpoint");
        self.save(SaveReason::Stop, &trainer.config, trainer.group.as_ref(), &mut trainer.callbacks)?;
        Ok(agree(trainer.callbacks.control.request(), trainer.group.as_ref())?)
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
        group: Option<&Group>,
        callbacks: &mut Callbacks,
    ) -> Result<(), TrainError> {
        self.program.gather_state(false)?;
        self.check_finite(config, group)?;
        if let Some(writer) = &mut self.writer {
            writer.keep_states(callbacks.state_dicts()?);
            writer.save(self.program.as_mut(), group, &self.position, self.last_checkpoint.is_kept())?;
        } else if !config.keeps_nothing() {
            send_state(self.program.as_mut(), group)?;
        }
        self.saved(reason, callbacks)
    }

    /// Whether callbacks have set weights since the last call, all ranks the same ones.
    pub(super) fn compare_written(
        &mut self,
        group: Option<&Group>,
        callbacks: &mut Callbacks,
    ) -> Result<bool, TrainError> {
        let written = std::mem::take(&mut callbacks.control.written);
        let has_written = !written.is_empty();
        self.has_set_weights |= has_written;
        group.map_or(Ok(()), |group| compare_written(group, written))?;
        Ok(has_written)
    }

    /// Tells callbacks of a checkpoint.
    fn saved(&mut self, reason: SaveReason, callbacks: &mut Callbacks) -> Result<(), TrainError> {
        self.last_checkpoint = self.last_checkpoint.replaced();
        let path = self.writer.as_ref().map(|writer| writer.paths().last_checkpoint());
        callbacks.control.artifacts.extend(path.clone().map(|path| (Artifact::Checkpoint, path)));
        let Position { epoch, samples, .. } = self.position;
        callbacks.on_checkpoint(&Saved { path: path.as_deref(), reason, epoch, samples })
    }
}
