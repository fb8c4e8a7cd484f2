//! Every model of the zoo.

use enmasse_export::ImageInput;
use enmasse_graph::{Builder, Conv, Mode, Tensor};
use enmasse_models::{Model, models};

use crate::common::{CLASSES, Runtime, compare, compare_int8};

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

#[test]
fn integers_of_8_bits_give_nearly_the_same_probabilities() {
    let Some(mut runtime) = Runtime::start() else { return };
    // Deep random networks multiply what is rounded; a wrong scale makes noise of all of them.
    for model in models().iter().filter(|model| FAMILIES.contains(&model.name())) {
        compare_int8(&mut runtime, model.name(), size(model), &|x| model.forward(x, CLASSES), 0.3);
    }
}

#[test]
fn integers_of_8_bits_in_each_kind_of_layer() {
    let Some(mut runtime) = Runtime::start() else { return };
    let mut check = |name: &str, model: &dyn Fn(Tensor) -> Tensor| compare_int8(&mut runtime, name, 9, model, 0.04);
    let head = |x: Tensor| x.adaptive_avg_pool([1, 1]).flatten().linear("fc", CLASSES);
    let wide = |groups: usize| Conv::new(12, 3).padding(1).groups(groups);
    check("linear", &|x| x.flatten().linear("fc", CLASSES));
    check("hidden", &|x| x.flatten().linear("fc1", 20).relu().linear("fc2", CLASSES));
    check("bias", &|x| head(x.conv2d("a", wide(1)).relu()));
    check("batch norm", &|x| head(x.conv2d("a", wide(1).no_bias()).batch_norm("bn").relu()));
    check("bias and batch norm", &|x| head(x.conv2d("a", wide(1).stride(2)).batch_norm("bn").silu()));
    check("depthwise", &|x| {
        head(x.conv2d("a", wide(3)).batch_norm("bn1").relu6().conv2d("b", wide(12)).batch_norm("bn2").relu())
    });
    check("residual", &|x| {
        let x = x.conv2d("a", wide(1)).batch_norm("bn1");
        let y = x.clone().relu().conv2d("b", wide(1)).batch_norm("bn2");
        head((x + y).relu())
    });
    // A batch norm that is not alone in reading the convolution stays.
    check("two readers", &|x| {
        let x = x.conv2d("a", wide(1));
        head(x.clone().batch_norm("bn") + x)
    });
    check("tokens", &|x| {
        let tokens = x.patches("patches", 12, 3).linear("fc1", 16).gelu().linear("fc2", 12);
        head(tokens.images([3, 3]))
    });
}
