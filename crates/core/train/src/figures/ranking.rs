//! The curves of the receiver operating characteristic and of precision over recall, and the areas under them.

/// Samples in the order of their scores, the highest first, as counts up to each distinct score. Equal scores are one step, so their
/// order does not matter.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Positives and negatives with at least some score; the last has all.
    steps: Vec<[u64; 2]>,
}

impl Ranking {
    /// Samples by their scores, and whether each is a positive. A score that is not a number is the lowest.
    pub fn new(samples: impl Iterator<Item = (f64, bool)>) -> Self {
        let of = |score: f64| if score.is_nan() { f64::NEG_INFINITY } else { score };
        let mut samples: Vec<(f64, bool)> = samples.map(|(score, is_positive)| (of(score), is_positive)).collect();
        samples.sort_unstable_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut counts = [0, 0];
        let steps = samples.chunk_by(|(a, _), (b, _)| a == b).map(|equals| {
            let positives = equals.iter().filter(|(_, is_positive)| *is_positive).count();
            counts = [counts[0] + positives as u64, counts[1] + (equals.len() - positives) as u64];
            counts
        });
        Ranking { steps: steps.collect() }
    }

    /// All positives and all negatives.
    fn totals(&self) -> [u64; 2] {
        self.steps.last().copied().unwrap_or_default()
    }

    /// The chance that a positive has a higher score than a negative, where equal scores are half a chance. scikit-learn's
    /// `roc_auc_score`. `None` without positives or without negatives.
    pub fn roc_auc(&self) -> Option<f64> {
        let [positives, negatives] = self.totals();
        let mut before = [0, 0];
        let mut area = 0.0;
        for &step in &self.steps {
            area += (step[1] - before[1]) as f64 * (step[0] + before[0]) as f64 / 2.0;
            before = step;
        }
        (positives > 0 && negatives > 0).then(|| area / positives as f64 / negatives as f64)
    }

    /// The mean precision over the steps of recall, without interpolation. scikit-learn's `average_precision_score`. `None` without
    /// positives.
    pub fn average_precision(&self) -> Option<f64> {
        let [positives, _] = self.totals();
        let mut before = 0;
        let mut sum = 0.0;
        for &step in &self.steps {
            sum += (step[0] - before) as f64 * precision(step);
            before = step[0];
        }
        (positives > 0).then(|| sum / positives as f64)
    }

    /// The points of the receiver operating characteristic: the shares of negatives and of positives with at least each score, from
    /// (0, 0) to (1, 1). scikit-learn's `roc_curve` with `drop_intermediate=False`. Without positives or negatives there are none.
    pub fn roc(&self) -> Vec<(f64, f64)> {
        let [positives, negatives] = self.totals();
        if positives == 0 || negatives == 0 {
            return Vec::new();
        }
        let point = |step: &[u64; 2]| (step[1] as f64 / negatives as f64, step[0] as f64 / positives as f64);
        std::iter::once((0.0, 0.0)).chain(self.steps.iter().map(point)).collect()
    }

    /// Recall and precision at each score, from the highest score to the lowest, after the point (0, 1): scikit-learn's
    /// `precision_recall_curve` backwards. Without positives there are none.
    pub fn precision_recall(&self) -> Vec<(f64, f64)> {
        let [positives, _] = self.totals();
        if positives == 0 {
            return Vec::new();
        }
        let point = |step: &[u64; 2]| (step[0] as f64 / positives as f64, precision(*step));
        std::iter::once((0.0, 1.0)).chain(self.steps.iter().map(point)).collect()
    }
}

fn precision([positives, negatives]: [u64; 2]) -> f64 {
    positives as f64 / (positives + negatives) as f64
}
