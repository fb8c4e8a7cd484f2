//! The position of a run: the data that a checkpoint keeps apart from tensors, so that the resumed run ends with the
//! same bits and figures.

use enmasse_comm::Group;
use enmasse_device::StepMetrics;
use enmasse_graph::{MAX_METRICS, Measured, Per};

use crate::{CheckpointMeta, EpochSums, TrainError};

/// The point between two steps that a run has reached, with the sums of the epoch so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Position {
    /// The current epoch, from 0.
    pub epoch: u64,
    /// Samples of the epoch that are consumed, over all ranks.
    pub samples: u64,
    /// Steps done since the run began.
    pub optimizer_step: u64,
    /// Sum of the losses of this epoch's samples.
    pub loss_sum: f64,
    /// Hits among this epoch's samples.
    pub correct: u64,
    /// Sums over this epoch's samples of the plan's further metrics, in their order. A metric of the step counts once
    /// for each of its samples. NaN if the epoch began without the metric.
    pub measured: [f64; MAX_METRICS],
    /// Steps of this epoch that loss scaling skipped.
    pub skipped_steps: u64,
    /// The samples of these steps. They have no metrics of a step, since their gradients are not finite.
    pub skipped_samples: u64,
    /// The samples of this epoch after which the model was last validated.
    pub validated_samples: u64,
    /// The best value so far of what the run monitors; `None` before the first validation of a whole epoch.
    pub best: Option<f64>,
}

/// The names of an epoch's further counts, among the sums of a checkpoint. Metrics of plans are words.
const COUNTS: [&str; 3] = ["skipped/steps", "skipped/samples", "validated/samples"];

impl Position {
    /// The position that a checkpoint was saved at, for a plan with these metrics.
    pub fn from_meta(meta: &CheckpointMeta, metrics: &[Measured]) -> Self {
        let mut measured = [0.0; MAX_METRICS];
        for (sum, metric) in measured.iter_mut().zip(metrics) {
            let saved = meta.epoch_sums.metrics.get(&metric.name).copied();
            *sum = saved.unwrap_or(if meta.samples_consumed == 0 { 0.0 } else { f64::NAN });
        }
        let [skipped_steps, skipped_samples, validated_samples] =
            COUNTS.map(|name| meta.epoch_sums.metrics.get(name).map_or(0, |count| *count as u64));
        Position {
            measured,
            skipped_steps,
            skipped_samples,
            validated_samples,
            epoch: meta.epoch,
            samples: meta.samples_consumed,
            optimizer_step: meta.optimizer_step,
            loss_sum: meta.epoch_sums.loss,
            correct: meta.epoch_sums.correct,
            best: meta.best.value,
        }
    }

    /// Writes the position to a checkpoint's texts, with the names of the plan's metrics.
    pub fn write_to(&self, meta: &mut CheckpointMeta, metrics: &[Measured]) {
        meta.epoch = self.epoch;
        meta.samples_consumed = self.samples;
        let metrics = metrics.iter().zip(self.measured).map(|(metric, sum)| (metric.name.clone(), sum));
        let counts = COUNTS.into_iter().zip([self.skipped_steps, self.skipped_samples, self.validated_samples]);
        let counts = counts.filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count as f64));
        let metrics = metrics.chain(counts).collect();
        meta.epoch_sums = EpochSums { loss: self.loss_sum, correct: self.correct, samples: self.samples, metrics };
        meta.optimizer_step = self.optimizer_step;
        meta.best.value = self.best;
    }

    /// Mean loss over the samples of this epoch.
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.samples.max(1) as f64
    }

    /// Share of hits among the samples of this epoch.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples.max(1) as f64
    }

    /// Adds a training step over `samples` samples.
    pub fn count(&mut self, step: &StepMetrics, metrics: &[Measured], samples: u64) {
        self.optimizer_step += 1;
        self.samples += samples;
        self.loss_sum += step.loss * samples as f64;
        self.correct += step.correct;
        let is_skipped = step.loss_scale.is_some_and(|loss_scale| loss_scale.skipped);
        if is_skipped {
            self.skipped_steps += 1;
            self.skipped_samples += samples;
        }
        for ((sum, value), metric) in self.measured.iter_mut().zip(step.measured).zip(metrics) {
            *sum += match metric.per {
                Per::Sample => value,
                Per::Step if is_skipped => 0.0,
                Per::Step => value * samples as f64,
            };
        }
    }

    /// Means over this epoch's samples of the plan's metrics, by name; those of a step without the steps that were skipped, and
    /// NaN if all were.
    pub fn means<'a>(&self, metrics: &'a [Measured]) -> impl Iterator<Item = (&'a str, f64)> {
        let all = self.samples.max(1);
        let applied = all.saturating_sub(self.skipped_samples);
        metrics.iter().zip(self.measured).map(move |(metric, sum)| {
            let samples = if metric.per == Per::Sample { all } else { applied };
            (metric.name.as_str(), sum / samples as f64)
        })
    }

    /// Whether the model was validated after the last sample of this epoch so far; true at its beginning.
    pub fn is_validated(&self) -> bool {
        self.validated_samples == self.samples
    }

    /// Whether the run has advanced beyond its start.
    pub fn is_resumed(&self) -> bool {
        *self != Position::default()
    }

    /// The beginning of the next epoch.
    pub fn next_epoch(&mut self) {
        let Position { epoch, optimizer_step, best, .. } = *self;
        *self = Position { epoch: epoch + 1, optimizer_step, best, ..Position::default() };
    }

    /// Rank 0's position on every rank.
    ///
    /// # Errors
    /// The group fails.
    pub fn broadcast(&self, group: &Group) -> Result<Self, TrainError> {
        let mut bits = [
            self.epoch as i64,
            self.samples as i64,
            self.optimizer_step as i64,
            self.loss_sum.to_bits() as i64,
            self.correct as i64,
            self.best.unwrap_or(f64::NAN).to_bits() as i64,
            self.skipped_steps as i64,
            self.skipped_samples as i64,
            self.validated_samples as i64,
        ];
        group.broadcast(&mut bits, 0)?;
        let mut measured = self.measured.map(|sum| sum.to_bits() as i64);
        group.broadcast(&mut measured, 0)?;
        let [epoch, samples, optimizer_step, loss_sum, correct, best, counts @ ..] = bits.map(|word| word as u64);
        let [skipped_steps, skipped_samples, validated_samples] = counts;
        let best = f64::from_bits(best);
        Ok(Position {
            epoch,
            samples,
            optimizer_step,
            loss_sum: f64::from_bits(loss_sum),
            correct,
            measured: measured.map(|bits| f64::from_bits(bits as u64)),
            skipped_steps,
            skipped_samples,
            validated_samples,
            best: (!best.is_nan()).then_some(best),
        })
    }
}

