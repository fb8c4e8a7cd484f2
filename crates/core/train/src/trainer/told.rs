//! What steps tell: their metrics, the scale of the loss, and a timeline of some of them.

use enmasse_comm::Group;
use enmasse_device::{Device, DeviceError, StepMetrics};
use enmasse_graph::LOSS_SCALE_PREFIX;

use super::{Epoch, Session, SubmittedStep};
use crate::callback::Callbacks;
use crate::plans::training_metrics;
use crate::trace::Traced;
use crate::{Progress, TrainConfig, TrainError};

impl Session {
    /// Adds a step's metrics to the epoch's, and returns them.
    pub(super) fn count(
        &mut self,
        metrics: Result<StepMetrics, DeviceError>,
        samples: u64,
        config: &TrainConfig,
    ) -> Result<StepMetrics, TrainError> {
        let metrics = metrics.map_err(|error| match error {
            DeviceError::NonFinite { shard, loss } => self.non_finite_loss(config, shard, loss),
            other => other.into(),
        })?;
        self.prove_last()?;
        self.add(&metrics, samples);
        Ok(metrics)
    }

    /// Adds the metrics of a step that has ended well.
    pub(super) fn add(&mut self, metrics: &StepMetrics, samples: u64) {
        self.position.count(metrics, training_metrics(self.program.plans()), samples);
        self.stopping = metrics.stop;
        self.saving = metrics.save;
        (self.epoch_end, self.has_set_weights) = (None, false);
    }

    /// The progress after a step, for callbacks.
    pub(super) fn progress_after(
        &self,
        config: &TrainConfig,
        epoch: &Epoch,
        step: SubmittedStep,
        metrics: &StepMetrics,
    ) -> Progress {
        Progress {
            epoch: self.position.epoch,
            epochs: config.epochs as u64,
            validating: false,
            optimizer_step: self.position.optimizer_step,
            step_loss: metrics.loss,
            learning_rate: step.learning_rate,
            samples: self.position.samples,
            total: epoch.total,
            loss: self.position.mean_loss(),
            images_per_second: (self.position.samples - epoch.first) as f64 / epoch.began.elapsed().as_secs_f64(),
            loss_scale: metrics.loss_scale,
        }
    }

    /// The scale of the next step's loss, if it is scaled. The device has ended all steps.
    pub(super) fn loss_scale(&mut self) -> Result<Option<f64>, TrainError> {
        let name = format!("{LOSS_SCALE_PREFIX}scale");
        let is_scaled = self.program.plans().find(&name).is_some();
        Ok(if is_scaled { self.program.store(&name)?.first().copied() } else { None })
    }

    /// Writes the timeline if its steps are done, or if training ends. Every rank calls this after the same step.
    pub(super) fn write_trace(
        &mut self,
        device: &dyn Device,
        group: Option<&Group>,
        callbacks: &mut Callbacks,
        training_ends: bool,
    ) -> Result<(), TrainError> {
        let traced = match self.tracer.take(training_ends) {
            Some(recording) => {
                self.tracer.at(group, "writing a trace");
                recording.finish(self.program.as_mut(), group, &device.name(), self.writer.as_ref())?
            }
            None if training_ends && self.tracer.is_missing() => Traced::none(),
            None => return Ok(()),
        };
        callbacks.on_trace(&traced)
    }
}
