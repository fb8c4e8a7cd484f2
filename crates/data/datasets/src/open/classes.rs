//! Classes from labels that are texts: their order, and those that are none.

use std::collections::{BTreeSet, HashMap};

use enmasse_data::{DataError, Dataset};

use crate::TaskKind;
use crate::split::Divide;

/// Names under which people keep the class of an image.
pub(super) const LABELS: [&str; 8] =
    ["label", "class", "target", "category", "labels", "class_name", "label_name", "class_id"];

/// The classes in order, and the label of each given one: by number if all are numbers, otherwise by the bytes of their names.
pub(super) fn sorted(found: &[String]) -> (Vec<String>, Vec<u32>) {
    let numbers: Option<Vec<i64>> = found.iter().map(|class| class.parse().ok()).collect();
    let names: BTreeSet<(i64, &String)> = match numbers {
        Some(numbers) => numbers.into_iter().zip(found).collect(),
        None => found.iter().map(|class| (0, class)).collect(),
    };
    let classes: Vec<String> = names.into_iter().map(|(_, class)| class.clone()).collect();
    let labels: HashMap<&String, u32> = classes.iter().zip(0..).collect();
    let labels = found.iter().map(|class| labels[class]).collect();
    (classes, labels)
}

/// Whether a class is written as a number that is not whole.
pub(super) fn is_fraction(class: &str) -> bool {
    class.parse::<i64>().is_err() && class.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Fails if a sample of the `test` part has a class, or a label, that no sample of the training part has: where the samples themselves say which
/// classes there are, the model would have an output that it never learns.
pub(super) fn check_test_classes<S: Divide>(train: &S, test: Option<&S>) -> Result<(), DataError> {
    let Some(test) = test.filter(|_| train.task() != TaskKind::Regression) else { return Ok(()) };
    let mut is_known = vec![false; train.classes().len()];
    (0..train.len()).for_each(|index| each_label(train, index, |label| is_known[label] = true));
    for index in 0..test.len() {
        let mut unknown = None;
        each_label(test, index, |label| unknown = unknown.or(Some(label).filter(|&label| !is_known[label])));
        if let Some(label) = unknown {
            let class = &train.classes()[label];
            let problem = format!("the class {class:?} is in the test part but not in the training part");
            return Err(DataError::layout((test as &dyn Dataset).name(index), problem));
        }
    }
    Ok(())
}

/// Calls `take` with the class of a sample, or with each of its labels.
fn each_label(data: &impl Divide, index: usize, mut take: impl FnMut(usize)) {
    match data.own_targets() {
        None => take(data.label(index)),
        Some(targets) => targets.labels_of(index).iter().for_each(|&label| take(label as usize)),
    }
}

/// Distinct texts, numbered in the order in which they come.
#[derive(Default)]
pub(super) struct Distinct {
    pub texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Distinct {
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len() as u32;
        self.numbers.insert(text.to_owned(), number);
        self.texts.push(text.to_owned());
        number
    }
}
