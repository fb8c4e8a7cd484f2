//! What accuracy hides: the balanced accuracy where classes differ in size, and the classes that are never predicted.

use enmasse_train::{DoneRecord, EpochRecord, Evaluation, PerClass};
use enmasse_wording::{counted, listed};

use crate::report::percent;

/// Classes that a line names, at most.
const MAX_NAMED: usize = 10;

/// The balanced accuracy, to follow an accuracy; empty where classes have about the same number of images.
pub fn beside(per_class: &PerClass) -> String {
    match per_class.is_unbalanced() {
        true => format!(", balanced accuracy {}", percent(per_class.balanced_accuracy())),
        false => String::new(),
    }
}

/// The classes with images that were never predicted; `None` if there are none.
pub fn never_predicted(per_class: &PerClass, classes: &[String]) -> Option<String> {
    let never = per_class.never_predicted();
    if never.is_empty() {
        return None;
    }
    let names = never.iter().map(|&label| classes.get(label).cloned().unwrap_or_else(|| label.to_string()));
    let (of, verb) = (counted(classes.len(), "class"), if never.len() == 1 { "was" } else { "were" });
    Some(format!("{} of {of} {verb} never predicted: {}", never.len(), listed(names, MAX_NAMED)))
}

/// The validations of a run, as far as its end tells of them.
#[derive(Default)]
pub struct Validations {
    classes: Vec<String>,
    last: PerClass,
    /// The epoch, its accuracy and its counts.
    best: Option<(u64, f64, PerClass)>,
}

impl Validations {
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
        let is_better = self.best.as_ref().is_none_or(|&(_, best, _)| record.val_accuracy > best);
        if is_better && !record.partial {
            self.best = Some((record.epoch, record.val_accuracy, self.last.clone()));
        }
        self.last.is_unbalanced().then(|| format!("balanced accuracy {}", percent(record.balanced_accuracy)))
    }

    /// The best epoch of this start, if it is the best of the run: its number and counts.
    fn best_of(&self, done: &DoneRecord) -> Option<(u64, &PerClass)> {
        let (epoch, accuracy, per_class) = self.best.as_ref()?;
        (*accuracy == done.best_val_accuracy).then_some((*epoch, per_class))
    }

    /// The balanced accuracy beside the best accuracy of the run.
    pub fn beside_best(&self, done: &DoneRecord) -> String {
        self.best_of(done).map(|(_, per_class)| beside(per_class)).unwrap_or_default()
    }

    /// The warning at the end of the run.
    pub fn warning(&self, done: &DoneRecord) -> Option<String> {
        let (epoch, per_class) = self.best_of(done)?;
        let never = never_predicted(per_class, &self.classes)?;
        Some(format!("warning: in the validation of epoch {}, the best, {never}", epoch + 1))
    }
}
