//! What accuracy hides: the balanced accuracy where classes differ in size, and the classes that are never predicted or evaluated.

use enmasse_train::{EpochRecord, Evaluation, PerClass};
use enmasse_wording::{counted, listed};

use crate::report::percent;

/// Classes that a line names, at most.
const MAX_NAMED: usize = 10;

/// The balanced accuracy, to follow an accuracy; empty where classes have about the same number of images, also in training if that is
/// known.
pub fn beside(per_class: &PerClass, in_training: bool) -> String {
    match in_training || per_class.is_unbalanced() {
        true => format!(", balanced accuracy {}", percent(per_class.balanced_accuracy())),
        false => String::new(),
    }
}

/// The classes with images that were never predicted; `None` if there are none.
pub fn never_predicted(per_class: &PerClass, classes: &[String]) -> Option<String> {
    some_of(&per_class.never_predicted(), classes, ["was never predicted", "were never predicted"])
}

/// The classes without images, of which an evaluation says nothing; `None` if there are none.
pub fn never_evaluated(per_class: &PerClass, classes: &[String]) -> Option<String> {
    let none: Vec<usize> =
        per_class.classes().enumerate().filter(|(_, class)| class.images == 0).map(|(label, _)| label).collect();
    some_of(&none, classes, ["has no image, so nothing evaluated it", "have no image, so nothing evaluated them"])
}

/// What one or several of the classes have in common.
fn some_of(labels: &[usize], classes: &[String], [one, several]: [&str; 2]) -> Option<String> {
    if labels.is_empty() {
        return None;
    }
    let names = labels.iter().map(|&label| classes.get(label).cloned().unwrap_or_else(|| label.to_string()));
    let of = counted(classes.len(), "class");
    let what = if labels.len() == 1 { one } else { several };
    Some(format!("{} of {of} {what}: {}", labels.len(), listed(names, MAX_NAMED)))
}

/// The validations of a run, as far as its end tells of them.
#[derive(Default)]
pub struct Validations {
    classes: Vec<String>,
    /// Whether classes differ in size in training.
    is_unbalanced: bool,
    last: PerClass,
    /// The best epoch of the run, if this start has it, and its counts.
    best: Option<(u64, PerClass)>,
}

impl Validations {
    /// Of a run whose classes may differ in size in training.
    pub fn new(is_unbalanced: bool) -> Self {
        Validations { is_unbalanced, ..Validations::default() }
    }

    /// Begins a run with these classes.
    pub fn begin(&mut self, classes: &[String]) {
        self.classes = classes.to_owned();
    }

    /// Notes a validation.
    pub fn add(&mut self, found: &Evaluation) {
        self.last = found.per_class.clone();
    }

    /// Ends an epoch. Returns the line below that of the epoch.
    pub fn epoch(&mut self, record: &EpochRecord) -> Option<String> {
        if record.best {
            self.best = Some((record.epoch, self.last.clone()));
        }
        let balanced = record.balanced_accuracy.filter(|_| self.is_unbalanced || self.last.is_unbalanced());
        balanced.map(|balanced| format!("balanced accuracy {}", percent(balanced)))
    }

    /// The balanced accuracy beside the best accuracy of the run.
    pub fn beside_best(&self) -> String {
        self.best.as_ref().map(|(_, per_class)| beside(per_class, self.is_unbalanced)).unwrap_or_default()
    }

    /// The warnings at the end of the run.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let predicted = self.best.as_ref().and_then(|(epoch, per_class)| {
            let never = never_predicted(per_class, &self.classes)?;
            Some(format!("warning: in the validation of epoch {}, the best, {never}", epoch + 1))
        });
        let evaluated = never_evaluated(&self.last, &self.classes);
        predicted.into_iter().chain(evaluated.map(|never| format!("warning: in the validation {never}")))
    }
}
