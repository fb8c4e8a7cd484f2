//! The schedule that waits for a plateau.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Callback, CallbackResult, Control, Started};
use crate::schedule::OwnSchedule;
use crate::{Direction, EpochRecord, LrSchedule, Monitor, TrainConfig};

/// A value improves if it is better by this fraction of the best one.
const THRESHOLD: f64 = 1e-4;
/// A rate that would fall by no more than this stays.
const MIN_FALL: f64 = 1e-8;

/// Lowers the rate where the value that decides which epoch is the best no longer improves, as PyTorch's `ReduceLROnPlateau` with its
/// defaults. All ranks see the same records, and so have the same rates.
pub(crate) struct Plateau {
    monitor: Monitor,
    gamma: f64,
    patience: u64,
    warmup_epochs: f64,
    highest: f64,
    best: f64,
    /// Epochs since then.
    waited: u64,
    /// The product of all falls, as bits.
    factor: Arc<AtomicU64>,
}

impl Plateau {
    /// Watches a value for a run with this schedule.
    pub fn new(config: &TrainConfig, schedule: &LrSchedule, monitor: &Monitor) -> Self {
        let mut plateau = Plateau {
            monitor: monitor.clone(),
            gamma: config.gamma,
            patience: config.plateau_patience,
            warmup_epochs: config.warmup_epochs,
            highest: schedule.highest(),
            best: f64::NAN,
            waited: 0,
            factor: Arc::default(),
        };
        plateau.begin();
        plateau
    }

    fn begin(&mut self) {
        self.best = match self.monitor.direction {
            Direction::Lower => f64::INFINITY,
            Direction::Higher => f64::NEG_INFINITY,
        };
        self.waited = 0;
        self.set_factor(1.0);
    }

    /// The schedule, lowered by what was found.
    pub fn lowering(&self, schedule: LrSchedule) -> Arc<OwnSchedule> {
        let factor = self.factor.clone();
        Arc::new(move |progress| schedule.learning_rate(progress) * f64::from_bits(factor.load(Ordering::Relaxed)))
    }

    fn factor(&self) -> f64 {
        f64::from_bits(self.factor.load(Ordering::Relaxed))
    }

    fn set_factor(&self, factor: f64) {
        self.factor.store(factor.to_bits(), Ordering::Relaxed);
    }

    /// Takes the value of an epoch.
    fn add(&mut self, value: f64) {
        let is_better = match self.monitor.direction {
            Direction::Lower => value < self.best * (1.0 - THRESHOLD),
            Direction::Higher => value > self.best * (1.0 + THRESHOLD),
        };
        if is_better {
            (self.best, self.waited) = (value, 0);
        } else {
            self.waited += 1;
        }
        if self.waited > self.patience {
            let before = self.factor();
            let now = self.factor() * self.gamma;
            if self.highest * (before - now) > MIN_FALL {
                self.set_factor(now);
            }
            self.waited = 0;
        }
    }
}

impl Callback for Plateau {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        if started.resumed.is_none() {
            self.begin();
        }
        Ok(())
    }

    /// Epochs of warm-up do not count, as in timm.
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        if !record.partial && !record.unvalidated && (record.epoch + 1) as f64 > self.warmup_epochs {
            self.add(self.monitor.value(record)?);
        }
        Ok(())
    }

    fn state_key(&self) -> Option<String> {
        Some(format!("ReduceLROnPlateau {}", self.monitor.name))
    }

    /// The best value, the epochs since then, and the factor of the rate.
    fn state_dict(&self) -> String {
        format!("{} {} {}", self.best, self.waited, self.factor())
    }

    fn load_state_dict(&mut self, state: &str) -> CallbackResult {
        let words: Vec<&str> = state.split_whitespace().collect();
        let [best, waited, factor] = words[..] else { return Err("it has not three numbers".into()) };
        (self.best, self.waited) = (best.parse()?, waited.parse()?);
        self.set_factor(factor.parse()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Steering;
    use super::*;
    use crate::schedule::tests::pytorchs;

    /// The rates after the epochs of some values of a loss, each of a callback that was resumed with the state of the one before.
    fn rates(config: &TrainConfig, direction: Direction, values: &[f64]) -> Vec<f64> {
        let monitor = Monitor { name: "val_loss".to_owned(), direction };
        let schedule = LrSchedule::new(config, 1);
        let mut state = Plateau::new(config, &schedule, &monitor).state_dict();
        let epochs = (0..).zip(values).map(|(epoch, &val_loss)| {
            let mut plateau = Plateau::new(config, &schedule, &monitor);
            plateau.load_state_dict(&state).unwrap();
            let record = EpochRecord { epoch, val_loss, ..EpochRecord::default() };
            plateau.on_train_epoch_end(&record, &mut Control::new(&mut Steering::default(), None)).unwrap();
            state = plateau.state_dict();
            plateau.lowering(schedule.clone())((epoch + 1) as f64)
        });
        epochs.collect()
    }

    #[test]
    fn the_rates_are_pytorchs() {
        let cases = pytorchs(|case| case["values"].is_array());
        assert_eq!(cases.len(), 3);
        for (case, config) in cases {
            let direction = if case["mode"] == "min" { Direction::Lower } else { Direction::Higher };
            let numbers = |name: &str| -> Vec<f64> {
                case[name].as_array().unwrap().iter().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect()
            };
            let found = rates(&config, direction, &numbers("values"));
            let expected = numbers("rates");
            let is_near = |(found, expected): (&f64, &f64)| (found / expected - 1.0).abs() <= 1e-14;
            assert!(found.iter().zip(&expected).all(is_near), "{found:?}, expected {expected:?}");
            assert_eq!(found.len(), expected.len());
        }
    }

    #[test]
    fn warm_up_and_epochs_without_a_validation_do_not_count() {
        let config = TrainConfig {
            lr: 1.0,
            schedule: crate::ScheduleKind::Plateau,
            warmup_epochs: 2.0,
            plateau_patience: 0,
            ..TrainConfig::default()
        };
        assert_eq!(rates(&config, Direction::Lower, &[1.0, 1.0, 1.0, 1.0]).last(), Some(&0.1));
        let mut plateau = Plateau::new(&config, &LrSchedule::new(&config, 1), &Monitor::lower("val_loss"));
        let before = plateau.state_dict();
        let partial = EpochRecord { epoch: 5, partial: true, ..EpochRecord::default() };
        let unvalidated = EpochRecord { unvalidated: true, partial: false, ..partial.clone() };
        for record in [partial, unvalidated] {
            plateau.on_train_epoch_end(&record, &mut Control::new(&mut Steering::default(), None)).unwrap();
            assert_eq!(plateau.state_dict(), before);
        }
        assert!(plateau.load_state_dict("1 2").is_err());
    }
}
