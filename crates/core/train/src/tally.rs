//! What is counted of the predictions of an evaluation, the mistakes among them, and its results.
//!
//! Figures come from counts, which ranks add: images, predictions and correct ones of each class,
//! for any number of classes, and the confusion matrix. Mistakes are a row for each sample, zero on
//! every rank but one, so their sum is exact.

use std::collections::BTreeMap;

use enmasse_comm::Group;
use enmasse_graph::Plan;
use serde::Serialize;

use crate::confusion::largest;
use crate::{Confusion, PerClass, Scores, TrainError};

/// The results of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss over the samples.
    pub loss: f64,
    /// Share of samples whose largest logit is at their label. `None`, and absent in JSON, where no classes are predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The mean of the classes' own accuracies, over those that have samples. NaN if none has. `None` as the one above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balanced_accuracy: Option<f64>,
    /// The mean of the classes' F1, over those that have samples or predictions. As the one above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macro_f1: Option<f64>,
    /// Number of samples that were evaluated.
    pub samples: u64,
    /// Number of samples that were left out because they cannot be read.
    pub unreadable: u64,
    /// Means over the samples of the plan's further metrics, by their names.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
    /// The counts of each class; of none where no classes are predicted.
    #[serde(skip)]
    pub per_class: PerClass,
    /// The samples by their true and predicted classes. None for more than 1024 classes, and where none are predicted.
    #[serde(skip)]
    pub confusion: Option<Confusion>,
    /// The mistakes, the most certain first. None unless they were to be [kept](Kept), and where no classes are predicted.
    #[serde(skip)]
    pub mistakes: Option<Vec<Mistake>>,
    /// The outputs for every sample. None unless they were to be [kept](Kept), and for more than [`Scores::MAX_VALUES`].
    #[serde(skip)]
    pub scores: Option<Scores>,
}

/// What an evaluation keeps of every sample, besides what it counts. Ranks exchange it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// [`Evaluation::mistakes`]: 32 bytes for each sample.
    pub mistakes: bool,
    /// [`Evaluation::scores`]: 4 bytes for each output, and 8 for each sample.
    pub scores: bool,
}

/// A sample that was predicted as another class than its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mistake {
    /// Its number in the data set.
    pub index: usize,
    /// Its class.
    pub truth: usize,
    /// The class of the largest logit; `None` if no logit is a number.
    pub predicted: Option<usize>,
    /// The probability of the predicted class.
    pub probability: f64,
    /// The probability of its own class.
    pub probability_of_truth: f64,
}

/// The counts of a pass, where classes are predicted, and what is kept of every sample.
pub(crate) struct Tally {
    counts: bool,
    pub per_class: PerClass,
    /// None for too many classes.
    pub confusion: Option<Confusion>,
    /// None unless mistakes are to be listed.
    outcomes: Option<SampleOutcomes>,
    /// None unless they are to be kept.
    pub scores: Option<Scores>,
}

impl Tally {
    /// Nothing is counted yet of the logits of a plan for `total` samples.
    pub fn of_plan(plan: &Plan, kept: Kept, total: u64) -> Self {
        let counts = plan.correct.is_some();
        let classes = if counts { plan.classes } else { 0 };
        let confusion = Confusion::new(classes).filter(|_| counts);
        let outcomes = (counts && kept.mistakes).then(|| SampleOutcomes { rows: vec![[0.0; ROW]; total as usize] });
        let scores = if kept.scores { Scores::new(total, plan.classes) } else { None };
        Tally { counts, per_class: PerClass::new(classes), confusion, outcomes, scores }
    }

    /// Whether classes are predicted.
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// Whether it needs the logits.
    pub fn reads(&self) -> bool {
        self.counts || self.scores.is_some()
    }

    /// Counts samples by their labels, their numbers in the data set and their logits `[samples, classes]`. Logits without a
    /// label are padding.
    pub fn add(&mut self, labels: &[i32], indices: &[u64], logits: &[f64]) {
        if let Some(scores) = &mut self.scores {
            scores.add(labels, indices, logits);
        }
        if !self.counts {
            return;
        }
        self.per_class.add(labels, logits);
        if let Some(confusion) = &mut self.confusion {
            confusion.add(labels, logits);
        }
        if let Some(outcomes) = &mut self.outcomes {
            outcomes.add(labels, indices, logits);
        }
    }

