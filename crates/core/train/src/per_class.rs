//! What an evaluation found for each class: precision, recall, F1, and their means over classes.

use enmasse_comm::Group;

use crate::TrainError;
use crate::confusion::largest;

/// Accuracy says little about a model where the largest class has more than so many times the images of the smallest.
const MAX_RATIO: u64 = 3;

/// Numbers kept for each class: images, predictions, correct predictions.
const COUNTS: usize = 3;

/// The counts of one class. Precision, recall and F1 are those of scikit-learn's `precision_recall_fscore_support` with
/// `zero_division=0`: a quotient whose divisor is 0 is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Images of the class.
    pub images: u64,
    /// Images that were predicted as the class.
    pub predicted: u64,
    /// Images of the class that were predicted as the class.
    pub correct: u64,
}

impl ClassCounts {
    /// The share of the images predicted as the class that are of the class.
    pub fn precision(&self) -> f64 {
        quotient(self.correct, self.predicted)
    }

    /// The share of the images of the class that were predicted as the class.
    pub fn recall(&self) -> f64 {
        quotient(self.correct, self.images)
    }

    /// The harmonic mean of precision and recall.
    pub fn f1(&self) -> f64 {
        quotient(2 * self.correct, self.images + self.predicted)
    }

    /// Whether the class has an image or a prediction. Only such classes count in the macro averages.
    pub fn occurs(&self) -> bool {
        self.images + self.predicted > 0
    }
}

/// Precision, recall and F1, each the mean over the classes that have an image or a prediction. These are scikit-learn's
/// with `average="macro"`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MacroAverages {
    /// Mean precision.
    pub precision: f64,
    /// Mean recall. [`PerClass::balanced_accuracy`] leaves out classes without images, this one does not.
    pub recall: f64,
    /// Mean F1.
    pub f1: f64,
}

/// The counts of all classes, by label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerClass {
    /// `[class][COUNTS]`. Collectives know signed integers.
    counts: Vec<i64>,
}

impl PerClass {
    pub(crate) fn new(classes: usize) -> Self {
        PerClass { counts: vec![0; classes * COUNTS] }
    }

    /// Counts samples by their labels and their logits `[samples, classes]`. Logits without a label are padding. A sample
    /// whose logits are all NaN has no prediction.
    pub(crate) fn add(&mut self, labels: &[i32], logits: &[f64]) {
        let classes = self.counts.len() / COUNTS;
        for (&label, logits) in labels.iter().zip(logits.chunks_exact(classes)) {
            let Some(label) = usize::try_from(label).ok().filter(|&label| label < classes) else { continue };
            let predicted = largest(logits);
            self.counts[label * COUNTS] += 1;
            if let Some(predicted) = predicted {
                self.counts[predicted * COUNTS + 1] += 1;
            }
            self.counts[label * COUNTS + 2] += i64::from(predicted == Some(label));
        }
    }

    /// Adds the counts of all ranks.
    pub(crate) fn sum_over(&mut self, group: &Group) -> Result<(), TrainError> {
        Ok(group.all_reduce(&mut self.counts)?)
    }

    /// The counts of each class, by label.
    pub fn classes(&self) -> impl ExactSizeIterator<Item = ClassCounts> + '_ {
        self.counts.chunks_exact(COUNTS).map(|counts| {
            let [images, predicted, correct] = [counts[0], counts[1], counts[2]].map(i64::unsigned_abs);
            ClassCounts { images, predicted, correct }
        })
    }

    /// The mean recall of the classes that have images, as scikit-learn's `balanced_accuracy_score`. NaN without images.
    pub fn balanced_accuracy(&self) -> f64 {
        mean(self.classes().filter(|class| class.images > 0).map(|class| class.recall()))
    }

    /// The means over classes.
    pub fn macro_averages(&self) -> MacroAverages {
        let mean = |figure: fn(&ClassCounts) -> f64| {
            mean(self.classes().filter(ClassCounts::occurs).map(|class| figure(&class)))
        };
        MacroAverages {
            precision: mean(ClassCounts::precision),
            recall: mean(ClassCounts::recall),
            f1: mean(ClassCounts::f1),
        }
    }

    /// Whether one class has more than three times as many images as another that has any.
    pub fn is_unbalanced(&self) -> bool {
        differ(self.classes().map(|class| class.images))
    }

    /// The labels of the classes that have images, but no image was predicted as one of them.
    pub fn never_predicted(&self) -> Vec<usize> {
        let never = self.classes().enumerate().filter(|(_, class)| class.images > 0 && class.predicted == 0);
        never.map(|(label, _)| label).collect()
    }
}

