//! Classes from labels that are texts: their order, and those that are none.

use std::collections::{BTreeSet, HashMap};

use enmasse_data::{DataError, Dataset};

/// Names under which people keep the class of an image.
pub(super) const LABELS: [&str; 8] =
    ["label", "class", "target", "category", "labels", "class_name", "label_name", "class_id"];

/// The classes in order, and the label of each given one: by number if all are numbers, otherwise by the bytes of their names.
/// A class that is a fraction is refused: its place in the list, and the problem.
pub(super) fn sort_classes(found: &[String]) -> Result<(Vec<String>, Vec<u32>), (usize, String)> {
    let is_fraction = |class: &String| class.parse::<i64>().is_err() && class.parse::<f64>().is_ok_and(f64::is_finite);
    if let Some(class) = found.iter().position(is_fraction) {
        let problem = format!("its label is {}: numbers as targets are not supported, only classes", found[class]);
        return Err((class, problem));
    }
    let numbers: Option<Vec<i64>> = found.iter().map(|class| class.parse().ok()).collect();
    let names: BTreeSet<(i64, &String)> = match numbers {
        Some(numbers) => numbers.into_iter().zip(found).collect(),
        None => found.iter().map(|class| (0, class)).collect(),
    };
    let classes: Vec<String> = names.into_iter().map(|(_, class)| class.clone()).collect();
    let labels: HashMap<&String, u32> = classes.iter().zip(0..).collect();
    let labels = found.iter().map(|class| labels[class]).collect();
    Ok((classes, labels))
}

/// Fails if a sample of the `test` part has a class that no sample of the training part has: where the samples themselves say which
/// classes there are, the model would have an output that it never learns.
pub(super) fn check_test_classes(
    train: &dyn Dataset,
    test: Option<&dyn Dataset>,
    classes: &[String],
) -> Result<(), DataError> {
    let Some(test) = test else { return Ok(()) };
    let mut is_known = vec![false; classes.len()];
    (0..train.len()).for_each(|index| is_known[train.label(index)] = true);
    match (0..test.len()).find(|&index| !is_known[test.label(index)]) {
        None => Ok(()),
        Some(index) => {
            let class = &classes[test.label(index)];
            let problem = format!("the class {class:?} is in the test part but not in the training part");
            Err(DataError::layout(test.name(index), problem))
        }
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
