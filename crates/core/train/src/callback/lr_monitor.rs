//! Gives the loggers the learning rate of steps.

use super::{Callback, CallbackResult, Control, Progress};

/// Gives the loggers the learning rate of each step, or of some, as `lr`, as Lightning's `LearningRateMonitor`. Records of epochs have it without.
///
/// ```no_run
/// use enmasse_train::{LrMonitor, TrainConfig, Trainer};
/// # fn example(device: std::sync::Arc<dyn enmasse_device::Device>) {
/// let trainer = Trainer::new(TrainConfig::default(), device).callback(LrMonitor::every(10));
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LrMonitor {
    steps: u64,
}

impl LrMonitor {
    /// That of every `steps`-th step.
    pub fn every(steps: u64) -> Self {
        LrMonitor { steps: steps.max(1) }
    }
}

impl Default for LrMonitor {
    fn default() -> Self {
        LrMonitor::every(1)
    }
}

impl Callback for LrMonitor {
    fn on_train_batch_end(&mut self, progress: &Progress, control: &mut Control) -> CallbackResult {
        if progress.optimizer_step.is_multiple_of(self.steps) {
            control.log_step(progress.optimizer_step, "lr", progress.learning_rate);
        }
        Ok(())
    }
}