/// Whether one class has more than three times as many images as another that has any, by the number of each.
pub(crate) fn differ(images: impl Iterator<Item = u64>) -> bool {
    let (most, fewest) = images
        .filter(|&images| images > 0)
        .fold((0, u64::MAX), |(most, fewest), images| (most.max(images), fewest.min(images)));
    most > fewest.saturating_mul(MAX_RATIO)
}

fn quotient(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// NaN of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    sum / count as f64
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Counts of `[images, predicted, correct]`.
    fn of(counts: &[[i64; COUNTS]]) -> PerClass {
        PerClass { counts: counts.concat() }
    }

    /// Regression test: a model that says one class for all had an accuracy of 99.4 % and nothing else.
    #[test]
    fn one_class_for_all_is_worth_half() {
        let check = |counts: &[[i64; COUNTS]], balanced: f64, unbalanced: bool, never: &[usize]| {
            let found = of(counts);
            let own = found.balanced_accuracy();
            assert!(own == balanced || own.is_nan() && balanced.is_nan(), "{counts:?}: {own}");
            assert_eq!((found.is_unbalanced(), found.never_predicted()), (unbalanced, never.to_vec()), "{counts:?}");
        };
        check(&[[357, 359, 357], [2, 0, 0]], 0.5, true, &[1]);
        check(&[[30, 35, 30], [10, 5, 5]], 0.75, false, &[]);
        check(&[[31, 36, 31], [10, 5, 5]], 0.75, true, &[]);
        // A class without images neither counts in the mean nor makes the others unequal.
        check(&[[4, 4, 4], [0, 0, 0], [4, 4, 4]], 1.0, false, &[]);
        check(&[[4, 4, 4], [0, 4, 0], [4, 0, 0]], 0.5, false, &[2]);
        check(&[[0, 0, 0], [0, 0, 0]], f64::NAN, false, &[]);
    }

    type Figure = fn(&ClassCounts) -> f64;

    #[test]
    fn figures_are_those_of_scikit_learn() {
        let fixture: Value = serde_json::from_str(include_str!("../../../../fixtures/scores.json")).unwrap();
        let list = |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
        let classes = fixture["classes"].as_u64().unwrap() as usize;
        let mut found = PerClass::new(classes);
        for (truth, predicted) in list(&fixture["true"]).into_iter().zip(list(&fixture["predicted"])) {
            let logits: Vec<f64> = (0..classes).map(|class| f64::from(u8::from(class == predicted as usize))).collect();
            found.add(&[truth as i32], &logits);
        }
        let check = |what: &str, own: Vec<f64>, expected: &[f64]| {
            assert_eq!(own.len(), expected.len(), "{what}");
            let is_near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(own.iter().zip(expected).all(is_near), "{what}: {own:?} {expected:?}");
        };
        let figures: [(&str, Figure); 4] = [
            ("precision", ClassCounts::precision),
            ("recall", ClassCounts::recall),
            ("f1", ClassCounts::f1),
            ("images", |class| class.images as f64),
        ];
        for (name, figure) in figures {
            check(name, found.classes().map(|class| figure(&class)).collect(), &list(&fixture["per_class"][name]));
        }
        let MacroAverages { precision, recall, f1 } = found.macro_averages();
        let expected = ["precision", "recall", "f1"].map(|name| fixture["macro"][name].as_f64().unwrap());
        check("macro", vec![precision, recall, f1], &expected);
        check("balanced", vec![found.balanced_accuracy()], &[fixture["balanced_accuracy"].as_f64().unwrap()]);
    }

    #[test]
    fn every_sample_counts_once() {
        let mut found = PerClass::new(2);
        let nan = f64::NAN;
        // Right, wrong, padding, a label that the model lacks, and a sample without a prediction.
        found.add(&[0, 1, -1, 2, 1], &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, nan, nan]);
        assert_eq!(found, of(&[[1, 2, 1], [2, 0, 0]]));
        found.add(&[1], &[0.0, 1.0, 5.0, 5.0]);
        assert_eq!(found, of(&[[1, 2, 1], [3, 1, 1]]));
    }
}
