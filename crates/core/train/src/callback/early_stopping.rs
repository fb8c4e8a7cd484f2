//! Ends training once a value of the epochs no longer improves.

use super::{Callback, CallbackResult, Control, Started};
use crate::{CheckpointMeta, Direction, EpochRecord, Monitor, TrainConfig};

/// Ends training, as a success, once a value of the epochs' records has not improved for some epochs, as Lightning's `EarlyStopping`. The best
/// checkpoint is that of the best epoch in any case. A resumed run goes on counting.
///
/// ```no_run
/// use enmasse_train::{EarlyStopping, Monitor, TrainConfig, Trainer, TrainingData};
/// # fn example(device: std::sync::Arc<dyn enmasse_device::Device>) -> Result<(), enmasse_train::TrainError> {
/// let config = TrainConfig { epochs: 100, ..TrainConfig::default() };
/// let data = TrainingData::open("flower_photos".as_ref(), &config.open_options())?;
/// let stopping = EarlyStopping::new(Monitor::lower("val_loss")).patience(5).min_delta(0.001);
/// let mut trainer = Trainer::new(config, device).callback(stopping);
/// trainer.fit("linear", &|x, classes| x.flatten().linear("fc", classes), &data)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    monitor: Monitor,
    patience: u64,
    min_delta: f64,
    /// The best value so far, and its epoch.
    best: Option<(f64, u64)>,
    /// Epochs since then.
    waited: u64,
}

impl EarlyStopping {
    /// Watches a value of [`EpochRecord::scalars`], with a patience of 3 epochs.
    pub fn new(monitor: Monitor) -> Self {
        EarlyStopping { monitor, patience: 3, min_delta: 0.0, best: None, waited: 0 }
    }

    /// Whether the setting `patience` has ended the run with this checkpoint.
    pub fn has_ended(config: &TrainConfig, meta: &CheckpointMeta) -> bool {
        let watched = Monitor::higher(config.monitor.as_ref().unwrap_or(&meta.best.metric));
        let mut own = EarlyStopping::new(watched).patience(config.patience.unwrap_or(u64::MAX));
        let state = own.state_key().and_then(|key| meta.callbacks.get(&key));
        state.is_some_and(|state| own.load_state_dict(state).is_ok() && own.waited >= own.patience)
    }

    /// Sets after how many epochs without improvement training ends.
    pub fn patience(self, epochs: u64) -> Self {
        EarlyStopping { patience: epochs.max(1), ..self }
    }

    /// Sets by how much a value must be better to count as an improvement. The default is 0.
    pub fn min_delta(self, delta: f64) -> Self {
        EarlyStopping { min_delta: delta, ..self }
    }

    fn stop_if_over(&self, control: &mut Control) {
        if let (true, Some((best, epoch))) = (self.waited >= self.patience, self.best) {
            let name = &self.monitor.name;
            let epochs = enmasse_wording::counted(self.waited as usize, "epoch");
            let reason = format!("{name} has not improved for {epochs}; the best is {best:.4}, of epoch {}", epoch + 1);
            control.stop_because(reason);
        }
    }
}

impl Callback for EarlyStopping {
    fn on_fit_start(&mut self, started: &Started, control: &mut Control) -> CallbackResult {
        if started.resumed.is_none() {
            (self.best, self.waited) = (None, 0);
        }
        self.stop_if_over(control);
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        if record.unvalidated {
            return Ok(());
        }
        let value = self.monitor.value(record)?;
        if record.partial {
            return Ok(());
        }
        let reached = match self.monitor.direction {
            Direction::Lower => value + self.min_delta,
            Direction::Higher => value - self.min_delta,
        };
        if self.monitor.improves(reached, self.best.map(|(best, _)| best)) {
            (self.best, self.waited) = (Some((value, record.epoch)), 0);
        } else {
            self.waited += 1;
        }
        self.stop_if_over(control);
        Ok(())
    }

    fn state_key(&self) -> Option<String> {
        Some(format!("EarlyStopping {}", self.monitor.name))
    }

    /// The best value, its epoch, and the epochs since then.
    fn state_dict(&self) -> String {
        self.best.map_or(String::new(), |(best, epoch)| format!("{best} {epoch} {}", self.waited))
    }

    fn load_state_dict(&mut self, state: &str) -> CallbackResult {
        let words: Vec<&str> = state.split_whitespace().collect();
        (self.best, self.waited) = match words[..] {
            [] => (None, 0),
            [best, epoch, waited] => (Some((best.parse()?, epoch.parse()?)), waited.parse()?),
            _ => return Err("it has not three numbers".into()),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Steering;
    use super::*;

    /// The epoch in which the values of a loss end training, after a resume at the end of each epoch.
    fn ends(own: &EarlyStopping, values: &[f64]) -> Option<u64> {
        let mut own = own.clone();
        (0..).zip(values).find_map(|(epoch, &val_loss)| {
            let record = EpochRecord { epoch, val_loss, ..EpochRecord::default() };
            let mut steering = Steering::default();
            own.on_train_epoch_end(&record, &mut Control::new(&mut steering, None)).unwrap();
            let state = own.state_dict();
            (own.best, own.waited) = (None, 0);
            own.load_state_dict(&state).unwrap();
            steering.reason.map(|_| epoch)
        })
    }

    #[test]
    fn epochs_without_improvement() {
        let own = EarlyStopping::new(Monitor::lower("val_loss")).patience(2);
        let check = |own: &EarlyStopping, values: &[f64], expected: Option<u64>| {
            assert_eq!(ends(own, values), expected, "{values:?}");
        };
        check(&own, &[3.0, 2.0, 1.0, 0.5], None);
        check(&own, &[3.0, 3.0, 2.0, 2.0, 2.0], Some(4));
        check(&own, &[1.0, 2.0, 3.0], Some(2));
        check(&own, &[f64::NAN, f64::NAN, 1.0, 2.0, 0.9, f64::NAN, f64::NAN], Some(6));
        check(&own.clone().patience(0), &[1.0, 1.0], Some(1));
        check(&own.clone().min_delta(0.5), &[3.0, 2.6, 2.5], Some(2));
        check(&own.clone().min_delta(0.5), &[3.0, 2.6, 2.4, 2.0, 1.8], None);
        let skipped = EpochRecord { unvalidated: true, ..EpochRecord::default() };
        let mut steering = Steering::default();
        let mut watching = own.clone();
        watching.on_train_epoch_end(&skipped, &mut Control::new(&mut steering, None)).unwrap();
        assert_eq!(watching.state_dict(), own.state_dict());
        let higher = EarlyStopping { monitor: Monitor::higher("val_loss"), ..own };
        check(&higher, &[1.0, 2.0, 3.0], None);
        check(&higher.min_delta(0.5), &[1.0, 1.25, 1.5], Some(2));
    }
}
