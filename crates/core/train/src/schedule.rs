//! The learning rate as a function of progress: epochs done plus the fraction of samples consumed in this one.
//!
//! It is never a function of a step count: the same run on more ranks takes fewer steps, and a resumed run does not
//! count from zero. As in PyTorch, where schedulers step per epoch, the rate is constant within an epoch, so that one
//! number describes the rate of an epoch. Only warm-up and one cycle, which PyTorch too steps per batch, change with every step.

use std::f64::consts::PI;
use std::sync::Arc;

use crate::{AnnealStrategy, LrScaling, ScheduleKind, TrainConfig};

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
    curve: Curve,
    highest: f64,
    /// Epochs before the schedule, which train the head alone.
    before: f64,
    epochs: f64,
    warmup_epochs: f64,
    /// Epochs that a step takes.
    step: f64,
}

/// The rate as a fraction of the highest.
#[derive(Clone, Debug, PartialEq)]
enum Curve {
    Constant,
    Cosine { floor: f64 },
    WarmRestarts { first: f64, growth: f64 },
    OneCycle { rise: f64, start: f64, end: f64, strategy: AnnealStrategy },
    Polynomial { power: f64 },
    Step { size: f64, gamma: f64 },
    Own,
}

impl LrSchedule {
    /// The schedule of a run with `shards` shards, a number that matters only with `--scale-lr`. Of a plateau it is the rate until the
    /// first one is found.
    pub fn new(config: &TrainConfig, shards: usize) -> Self {
        let scale = match config.scale_lr {
            LrScaling::None => 1.0,
            LrScaling::Linear => shards as f64,
            LrScaling::Sqrt => (shards as f64).sqrt(),
        };
        let curve = match config.schedule {
            ScheduleKind::Constant | ScheduleKind::Plateau => Curve::Constant,
            ScheduleKind::Cosine => Curve::Cosine { floor: config.lrf },
            // PyTorch's `CosineAnnealingLR` with its default `eta_min=0`.
            ScheduleKind::CosineAnnealing => Curve::Cosine { floor: 0.0 },
            ScheduleKind::WarmRestarts => {
                Curve::WarmRestarts { first: config.restart_epochs as f64, growth: config.restart_mult as f64 }
            }
            ScheduleKind::OneCycle => {
                let start = 1.0 / config.div_factor;
                let (rise, strategy) = (config.pct_start, config.anneal_strategy);
                Curve::OneCycle { rise, start, end: start / config.final_div_factor, strategy }
            }
            ScheduleKind::Polynomial => Curve::Polynomial { power: config.power },
            ScheduleKind::Step => Curve::Step { size: config.step_size as f64, gamma: config.gamma },
            ScheduleKind::Own => Curve::Own,
        };
        LrSchedule {
            curve,
            highest: config.lr * scale,
            before: config.epochs_of_head() as f64,
            epochs: (config.epochs - config.epochs_of_head()) as f64,
            warmup_epochs: config.warmup_epochs,
            step: 0.0,
        }
    }

    /// Sets how many steps an epoch has: one cycle then reaches its highest and its last rate at a step, as PyTorch's.
    pub fn steps_per_epoch(self, steps: usize) -> Self {
        LrSchedule { step: 1.0 / steps.max(1) as f64, ..self }
    }

    /// The rate of [`TrainConfig::lr`], scaled.
    pub(crate) fn highest(&self) -> f64 {
        self.highest
    }

    /// The rate after `progress` epochs: 2.5 is the middle of the third. The rate "of an epoch" is that of its last step. NaN for a
    /// schedule of a program's own, whose function is not known here.
    pub fn learning_rate(&self, progress: f64) -> f64 {
        let progress = (progress - self.before).max(0.0);
        if progress < self.warmup_epochs {
            return self.highest * (WARMUP_START + (1.0 - WARMUP_START) * (progress / self.warmup_epochs));
        }
        // The epoch in which a fractional warm-up ends starts the schedule early rather than at a negative position.
        let epoch = (progress.floor() - self.warmup_epochs).max(0.0);
        let length = self.epochs - self.warmup_epochs;
        let position = if length > 0.0 { (epoch / length).min(1.0) } else { 0.0 };
        self.highest
            * match self.curve {
                Curve::Constant => 1.0,
                Curve::Cosine { floor } => cosine(position, 1.0, floor),
                Curve::WarmRestarts { first, growth } => {
                    let (mut since, mut length) = (epoch, first);
                    while since >= length {
                        (since, length) = (since - length, length * growth);
                    }
                    cosine(since / length, 1.0, 0.0)
                }
                Curve::OneCycle { rise, start, end, strategy } => {
                    let between = match strategy {
                        AnnealStrategy::Cos => cosine,
                        AnnealStrategy::Linear => line,
                    };
                    let top = rise * self.epochs - self.step;
                    let last = self.epochs - self.step;
                    if progress < top {
                        between(progress / top, start, 1.0)
                    } else if top < last {
                        between(((progress - top) / (last - top)).min(1.0), 1.0, end)
                    } else {
                        1.0
                    }
                }
                Curve::Polynomial { power } => (1.0 - position).powf(power),
                Curve::Step { size, gamma } => gamma.powf((epoch / size).floor()),
                Curve::Own => f64::NAN,
            }
    }
}

