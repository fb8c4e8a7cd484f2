//! What a model gave for every sample of an evaluation: figures that counts cannot give, such as areas under curves and
//! calibration, come from these.
//!
//! A sample belongs to one rank, and its row is zero on every other one. So the sum over ranks has the bits of that rank, and the
//! figures are the same for any number of ranks.

use enmasse_comm::Group;
use enmasse_data::Dataset;

use crate::{Task, TrainError};

/// Values that ranks exchange at once.
const PIECE: usize = 1 << 20;

/// The outputs of a model for each sample of a data set, as f32, and the sample's label.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    outputs: usize,
    /// `[samples][outputs]`.
    logits: Vec<f32>,
    /// From 1; 0 of a sample that has no outputs. Collectives know signed integers.
    labels: Vec<i64>,
}

/// A sample of [`Scores`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored<'a> {
    /// Its number in the data set.
    pub index: usize,
    /// Its label; where values are predicted, whatever label the data set gives.
    pub label: usize,
    /// The outputs.
    pub logits: &'a [f32],
}

impl Scores {
    /// Outputs of more values than this in all are not kept: they take 256 MiB on every rank.
    pub const MAX_VALUES: usize = 64 << 20;

    /// No sample has outputs yet. None for more than [`Scores::MAX_VALUES`].
    pub(crate) fn new(samples: u64, outputs: usize) -> Option<Self> {
        let samples = usize::try_from(samples).ok()?;
        let values = samples.checked_mul(outputs).filter(|&values| values <= Self::MAX_VALUES)?;
        Some(Scores { outputs, logits: vec![0.0; values], labels: vec![0; samples] })
    }

    /// Takes samples by their labels, their numbers in the data set and their outputs `[samples, outputs]`. Outputs without a
    /// label are padding. A sample that comes again replaces itself.
    pub(crate) fn add(&mut self, labels: &[i32], indices: &[u64], logits: &[f64]) {
        for ((&label, &index), logits) in labels.iter().zip(indices).zip(logits.chunks_exact(self.outputs)) {
            let (Ok(index), false) = (usize::try_from(index), label < 0) else { continue };
            let Some(kept) = self.labels.get_mut(index) else { continue };
            *kept = i64::from(label) + 1;
            let row = &mut self.logits[index * self.outputs..(index + 1) * self.outputs];
            // Where there are several ranks, sums leave no negative zero; so there is none on one rank either.
            row.iter_mut().zip(logits).for_each(|(kept, &logit)| *kept = logit as f32 + 0.0);
        }
    }

    /// Gives every rank the samples of all.
    pub(crate) fn sum_over(&mut self, group: &Group) -> Result<(), TrainError> {
        self.logits.chunks_mut(PIECE).try_for_each(|piece| group.all_reduce(piece))?;
        Ok(self.labels.chunks_mut(PIECE).try_for_each(|piece| group.all_reduce(piece))?)
    }

    /// Numbers of an output.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The outputs for a sample of the data set; none if it could not be read.
    pub fn of(&self, index: usize) -> Option<&[f32]> {
        let is_there = self.labels.get(index).is_some_and(|&label| label > 0);
        is_there.then(|| &self.logits[index * self.outputs..(index + 1) * self.outputs])
    }

    /// The outputs and the targets of the samples that have outputs, row by row in the order of the data set.
    pub fn with_targets(&self, images: &dyn Dataset) -> (Vec<f64>, Vec<f32>) {
        let (mut outputs, mut targets) = (Vec::new(), Vec::new());
        for sample in self.samples() {
            outputs.extend(sample.logits.iter().map(|&output| f64::from(output)));
            targets.extend(images.targets(sample.index));
        }
        (outputs, targets)
    }

    /// The figures of a task for these images, by their names.
    pub fn figures(&self, task: &dyn Task, images: &dyn Dataset) -> Vec<(String, f64)> {
        let (outputs, targets) = self.with_targets(images);
        let values = task.measure(&outputs, &targets);
        task.figures().iter().zip(values).map(|(figure, value)| (figure.name.to_owned(), value)).collect()
    }

    /// The samples that have outputs, in the order of the data set.
    pub fn samples(&self) -> impl Iterator<Item = Scored<'_>> {
        self.labels.iter().enumerate().filter_map(|(index, &label)| {
            Some(Scored { index, label: usize::try_from(label - 1).ok()?, logits: self.of(index)? })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(scores: &Scores) -> Vec<(usize, usize, Vec<f32>)> {
        scores.samples().map(|sample| (sample.index, sample.label, sample.logits.to_vec())).collect()
    }

    #[test]
    fn samples_come_by_their_numbers_and_once() {
        let mut scores = Scores::new(5, 2).unwrap();
        scores.add(&[1, -1, 0], &[4, u64::MAX, 2], &[1.0, 2.0, 3.0, 4.0, -0.0, 6.0]);
        // Again, without a label, beyond the data set, and no number.
        scores.add(&[1, -1, 0, 1], &[4, 3, 5, 0], &[1.5, 2.0, 9.0, 9.0, 8.0, 8.0, f64::NAN, 0.5]);
        let samples = found(&scores);
        let order: Vec<_> = samples.iter().map(|(index, label, _)| (*index, *label)).collect();
        assert_eq!(order, [(0, 1), (2, 0), (4, 1)]);
        assert!(samples[0].2[0].is_nan() && samples[0].2[1] == 0.5);
        assert_eq!(samples[1].2.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0, 6.0f32.to_bits()]);
        assert_eq!((samples[2].2.as_slice(), scores.of(4)), (&[1.5, 2.0][..], Some(&[1.5, 2.0][..])));
        assert_eq!([scores.of(3), scores.of(5)], [None; 2]);
    }

    #[test]
    fn ranks_give_each_other_the_bits_of_their_samples() {
        let samples = PIECE / 3 + 5;
        let outputs = 3;
        let ranks = 3;
        let value = |index: usize, output: usize| (index * 7 + output) as f64 * 0.1 - 4.0;
        let of_rank = |rank: usize, ranks: usize| {
            let mut scores = Scores::new(samples as u64, outputs).unwrap();
            for index in (rank..samples - 1).step_by(ranks) {
                let logits: Vec<f64> = (0..outputs).map(|output| value(index, output)).collect();
                scores.add(&[(index % 3) as i32], &[index as u64], &logits);
            }
            scores
        };
        let alone = of_rank(0, 1);
        assert_eq!(alone.samples().count(), samples - 1);
        std::thread::scope(|scope| {
            for (rank, group) in Group::threads(ranks).unwrap().into_iter().enumerate() {
                let (of_rank, alone) = (&of_rank, &alone);
                scope.spawn(move || {
                    let mut scores = of_rank(rank, ranks);
                    scores.sum_over(&group).unwrap();
                    assert!(scores == *alone, "rank {rank}");
                });
            }
        });
    }

    #[test]
    fn too_many_values_are_not_kept() {
        let kept = |samples: u64, outputs: usize| Scores::new(samples, outputs).is_some();
        assert_eq!([kept(0, 5), kept(64, 1 << 10)], [true; 2]);
        assert_eq!([kept((64 << 20) + 1, 1), kept(u64::MAX, 1), kept(1 << 40, 1 << 40)], [false; 3]);
    }
}
