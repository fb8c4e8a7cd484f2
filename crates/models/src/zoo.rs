//! Models by name.

use enmasse_graph::Tensor;
use thiserror::Error;

use crate::{ResNet, lenet, mlp};

/// Why there is no such model.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ModelError {
    /// Nothing in the zoo has this name.
    #[error("no model is named {name:?}; the nearest is {nearest} (there are {})", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The most similar name that exists.
        nearest: &'static str,
        /// Every name.
        known: Vec<&'static str>,
    },
}

/// A model of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    name: &'static str,
    forward: fn(Tensor, usize) -> Tensor,
}

impl Model {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Pictures to logits for `classes` classes.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        (self.forward)(x, classes)
    }
}

static MODELS: [Model; 7] = [
    Model { name: "resnet18", forward: |x, classes| ResNet::resnet18().forward(x, classes) },
    Model { name: "resnet34", forward: |x, classes| ResNet::resnet34().forward(x, classes) },
    Model { name: "resnet50", forward: |x, classes| ResNet::resnet50().forward(x, classes) },
    Model { name: "resnet101", forward: |x, classes| ResNet::resnet101().forward(x, classes) },
    Model { name: "resnet152", forward: |x, classes| ResNet::resnet152().forward(x, classes) },
    Model { name: "lenet", forward: lenet },
    Model { name: "mlp", forward: mlp },
];

/// Every model of the zoo.
pub fn models() -> &'static [Model] {
    &MODELS
}

/// The model named `name`, as torchvision spells it.
///
/// ```
/// assert_eq!(enmasse_models::find("resnet34").unwrap().name(), "resnet34");
/// let error = enmasse_models::find("resnet43").unwrap_err().to_string();
/// assert!(error.contains("the nearest is resnet34"), "{error}");
/// ```
pub fn find(name: &str) -> Result<Model, ModelError> {
    if let Some(model) = MODELS.iter().find(|model| model.name == name) {
        return Ok(*model);
    }
    let lower = name.to_lowercase();
    let nearest = MODELS.iter().map(|model| model.name).min_by_key(|known| distance(&lower, known));
    Err(ModelError::Unknown {
        name: name.into(),
        nearest: nearest.unwrap_or_default(),
        known: MODELS.iter().map(|model| model.name).collect(),
    })
}

/// Edit distance in which swapping two neighbours costs one (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut cost = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                cost = cost.min(rows[i - 2][j - 2] + 1);
            }
            row.push(cost);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_answered_with_the_nearest() {
        let check = |name: &str, expected: &str| {
            let ModelError::Unknown { nearest, .. } = find(name).unwrap_err();
            assert_eq!(nearest, expected, "{name}");
        };
        check("resnet", "resnet18");
        check("ResNet50", "resnet50");
        check("resnet-34", "resnet34");
        check("resnet105", "resnet101");
        check("resnet125", "resnet152");
        check("lenet5", "lenet");
        check("mpl", "mlp");
        check("", "mlp");
    }

    #[test]
    fn the_error_is_one_line_with_every_name() {
        let text = find("alex\nnet").unwrap_err().to_string();
        assert!(!text.contains('\n') && models().iter().all(|model| text.contains(model.name)), "{text}");
    }
}