/// The value at a position from 0 to 1 on half a cosine between two values.
fn cosine(position: f64, from: f64, to: f64) -> f64 {
    (1.0 + (PI * position).cos()) / 2.0 * (from - to) + to
}

/// The value at a position from 0 to 1 between two values.
fn line(position: f64, from: f64, to: f64) -> f64 {
    from + position * (to - from)
}

/// A schedule of a program's own: from progress to the rate, as [`LrSchedule::learning_rate`].
pub(crate) type OwnSchedule = dyn Fn(f64) -> f64 + Send + Sync;

impl From<LrSchedule> for Arc<OwnSchedule> {
    fn from(schedule: LrSchedule) -> Self {
        Arc::new(move |progress| schedule.learning_rate(progress))
    }
}

#[cfg(test)]
pub(crate) mod tests {
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

    /// `fixtures/schedules.json`, made by PyTorch: those cases for which `has` holds, with their settings.
    pub(crate) fn pytorchs(has: impl Fn(&serde_json::Value) -> bool) -> Vec<(serde_json::Value, TrainConfig)> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/schedules.json");
        let cases: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let cases = cases.as_object().unwrap().values().filter(|case| has(case));
        let with_config = cases.map(|case| {
            let mut config = TrainConfig::default();
            for (name, value) in case["settings"].as_object().unwrap() {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                config.set(name, &text).unwrap();
            }
            config.check().unwrap();
            (case.clone(), config)
        });
        with_config.collect()
    }

    #[test]
    fn the_rates_are_pytorchs() {
        let cases = pytorchs(|case| case["values"].is_null());
        assert_eq!(cases.len(), 7);
        for (case, config) in cases {
            let steps = case["steps_per_epoch"].as_u64().unwrap_or(1);
            let schedule = LrSchedule::new(&config, 1).steps_per_epoch(steps as usize);
            for (step, expected) in (0u64..).zip(case["rates"].as_array().unwrap()) {
                let epoch = step / steps;
                let of_epoch = step % steps;
                let found = schedule.learning_rate(epoch as f64 + of_epoch as f64 / steps as f64);
                let expected = expected.as_f64().unwrap();
                assert!((found - expected).abs() <= 1e-14, "{config:?}, step {step}: {found}, expected {expected}");
            }
        }
    }

    /// A last batch that is not full, and a cycle that only rises or only falls.
    #[test]
    fn one_cycle_ends_within_its_rates() {
        let check = |pct_start: f64, steps: Option<usize>, progress: f64, expected: f64| {
            let config = TrainConfig { pct_start, ..config(ScheduleKind::OneCycle) };
            let schedule = LrSchedule::new(&config, 1);
            let schedule = steps.map_or(schedule.clone(), |steps| schedule.steps_per_epoch(steps));
            let found = schedule.learning_rate(progress);
            assert!((found - expected).abs() <= 1e-15, "{pct_start} {steps:?} {progress}: {found}");
        };
        check(0.3, None, 0.0, 0.004);
        check(0.3, None, 3.0, 0.1);
        check(0.3, Some(4), 2.75, 0.1);
        check(0.3, Some(4), 9.75, 4e-7);
        check(0.3, Some(4), 9.9, 4e-7);
        check(0.0, None, 0.0, 0.1);
        check(1.0, None, 0.0, 0.004);
        check(1.0, Some(4), 9.75, 0.1);
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
        check(LrScaling::Sqrt, 0.2);
    }
}
