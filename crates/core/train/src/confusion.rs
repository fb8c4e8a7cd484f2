//! The confusion matrix of an evaluation.

use enmasse_charts::confusion_matrix;
use enmasse_comm::Group;

use crate::TrainError;

/// Larger matrices are not counted: ranks exchange 8 bytes for each pair of classes.
const MAX_CLASSES: usize = 1024;

/// The number of samples of each class that were predicted as each class. The predicted class has the largest logit, the
/// first of equals. A sample whose logits are all NaN is not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confusion {
    classes: usize,
    /// `[true class][predicted class]`, row by row. Collectives know signed integers.
    counts: Vec<i64>,
}

impl Confusion {
    /// The empty matrix. None for more than 1024 classes.
    pub(crate) fn new(classes: usize) -> Option<Self> {
        (classes <= MAX_CLASSES).then(|| Confusion { classes, counts: vec![0; classes * classes] })
    }

    /// Counts samples by their labels and their logits `[samples, classes]`. Logits without a label are padding.
    pub(crate) fn add(&mut self, labels: &[i32], logits: &[f64]) {
        for (&label, logits) in labels.iter().zip(logits.chunks_exact(self.classes)) {
            if let (Ok(label), Some(predicted)) = (usize::try_from(label), largest(logits))
                && label < self.classes
            {
                self.counts[label * self.classes + predicted] += 1;
            }
        }
    }

    /// Adds the counts of all ranks.
    pub(crate) fn sum_over(&mut self, group: &Group) -> Result<(), TrainError> {
        Ok(group.all_reduce(&mut self.counts)?)
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The number of samples of class `truth` that were predicted as class `predicted`; both are below
    /// [`Confusion::classes`].
    pub fn count(&self, truth: usize, predicted: usize) -> u64 {
        self.counts[truth * self.classes + predicted].unsigned_abs()
    }

    /// The pairs of a class and another one that its samples were predicted as, with their number, the most frequent first.
    pub fn most_confused(&self) -> Vec<(usize, usize, u64)> {
        let pairs = (0..self.classes).flat_map(|truth| (0..self.classes).map(move |predicted| (truth, predicted)));
        let wrong = pairs.filter(|(truth, predicted)| truth != predicted);
        let mut found: Vec<_> = wrong
            .map(|(truth, predicted)| (truth, predicted, self.count(truth, predicted)))
            .filter(|&(.., count)| count > 0)
            .collect();
        // Stable, so that equals keep the order of labels.
        found.sort_by_key(|&(.., count)| std::cmp::Reverse(count));
        found
    }

    /// An SVG of it.
    ///
    /// # Errors
    /// There is not one name for each class.
    pub fn draw(&self, title: &str, classes: &[String]) -> Result<String, TrainError> {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.unsigned_abs()).collect();
        Ok(confusion_matrix(title, classes, &counts)?)
    }
}

/// The first of the largest, by the rule of [`enmasse_graph::ops::CrossEntropy`]'s hits: NaN is never the largest.
pub(crate) fn largest(logits: &[f64]) -> Option<usize> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    logits.iter().position(|&logit| logit == largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_predicted_class_is_the_first_of_the_largest() {
        let check = |logits: &[f64], expected| assert_eq!(largest(logits), expected, "{logits:?}");
        check(&[1.0, 3.0, 2.0], Some(1));
        check(&[3.0, 3.0, 2.0], Some(0));
        check(&[f64::NAN, -1.0, f64::NAN], Some(1));
        check(&[f64::NEG_INFINITY, f64::NEG_INFINITY], Some(0));
        check(&[f64::NAN, f64::NAN], None);
    }

    #[test]
    fn places_without_a_sample_are_not_counted() {
        let mut confusion = Confusion { classes: 2, counts: vec![0; 4] };
        confusion.add(&[1, 0, -1, 2], &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        confusion.add(&[1], &[0.0, 1.0, 0.0, 1.0]);
        confusion.add(&[], &[0.0, 1.0]);
        assert_eq!(confusion.counts, [1, 0, 1, 1]);
    }

    #[test]
    fn the_most_confused_come_first() {
        let confusion = Confusion { classes: 3, counts: vec![9, 1, 0, 2, 9, 1, 0, 0, 9] };
        assert_eq!(confusion.most_confused(), [(1, 0, 2), (0, 1, 1), (1, 2, 1)]);
    }
}
