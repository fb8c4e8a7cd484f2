//! Figures of several labels of each sample.

use serde::Serialize;

use super::mean;
use super::thresholds::{best_threshold, thresholds};
use crate::{ClassCounts, Ranking};

/// The score from which a label counts as predicted, unless another one was found.
pub const DEFAULT_THRESHOLD: f64 = 0.5;

/// The scores of samples for each label, and which labels they have.
#[derive(Clone, Copy, Debug)]
pub struct LabelScores<'a> {
    /// A row for each sample, with a score for each label. Any numbers do that are larger where a label is likelier.
    pub scores: &'a [f64],
    /// A row for each sample, with a number for each label, which is there if it is above 0.5.
    pub targets: &'a [f32],
    /// How many labels there are.
    pub labels: usize,
}

/// The figures of one label.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelFigures {
    /// The average precision; `None`, and `null` in JSON, if no sample has the label.
    pub average_precision: Option<f64>,
    /// The score from which the label counts as predicted.
    pub threshold: f64,
    /// The share of the samples with the prediction that have the label.
    pub precision: f64,
    /// The share of the samples with the label that have the prediction.
    pub recall: f64,
    /// The harmonic mean of precision and recall.
    pub f1: f64,
    /// Samples with the label.
    pub support: u64,
}

/// The figures of all labels. A mean is `None`, and `null` in JSON, if it is of none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MultiLabelFigures {
    /// The mean of average precision over the labels that a sample has. torchmetrics' `MultilabelAveragePrecision` and scikit-learn's macro
    /// average are the same where all labels have samples, and count 0 for the others.
    pub map: Option<f64>,
    /// The mean of F1 over the labels that a sample has or is predicted to have. torchmetrics' `MultilabelF1Score` and scikit-learn's macro
    /// average count 0 for the others.
    pub macro_f1: Option<f64>,
    /// F1 of the predictions of all labels together; 0 if there are neither labels nor predictions.
    pub micro_f1: f64,
    /// Labels that no sample has.
    pub labels_without_samples: usize,
    /// The figures of each label.
    pub per_label: Vec<LabelFigures>,
}

impl LabelScores<'_> {
    /// The average precision of each label, as scikit-learn's `average_precision_score`: samples of equal score are found together.
    /// `None` for a label that no sample has.
    pub fn average_precision(&self) -> Vec<Option<f64>> {
        (0..self.labels).map(|label| Ranking::new(self.column(label)).average_precision()).collect()
    }

    /// For each label the threshold with the highest F1 of these samples: one of their scores, of equally good ones the highest. A label that no
    /// sample has gets [`DEFAULT_THRESHOLD`]. Measure them on other samples than those that they were found on.
    pub fn best_thresholds(&self) -> Vec<f64> {
        let best = |label| best_threshold(&thresholds(self.column(label))).unwrap_or(DEFAULT_THRESHOLD);
        (0..self.labels).map(best).collect()
    }

    /// What predictions have in common with the samples, for each label: it is predicted where its score is at least the label's threshold.
    pub fn counts(&self, thresholds: &[f64]) -> Vec<ClassCounts> {
        let mut counts = vec![ClassCounts::default(); self.labels];
        for row in self.rows() {
            for ((counts, (score, is_present)), threshold) in counts.iter_mut().zip(row).zip(thresholds) {
                let is_predicted = score >= *threshold;
                counts.images += u64::from(is_present);
                counts.predicted += u64::from(is_predicted);
                counts.correct += u64::from(is_present && is_predicted);
            }
        }
        counts
    }

    /// All figures, with a threshold for each label.
    pub fn figures(&self, thresholds: &[f64]) -> MultiLabelFigures {
        let counts = self.counts(thresholds);
        let per_label: Vec<LabelFigures> = (self.average_precision().into_iter().zip(&counts).zip(thresholds))
            .map(|((average_precision, counts), &threshold)| LabelFigures {
                average_precision,
                threshold,
                precision: counts.precision(),
                recall: counts.recall(),
                f1: counts.f1(),
                support: counts.images,
            })
            .collect();
        let together = counts.iter().fold(ClassCounts::default(), |sum, counts| ClassCounts {
            images: sum.images + counts.images,
            predicted: sum.predicted + counts.predicted,
            correct: sum.correct + counts.correct,
        });
        MultiLabelFigures {
            map: mean(per_label.iter().map(|label| label.average_precision)),
            macro_f1: mean(counts.iter().map(|counts| (counts.images + counts.predicted > 0).then(|| counts.f1()))),
            micro_f1: together.f1(),
            labels_without_samples: counts.iter().filter(|counts| counts.images == 0).count(),
            per_label,
        }
    }

    /// Scores and presence of all labels, sample by sample.
    fn rows(&self) -> impl Iterator<Item = impl Iterator<Item = (f64, bool)>> {
        let width = self.labels.max(1);
        let rows = self.scores.chunks_exact(width).zip(self.targets.chunks_exact(width));
        rows.map(|(scores, targets)| scores.iter().zip(targets).map(|(&score, &target)| (score, target > 0.5)))
    }

    /// Scores and presence of one label.
    fn column(&self, label: usize) -> impl Iterator<Item = (f64, bool)> {
        let width = self.labels.max(1);
        let scores = self.scores.iter().skip(label).step_by(width);
        scores.zip(self.targets.iter().skip(label).step_by(width)).map(|(&score, &target)| (score, target > 0.5))
    }
}

#[cfg(test)]
#[path = "labels_tests.rs"]
mod tests;