#[cfg(test)]
mod tests {
    use enmasse_device::LossScale;
    use enmasse_graph::ValueId;

    use super::*;

    #[test]
    fn every_rank_takes_rank_0s_position() {
        let position = Position {
            epoch: 3,
            samples: 128,
            optimizer_step: 77,
            loss_sum: 0.1,
            correct: 9,
            measured: [1.0, f64::MAX, 0.0, 0.1, 0.0, 0.0, 0.0, 5.0],
            skipped_steps: 2,
            skipped_samples: 64,
            validated_samples: 32,
            best: Some(0.5),
        };
        let ranks = Group::threads(3).unwrap().into_iter().map(|group| {
            std::thread::spawn(move || {
                let own = if group.rank() == 0 { position } else { Position::default() };
                own.broadcast(&group).unwrap()
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            assert_eq!(rank.join().unwrap(), position);
        }
    }

    #[test]
    fn the_next_epoch_keeps_what_belongs_to_the_run() {
        let mut position = Position {
            epoch: 1,
            samples: 64,
            optimizer_step: 5,
            loss_sum: 2.0,
            correct: 1,
            measured: [3.0; MAX_METRICS],
            skipped_steps: 2,
            skipped_samples: 64,
            validated_samples: 32,
            best: Some(0.5),
        };
        position.next_epoch();
        let expected = Position { epoch: 2, optimizer_step: 5, best: Some(0.5), ..Position::default() };
        assert_eq!(position, expected);
    }

    /// A skipped step counts, with its loss and hits, but not with a norm that is infinite. A checkpoint keeps the counts.
    #[test]
    fn skipped_steps_are_counted() {
        let metric = |name: &str, per| Measured { name: name.into(), value: ValueId(0), per };
        let metrics = [metric("top5", Per::Sample), metric("gradient_norm", Per::Step)];
        let mut position = Position::default();
        let mut count = |skipped: bool, norm: f64| {
            let mut step = StepMetrics { loss: 2.0, correct: 3, ..StepMetrics::default() };
            (step.measured[0], step.measured[1]) = (4.0, norm);
            step.loss_scale = Some(LossScale { scale: 8.0, skipped });
            position.count(&step, &metrics, 8);
            position
        };
        count(true, f64::INFINITY);
        count(false, 0.5);
        let position = count(false, 0.25);
        assert_eq!((position.skipped_steps, position.skipped_samples, position.optimizer_step), (1, 8, 3));
        assert_eq!(position.means(&metrics).collect::<Vec<_>>(), [("top5", 0.5), ("gradient_norm", 0.375)]);
        let mut meta = CheckpointMeta::default();
        position.write_to(&mut meta, &metrics);
        assert_eq!(Position::from_meta(&meta, &metrics), position);
    }

    #[test]
    fn a_step_is_not_validated_until_a_validation() {
        let mut position = Position::default();
        assert!(position.is_validated(), "there is nothing yet");
        let mut check = |step: bool, expected: bool| {
            match step {
                true => position.count(&StepMetrics::default(), &[], 8),
                false => position.validated_samples = position.samples,
            }
            let mut meta = CheckpointMeta::default();
            position.write_to(&mut meta, &[]);
            let saved = Position::from_meta(&meta, &[]);
            assert_eq!((saved, saved.is_validated()), (position, expected));
        };
        check(true, false);
        check(false, true);
        check(true, false);
        check(true, false);
        check(false, true);
    }
}
