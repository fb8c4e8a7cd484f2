//! Every model of the zoo.

use enmasse_export::ImageInput;
use enmasse_graph::{Builder, Mode};
use enmasse_models::{Model, models};

use crate::common::{CLASSES, Runtime, compare};

/// An odd size if the model takes it, otherwise that of a few patches, or its own.
fn size(model: &Model) -> usize {
    let is_taken = |size: &usize| {
        let builder = Builder::new(1, [*size; 2], Mode::Evaluate, 0);
        let logits = model.forward(builder.pixels(&[0.5; 3], &[0.25; 3]), CLASSES);
        builder.finish(&logits, CLASSES).is_ok()
    };
    [65, 48, 70].into_iter().find(is_taken).unwrap_or(model.size())
}

/// One of each family, which the short form has.
const FAMILIES: [&str; 15] = [
    "resnet18",
    "resnet18-cifar",
    "resnext50_32x4d",
    "vgg11_bn",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "efficientnet_lite0",
    "regnet_y_400mf",
    "convnext_tiny",
    "vit_tiny_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "airbench94",
    "lenet",
    "mlp",
];

#[test]
fn onnx_runtime_gives_the_same_probabilities() {
    let Some(mut runtime) = Runtime::start() else { return };
    let all = test_support::time();
    let tested: Vec<&Model> = models().iter().filter(|model| all || FAMILIES.contains(&model.name())).collect();
    assert!(all || tested.len() == FAMILIES.len(), "{tested:?}");
    for (number, model) in tested.into_iter().enumerate() {
        let input = ImageInput::ALL[number % ImageInput::ALL.len()];
        compare(&mut runtime, model.name(), size(model), &[input], 3, &|x| model.forward(x, CLASSES));
    }
}
