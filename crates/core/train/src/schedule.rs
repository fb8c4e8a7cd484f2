//! The learning rate as a function of progress: epochs done plus the fraction of samples consumed in this one.
//!
//! It is never a function of a step count: the same run on more ranks takes fewer steps, and a resumed run does not
//! count from zero. As in PyTorch, where schedulers step per epoch, the rate is constant within an epoch, so that one
//! number describes the rate of an epoch. Only warm-up rises with every step.

use std::f64::consts::PI;
use std::sync::Arc;

use crate::{LrScaling, ScheduleKind, TrainConfig};

/// Fraction of the learning rate at which warm-up begins (torchvision's `lr_warmup_decay`). At zero the first step
/// would have no effect.
const WARMUP_START: f64 = 0.01;

/// The learning rate over a run.
///
/// Warm-up takes the first `warmup_epochs`, and the schedule the rest, as in torchvision's recipes
/// (`SequentialLR([LinearLR, …])`).
///
/// ```
/// use enmasse_train::{LrSchedule, TrainConfig};
/// let config = TrainConfig { lr: 0.1, lrf: 0.1, epochs: 10, ..TrainConfig::default() };
/// let schedule = LrSchedule::new(&config, 2);
/// assert_eq!(schedule.learning_rate(0.0), 0.1);
/// assert_eq!(schedule.learning_rate(5.0), schedule.learning_rate(5.25));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LrSchedule {
    kind: ScheduleKind,
    highest: f64,
    /// Where [`ScheduleKind::Cosine`] ends, as a fraction of `highest`.
    floor: f64,
    step_size: f64,
    gamma: f64,
    epochs: f64,
    warmup_epochs: f64,
}

impl LrSchedule {
    /// The schedule of a run with `shards` shards, a number that matters only with `--scale-lr linear`.
    pub fn new(config: &TrainConfig, shards: usize) -> Self {
        let scale = match config.scale_lr {
            LrScaling::None => 1.0,
            LrScaling::Linear => shards as f64,
        };
        LrSchedule {
            kind: config.schedule,
            highest: config.lr * scale,
            floor: config.lrf,
            step_size: config.step_size as f64,
            gamma: config.gamma,
            epochs: config.epochs as f64,
            warmup_epochs: config.warmup_epochs,
        }
    }

    /// The rate after `progress` epochs: 2.5 is the middle of the third. The rate "of an epoch" is that of its last step. NaN for a
    /// schedule of a program's own, whose function is not known here.
    pub fn learning_rate(&self, progress: f64) -> f64 {
        if progress < self.warmup_epochs {
            return self.highest * (WARMUP_START + (1.0 - WARMUP_START) * (progress / self.warmup_epochs));
        }
        // The epoch in which a fractional warm-up ends starts the schedule early rather than at a negative position.
        let epoch = (progress.floor() - self.warmup_epochs).max(0.0);
        let cosine = |floor: f64| {
            let length = self.epochs - self.warmup_epochs;
            let position = if length > 0.0 { (epoch / length).min(1.0) } else { 0.0 };
            (1.0 + (PI * position).cos()) / 2.0 * (1.0 - floor) + floor
        };
        self.highest
            * match self.kind {
                ScheduleKind::Constant => 1.0,
                ScheduleKind::Cosine => cosine(self.floor),
                // PyTorch's `CosineAnnealingLR` with its default `eta_min=0`.
                ScheduleKind::CosineAnnealing => cosine(0.0),
                ScheduleKind::Step => self.gamma.powf((epoch / self.step_size).floor()),
                ScheduleKind::Own => f64::NAN,
            }
    }
}

/// A schedule of a program's own: from progress to the rate, as [`LrSchedule::learning_rate`].
pub(crate) type OwnSchedule = dyn Fn(f64) -> f64 + Send + Sync;

impl From<LrSchedule> for Arc<OwnSchedule> {
    fn from(schedule: LrSchedule) -> Self {
        Arc::new(move |progress| schedule.learning_rate(progress))
    }
}