    /// Adds the counts of all ranks.
    pub fn sum_over(&mut self, group: &Group) -> Result<(), TrainError> {
        self.scores.as_mut().map_or(Ok(()), |scores| scores.sum_over(group))?;
        if !self.counts {
            return Ok(());
        }
        self.per_class.sum_over(group)?;
        self.confusion.as_mut().map_or(Ok(()), |confusion| confusion.sum_over(group))?;
        self.outcomes.as_mut().map_or(Ok(()), |outcomes| outcomes.sum_over(group))
    }

    /// The mean recall of the classes that have samples.
    pub fn balanced_accuracy(&self) -> Option<f64> {
        self.counts.then(|| self.per_class.balanced_accuracy())
    }

    /// The mean F1 of the classes that have samples or predictions.
    pub fn macro_f1(&self) -> Option<f64> {
        self.counts.then(|| self.per_class.macro_averages().f1)
    }

    /// The mistakes, the most certain first. None unless they were to be listed.
    pub fn mistakes(&self) -> Option<Vec<Mistake>> {
        self.outcomes.as_ref().map(SampleOutcomes::mistakes)
    }
}

/// Numbers kept for each sample.
const ROW: usize = 4;

/// For each sample of the data set: its class and the predicted one, both from 1, and their probabilities. All are zero for
/// a sample that was predicted well, cannot be read, or is another rank's, so that sums over ranks are exact.
struct SampleOutcomes {
    rows: Vec<[f64; ROW]>,
}

impl SampleOutcomes {
    fn add(&mut self, labels: &[i32], indices: &[u64], logits: &[f64]) {
        let classes = logits.len() / labels.len().max(1);
        for ((&label, &index), logits) in labels.iter().zip(indices).zip(logits.chunks_exact(classes)) {
            let (Ok(truth), Some(row)) = (usize::try_from(label), self.rows.get_mut(index as usize)) else { continue };
            let predicted = largest(logits);
            if predicted != Some(truth) && truth < classes {
                let probabilities = softmax(logits);
                let probability = predicted.map_or(f64::NAN, |predicted| probabilities[predicted]);
                let from_one = |class: usize| (class + 1) as f64;
                *row = [from_one(truth), predicted.map_or(0.0, from_one), probability, probabilities[truth]];
            }
        }
    }

    fn sum_over(&mut self, group: &Group) -> Result<(), TrainError> {
        Ok(group.all_reduce(self.rows.as_flattened_mut())?)
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let mistake = |(index, row): (usize, &[f64; ROW])| {
            let [truth, predicted, probability, probability_of_truth] = *row;
            let class = |from_one: f64| (from_one as usize).checked_sub(1);
            class(truth).map(|truth| Mistake {
                index,
                truth,
                predicted: class(predicted),
                probability,
                probability_of_truth,
            })
        };
        let mut mistakes: Vec<Mistake> = self.rows.iter().enumerate().filter_map(mistake).collect();
        // Stable, so that equals keep the order of the data set. What is not a number comes last.
        let certainty = |mistake: &Mistake| if mistake.probability.is_nan() { -1.0 } else { mistake.probability };
        mistakes.sort_by(|a, b| certainty(b).total_cmp(&certainty(a)));
        mistakes
    }
}

/// Logits to probabilities.
pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_the_most_certain_first() {
        let mut outcomes = SampleOutcomes { rows: vec![[0.0; ROW]; 6] };
        let half = 0.5f64.ln();
        let nan = f64::NAN;
        // In the order of a batch: right, wrong by a half, padding, no number.
        outcomes.add(&[0, 1, -1, 1], &[3, 4, u64::MAX, 0], &[1.0, 0.0, half, half, 1.0, 0.0, nan, nan]);
        outcomes.add(&[1, 0], &[5, 1], &[0.75f64.ln(), 0.25f64.ln(), half, 0.25f64.ln()]);
        let found: Vec<_> = outcomes
            .mistakes()
            .iter()
            .map(|m| {
                (m.index, m.truth, m.predicted, (m.probability * 1e6).round(), (m.probability_of_truth * 1e6).round())
            })
            .map(|(index, truth, predicted, p, t)| format!("{index} {truth} {predicted:?} {p} {t}"))
            .collect();
        assert_eq!(found, ["5 1 Some(0) 750000 250000", "4 1 Some(0) 500000 500000", "0 1 None NaN NaN"]);
    }
}
