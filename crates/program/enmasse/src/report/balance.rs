//! What accuracy hides: the balanced accuracy where classes differ in size, and the classes that are never predicted.

use enmasse_train::{EpochRecord, Evaluation, PerClass};
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
    /// The best epoch of the run, if this start has it, and its counts.
    best: Option<(u64, PerClass)>,
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
        if record.best {
            self.best = Some((record.epoch, self.last.clone()));
        }
        let balanced = record.balanced_accuracy.filter(|_| self.last.is_unbalanced());
        balanced.map(|balanced| format!("balanced accuracy {}", percent(balanced)))
    }

    /// The balanced accuracy beside the best accuracy of the run.
    pub fn beside_best(&self) -> String {
        self.best.as_ref().map(|(_, per_class)| beside(per_class)).unwrap_or_default()
    }

    /// The warning at the end of the run.
    pub fn warning(&self) -> Option<String> {
        let (epoch, per_class) = self.best.as_ref()?;
        let never = never_predicted(per_class, &self.classes)?;
        Some(format!("warning: in the validation of epoch {}, the best, {never}", epoch + 1))
    }
}
