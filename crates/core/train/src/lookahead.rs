//! Lookahead: the steps in which the weights meet the slow weights, and where between them.

use crate::TrainConfig;

/// The setting `lookahead` and those beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lookahead {
    every: u64,
    alpha: f64,
    power: f64,
    /// Epochs before the first step, which train the head alone.
    before: f64,
    epochs: f64,
}

impl Lookahead {
    /// That of a run, if it has one.
    pub fn new(config: &TrainConfig) -> Option<Self> {
        let before = config.epochs_of_head();
        Some(Lookahead {
            every: config.lookahead?,
            alpha: config.lookahead_alpha,
            power: config.lookahead_power,
            before: before as f64,
            epochs: (config.epochs - before) as f64,
        })
    }

    /// The alpha of the step with this number, from 1, after which `progress` epochs are done. `None` if nothing meets in it.
    pub fn alpha(&self, step: u64, progress: f64) -> Option<f64> {
        let done = ((progress - self.before) / self.epochs).min(1.0);
        step.is_multiple_of(self.every).then(|| 1.0 - (1.0 - self.alpha) * done.powf(self.power))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FineTune, TrainConfig};

    #[test]
    fn weights_meet_every_so_many_steps() {
        let check = |config: TrainConfig, step: u64, progress: f64, expected: Option<f64>| {
            let found = Lookahead::new(&config).and_then(|lookahead| lookahead.alpha(step, progress));
            assert_eq!(found, expected, "step {step} at {progress}");
        };
        let with = |power| TrainConfig {
            epochs: 10,
            lookahead: Some(5),
            lookahead_alpha: 0.25,
            lookahead_power: power,
            ..TrainConfig::default()
        };
        check(TrainConfig::default(), 5, 1.0, None);
        check(with(0.0), 4, 1.0, None);
        check(with(0.0), 5, 1.0, Some(0.25));
        check(with(0.0), 10, 10.0, Some(0.25));
        check(with(3.0), 5, 5.0, Some(1.0 - 0.75 * 0.125));
        check(with(3.0), 10, 10.0, Some(0.25));
        // The first epoch trains the head without steps.
        let tuned = TrainConfig { weights: Some("w.pth".into()), fine_tune: Some(FineTune::All), ..with(1.0) };
        let before = tuned.epochs_of_head() as f64;
        check(tuned, 5, before + (10.0 - before) / 2.0, Some(0.625));
    }
}
