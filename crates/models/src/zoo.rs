//! Models by name.

use enmasse_graph::Tensor;
use thiserror::Error;

use crate::{AlexNet, MobileNetV2, ResNet, Vgg, lenet, mlp};

/// The model does not exist.
#[derive(Clone, Error, PartialEq, Eq)]
pub enum ModelError {
    /// No model of the zoo has this name.
    #[error("no model is named {name:?}; the nearest is {nearest} (there are {})", known.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// The most similar existing name.
        nearest: &'static str,
        /// Every name.
        known: Vec<&'static str>,
    },
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for ModelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A model of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    name: &'static str,
    size: usize,
    forward: fn(Tensor, usize) -> Tensor,
    dropout: f32,
}

impl Model {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Height and width of the pictures for which it was designed: ImageNet's, CIFAR's or MNIST's.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Pictures to logits for `classes` classes.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        (self.forward)(x, classes)
    }

    /// The probability of its dropout layers. 0 if it has none, so that training is deterministic for a given seed and
    /// order.
    pub fn dropout(&self) -> f32 {
        self.dropout
    }
}

const fn model(name: &'static str, size: usize, dropout: f32, forward: fn(Tensor, usize) -> Tensor) -> Model {
    Model { name, size, forward, dropout }
}

static MODELS: [Model; 27] = [
    model("resnet18", 224, 0.0, |x, classes| ResNet::resnet18().forward(x, classes)),
    model("resnet34", 224, 0.0, |x, classes| ResNet::resnet34().forward(x, classes)),
    model("resnet50", 224, 0.0, |x, classes| ResNet::resnet50().forward(x, classes)),
    model("resnet101", 224, 0.0, |x, classes| ResNet::resnet101().forward(x, classes)),
    model("resnet152", 224, 0.0, |x, classes| ResNet::resnet152().forward(x, classes)),
    model("resnext50_32x4d", 224, 0.0, |x, classes| ResNet::resnet50().groups(32, 4).forward(x, classes)),
    model("resnext101_32x8d", 224, 0.0, |x, classes| ResNet::resnet101().groups(32, 8).forward(x, classes)),
    model("resnext101_64x4d", 224, 0.0, |x, classes| ResNet::resnet101().groups(64, 4).forward(x, classes)),
    model("wide_resnet50_2", 224, 0.0, |x, classes| ResNet::resnet50().groups(1, 128).forward(x, classes)),
    model("wide_resnet101_2", 224, 0.0, |x, classes| ResNet::resnet101().groups(1, 128).forward(x, classes)),
    model("resnet18-cifar", 32, 0.0, |x, classes| ResNet::resnet18().cifar_stem().forward(x, classes)),
    model("resnet34-cifar", 32, 0.0, |x, classes| ResNet::resnet34().cifar_stem().forward(x, classes)),
    model("resnet50-cifar", 32, 0.0, |x, classes| ResNet::resnet50().cifar_stem().forward(x, classes)),
    model("resnet101-cifar", 32, 0.0, |x, classes| ResNet::resnet101().cifar_stem().forward(x, classes)),
    model("resnet152-cifar", 32, 0.0, |x, classes| ResNet::resnet152().cifar_stem().forward(x, classes)),
    model("alexnet", 224, 0.5, |x, classes| AlexNet::new().forward(x, classes)),
    model("vgg11", 224, 0.5, |x, classes| Vgg::vgg11().forward(x, classes)),
    model("vgg13", 224, 0.5, |x, classes| Vgg::vgg13().forward(x, classes)),
    model("vgg16", 224, 0.5, |x, classes| Vgg::vgg16().forward(x, classes)),
    model("vgg19", 224, 0.5, |x, classes| Vgg::vgg19().forward(x, classes)),
    model("vgg11_bn", 224, 0.5, |x, classes| Vgg::vgg11().batch_norm().forward(x, classes)),
    model("vgg13_bn", 224, 0.5, |x, classes| Vgg::vgg13().batch_norm().forward(x, classes)),
    model("vgg16_bn", 224, 0.5, |x, classes| Vgg::vgg16().batch_norm().forward(x, classes)),
    model("vgg19_bn", 224, 0.5, |x, classes| Vgg::vgg19().batch_norm().forward(x, classes)),
    model("mobilenet_v2", 224, 0.2, |x, classes| MobileNetV2::new().forward(x, classes)),
    model("lenet", 28, 0.0, lenet),
    model("mlp", 28, 0.0, mlp),
];

/// Every model of the zoo.
pub fn models() -> &'static [Model] {
    &MODELS
}

/// The model named `name`, as torchvision spells it; `-` and `_` are equivalent.
///
/// ```
/// assert_eq!(enmasse_models::find("resnet34").unwrap().name(), "resnet34");
/// assert_eq!(enmasse_models::find("resnet18_cifar").unwrap().name(), "resnet18-cifar");
/// let error = enmasse_models::find("resnet43").unwrap_err().to_string();
/// assert!(error.contains("the nearest is resnet34"), "{error}");
/// ```
pub fn find(name: &str) -> Result<Model, ModelError> {
    let same = |known: &str| known.bytes().map(dash).eq(name.bytes().map(dash));
    if let Some(model) = MODELS.iter().find(|model| same(model.name)) {
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

fn dash(byte: u8) -> u8 {
    if byte == b'_' { b'-' } else { byte }
}

/// Edit distance in which swapping two adjacent characters costs one (optimal string alignment).
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
    fn unknown_names_suggest_the_nearest() {
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
        check("vgg16bn", "vgg16_bn");
        check("MobileNetV2", "mobilenet_v2");
        check("resnext50", "resnet50");
        check("resnet20-cifar", "resnet50-cifar");
        check("", "mlp");
    }

    #[test]
    fn the_error_is_one_line_with_every_name() {
        let text = find("alex\nnet").unwrap_err().to_string();
        assert!(!text.contains('\n') && models().iter().all(|model| text.contains(model.name)), "{text}");
    }
}
