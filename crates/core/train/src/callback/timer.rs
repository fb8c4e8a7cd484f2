//! Ends training after a time.

use std::time::{Duration, Instant};

use super::{Callback, CallbackResult, Control, Progress, Started};
use crate::{CheckpointMeta, EpochRecord, TimeLimit, TrainConfig};

/// Ends training, as a success, once it has taken a time, as Lightning's `Timer`: between two steps, after a checkpoint. A resumed run
/// goes on counting. The time of preparation before the first step is not counted, that of validations is.
#[derive(Debug)]
pub struct Timer {
    limit: TimeLimit,
    /// What earlier starts of the run have taken.
    before: Duration,
    began: Option<Instant>,
}

impl Timer {
    /// Ends training after this time.
    pub fn new(limit: TimeLimit) -> Self {
        Timer { limit, before: Duration::ZERO, began: None }
    }

    /// Whether the setting `max_time` has ended the run with this checkpoint.
    pub fn has_ended(config: &TrainConfig, meta: &CheckpointMeta) -> bool {
        let Some(mut own) = config.max_time.map(Timer::new) else { return false };
        let state = own.state_key().and_then(|key| meta.callbacks.get(&key));
        state.is_some_and(|state| own.load_state_dict(state).is_ok() && own.elapsed() >= own.limit.0)
    }

    fn elapsed(&self) -> Duration {
        self.before.saturating_add(self.began.map_or(Duration::ZERO, |began| began.elapsed()))
    }

    fn stop_if_over(&self, control: &mut Control) {
        if self.elapsed() >= self.limit.0 {
            control.stop_because(format!("the {} of `max_time` are over", self.limit));
        }
    }
}

impl Callback for Timer {
    fn on_fit_start(&mut self, started: &Started, control: &mut Control) -> CallbackResult {
        if started.resumed.is_none() {
            self.before = Duration::ZERO;
        }
        self.began = None;
        self.stop_if_over(control);
        self.began = Some(Instant::now());
        Ok(())
    }

    fn on_train_batch_end(&mut self, _: &Progress, control: &mut Control) -> CallbackResult {
        self.stop_if_over(control);
        Ok(())
    }

    fn on_train_epoch_end(&mut self, _: &EpochRecord, control: &mut Control) -> CallbackResult {
        self.stop_if_over(control);
        Ok(())
    }

    fn state_key(&self) -> Option<String> {
        Some("Timer".to_owned())
    }

    /// The seconds so far.
    fn state_dict(&self) -> String {
        self.elapsed().as_secs_f64().to_string()
    }

    fn load_state_dict(&mut self, state: &str) -> CallbackResult {
        self.before = Duration::try_from_secs_f64(state.parse()?)?;
        Ok(())
    }
}
