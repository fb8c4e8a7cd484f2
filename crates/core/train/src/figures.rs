//! Figures of an evaluation that need the outputs for every sample: how well each class ranks the samples, how far the
//! probabilities can be believed, and how sure the accuracy is.
//!
//! All are pure functions of [`Scores`] or of counts, in f64 and in the order of the data set. So they have the same bits on any
//! number of ranks.

mod calibration;
mod interval;
mod label_issues;
mod ranking;
mod temperature;

pub use calibration::{Bin, Calibration};
pub use interval::accuracy_interval;
pub use label_issues::{LabelIssue, label_issues};
pub use ranking::Ranking;

use crate::Scores;

/// A sample with its class.
struct Row<'a> {
    class: usize,
    logits: &'a [f32],
    /// The largest logit.
    largest: f64,
    /// The sum of the exponentials of the logits less the largest.
    total: f64,
}

/// The probabilities of every sample's classes: the softmax of its logits. For tasks that predict a class.
pub struct Probabilities<'a> {
    classes: usize,
    rows: Vec<Row<'a>>,
}

impl<'a> Probabilities<'a> {
    /// Those of the samples whose label is a class of the model.
    pub fn new(scores: &'a Scores) -> Self {
        let classes = scores.outputs();
        let known = scores.samples().filter(|sample| sample.label < classes);
        let rows = known.map(|sample| {
            let largest = f64::from(sample.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let total = sample.logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
            Row { class: sample.label, logits: sample.logits, largest, total }
        });
        Probabilities { classes, rows: rows.collect() }
    }

    /// How the probabilities of a class rank the samples of the class and all others.
    pub fn ranking(&self, class: usize) -> Ranking {
        Ranking::new(self.rows.iter().map(|row| (row.probability(class), row.class == class)))
    }

    /// The area under the curve of the receiver operating characteristic and the average precision of each class: against all
    /// others.
    pub fn ranked(&self) -> Vec<Ranked> {
        let figures = |class| {
            let ranking = self.ranking(class);
            Ranked { roc_auc: ranking.roc_auc(), average_precision: ranking.average_precision() }
        };
        (0..self.classes).map(figures).collect()
    }
}

impl Row<'_> {
    /// The softmax of a logit.
    fn probability(&self, class: usize) -> f64 {
        (f64::from(self.logits[class]) - self.largest).exp() / self.total
    }

    /// The first of the classes with the largest logit; none if the sample has no probabilities.
    fn predicted(&self) -> Option<usize> {
        let is_largest = |&logit: &f32| f64::from(logit) == self.largest;
        self.logits.iter().position(is_largest).filter(|_| self.total.is_finite())
    }
}

/// How well the probabilities of a class, or of classes on average, tell its samples from all others. `None` without samples of
/// the class, or of others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ranked {
    /// scikit-learn's `roc_auc_score`: 1 at best, 0.5 by chance.
    pub roc_auc: Option<f64>,
    /// scikit-learn's `average_precision_score`: 1 at best, the share of the class by chance.
    pub average_precision: Option<f64>,
}

impl Ranked {
    /// The means over the classes that have the figure: scikit-learn's `multi_class="ovr"` and `average="macro"`.
    pub fn macro_average(classes: &[Ranked]) -> Self {
        let mean = |figure: fn(&Ranked) -> Option<f64>| {
            let (sum, count) =
                classes.iter().filter_map(figure).fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
            (count > 0).then(|| sum / count as f64)
        };
        Ranked { roc_auc: mean(|class| class.roc_auc), average_precision: mean(|class| class.average_precision) }
    }
}

#[cfg(test)]
mod tests;