/// The rates of a schedule at the hundredths of a run, a line each, for ranks to compare.
pub(crate) fn rates(schedule: &OwnSchedule, epochs: usize) -> String {
    let points = (0..100).map(|part| epochs as f64 * f64::from(part) / 100.0);
    points.map(|progress| format!("{} after {progress} epochs\n", schedule(progress))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(schedule: ScheduleKind) -> TrainConfig {
        TrainConfig { schedule, lr: 0.1, lrf: 0.1, epochs: 10, step_size: 3, gamma: 0.5, ..TrainConfig::default() }
    }

    /// Compares the rate at the start of each epoch with PyTorch's.
    fn check(config: &TrainConfig, expected: &[f64]) {
        let schedule = LrSchedule::new(config, 1);
        for (epoch, expected) in expected.iter().enumerate() {
            let found = schedule.learning_rate(epoch as f64);
            assert!((found - expected).abs() <= 1e-15, "epoch {epoch}: {found}, expected {expected}");
        }
    }

    /// PyTorch 2.13: `o = SGD([p], lr=0.1); s = SCHEDULER; for _ in range(10): print(o.param_groups[0]["lr"]); o.step(); s.step()`
    #[test]
    fn epochs_as_pytorch_steps_them() {
        // LambdaLR(o, lambda x: ((1 + math.cos(x * math.pi / 10)) / 2) * (1 - 0.1) + 0.1)
        let cosine = [
            0.1,
            0.09779754323328192,
            0.09140576474687263,
            0.08145033635316129,
            0.06890576474687264,
            0.05500000000000001,
            0.04109423525312738,
            0.02854966364683872,
            0.018594235253127374,
            0.012202456766718092,
        ];
        check(&config(ScheduleKind::Cosine), &cosine);
        // CosineAnnealingLR(o, 10)
        let annealing = [
            0.1,
            0.09755282581475769,
            0.09045084971874738,
            0.07938926261462367,
            0.06545084971874739,
            0.05000000000000001,
            0.03454915028125264,
            0.020610737385376353,
            0.009549150281252635,
            0.002447174185242324,
        ];
        check(&config(ScheduleKind::CosineAnnealing), &annealing);
        // StepLR(o, 3, 0.5)
        check(&config(ScheduleKind::Step), &[0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.0125]);
        check(&config(ScheduleKind::Constant), &[0.1; 10]);
        // SequentialLR(o, [LinearLR(o, 0.01, 1.0, total_iters=2), CosineAnnealingLR(o, 8, eta_min=0.01)], [2])
        let warm = [
            0.001,
            0.0505,
            0.1,
            0.0965745789630079,
            0.08681980515339463,
            0.07222075445642905,
            0.055,
            0.03777924554357096,
            0.023180194846605363,
            0.013425421036992097,
        ];
        check(&TrainConfig { warmup_epochs: 2.0, ..config(ScheduleKind::Cosine) }, &warm);
    }

    #[test]
    fn within_an_epoch() {
        let check = |warmup_epochs, progress, expected: f64| {
            let schedule = LrSchedule::new(&TrainConfig { warmup_epochs, ..config(ScheduleKind::Step) }, 1);
            let found = schedule.learning_rate(progress);
            assert!((found - expected).abs() <= 1e-15, "{warmup_epochs} {progress}: {found}, expected {expected}");
        };
        check(0.0, 2.999, 0.1);
        check(0.0, 3.0, 0.05);
        check(0.0, 3.999, 0.05);
        check(0.5, 0.0, 0.001);
        check(0.5, 0.25, 0.0505);
        check(0.5, 0.5, 0.1);
        check(0.5, 0.75, 0.1);
        // 2.5 epochs since warm-up ended at the start of epoch 3, 3.5 at the start of epoch 4.
        check(0.5, 3.5, 0.1);
        check(0.5, 4.0, 0.05);
        // If warm-up takes the whole run, no schedule follows it.
        check(10.0, 9.9, 0.1 * (0.01 + 0.99 * 0.99));
        check(10.0, 10.0, 0.1);
    }

    #[test]
    fn scaling_is_by_option_only() {
        let check = |scale_lr, expected| {
            let config = TrainConfig { scale_lr, ..config(ScheduleKind::Constant) };
            assert_eq!(LrSchedule::new(&config, 4).learning_rate(0.0), expected);
        };
        check(LrScaling::None, 0.1);
        check(LrScaling::Linear, 0.4);
    }
}
