//! Models by name.

use enmasse_graph::Tensor;
use thiserror::Error;

use crate::{
    Airbench, AlexNet, ConvNext, EfficientNet, EfficientNetLite, MobileNetV2, MobileNetV3, RegNetY, ResNet, Vgg, ViT,
    lenet, mlp,
};

/// The model does not exist.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelError {
    /// No model of the zoo has this name.
    #[error("no model is named {name:?}; {}{nearest} (there are {})", nearest_is(family), known.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// The kind of network that has such names, if it is known and not in the zoo.
        family: Option<&'static str>,
        /// The existing model for the same purpose, or otherwise the one with the most similar name.
        nearest: &'static str,
        /// Every name.
        known: Vec<&'static str>,
    },
}

fn nearest_is(family: &Option<&str>) -> String {
    match family {
        Some(family) => format!("there is no {family} yet; for the same purpose there is "),
        None => "the nearest is ".to_owned(),
    }
}

/// Beginnings of the names of other networks, the kind of each, and a model of the zoo for the same purpose.
const FAMILIES: &[(&[&str], &str, &str)] = &[
    (
        &["vit_b_", "vit_l_", "vit_h_", "swin", "beit", "maxvit", "cait", "eva", "coatnet", "mvit"],
        "vision transformer of this kind",
        "vit_small_patch16_224",
    ),
    (&["convnextv2", "convnext_v2"], "ConvNeXt V2", "convnext_tiny"),
    (&["efficientnet_v2", "efficientnetv2", "tf_efficientnetv2"], "EfficientNetV2", "efficientnet_b0"),
    (
        &["mobilenet_v1", "mobilenetv1", "mobilenet_v4", "mobilenetv4"],
        "MobileNet of this version",
        "mobilenet_v3_large",
    ),
    (&["shufflenet"], "ShuffleNet", "mobilenet_v2"),
    (&["squeezenet"], "SqueezeNet", "mobilenet_v2"),
    (&["mnasnet"], "MNASNet", "mobilenet_v2"),
    (&["ghostnet"], "GhostNet", "mobilenet_v2"),
    (&["densenet"], "DenseNet", "resnet50"),
    (&["inception", "googlenet", "xception"], "Inception network", "resnet50"),
    (&["regnet_x", "regnetx", "regnetz", "regnetv"], "RegNet but RegNetY", "regnet_y_1_6gf"),
    (&["seresnet", "se_resnet", "resnest", "senet", "nfnet"], "network of this kind", "resnext50_32x4d"),
    (&["yolo", "ssd", "fasterrcnn", "faster_rcnn", "maskrcnn", "retinanet", "fcos", "detr"], "detector", "resnet50"),
    (&["unet", "u_net", "deeplab", "fcn", "segformer"], "network for segmentation", "resnet50"),
];

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

    /// Height and width of the images for which it was designed: ImageNet's, CIFAR's or MNIST's.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Images to logits for `classes` classes.
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

static MODELS: &[Model] = &[
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
    model("airbench94", 32, 0.0, |x, classes| Airbench::airbench94().forward(x, classes)),
    model("airbench95", 32, 0.0, |x, classes| Airbench::airbench95().forward(x, classes)),
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
    model("mobilenet_v3_small", 224, 0.2, |x, classes| MobileNetV3::small().forward(x, classes)),
    model("mobilenet_v3_large", 224, 0.2, |x, classes| MobileNetV3::large().forward(x, classes)),
    model("efficientnet_b0", 224, 0.2, |x, classes| EfficientNet::b0().forward(x, classes)),
    model("efficientnet_b1", 240, 0.2, |x, classes| EfficientNet::b1().forward(x, classes)),
    model("efficientnet_b2", 288, 0.3, |x, classes| EfficientNet::b2().forward(x, classes)),
    model("efficientnet_b3", 300, 0.3, |x, classes| EfficientNet::b3().forward(x, classes)),
    model("efficientnet_b4", 380, 0.4, |x, classes| EfficientNet::b4().forward(x, classes)),
    model("efficientnet_lite0", 224, 0.2, |x, classes| EfficientNetLite::lite0().forward(x, classes)),
    model("efficientnet_lite1", 240, 0.2, |x, classes| EfficientNetLite::lite1().forward(x, classes)),
    model("efficientnet_lite2", 260, 0.3, |x, classes| EfficientNetLite::lite2().forward(x, classes)),
    model("efficientnet_lite3", 280, 0.3, |x, classes| EfficientNetLite::lite3().forward(x, classes)),
    model("efficientnet_lite4", 300, 0.3, |x, classes| EfficientNetLite::lite4().forward(x, classes)),
    model("regnet_y_400mf", 224, 0.0, |x, classes| RegNetY::y_400mf().forward(x, classes)),
    model("regnet_y_800mf", 224, 0.0, |x, classes| RegNetY::y_800mf().forward(x, classes)),
    model("regnet_y_1_6gf", 224, 0.0, |x, classes| RegNetY::y_1_6gf().forward(x, classes)),
    model("regnet_y_3_2gf", 224, 0.0, |x, classes| RegNetY::y_3_2gf().forward(x, classes)),
    model("regnet_y_8gf", 224, 0.0, |x, classes| RegNetY::y_8gf().forward(x, classes)),
    model("convnext_atto", 224, 0.0, |x, classes| ConvNext::atto().forward(x, classes)),
    model("convnext_femto", 224, 0.0, |x, classes| ConvNext::femto().forward(x, classes)),
    model("convnext_pico", 224, 0.0, |x, classes| ConvNext::pico().forward(x, classes)),
    model("convnext_nano", 224, 0.0, |x, classes| ConvNext::nano().forward(x, classes)),
    model("convnext_tiny", 224, 0.0, |x, classes| ConvNext::tiny().forward(x, classes)),
    model("convnext_small", 224, 0.0, |x, classes| ConvNext::small().forward(x, classes)),
    model("convnext_base", 224, 0.0, |x, classes| ConvNext::base().forward(x, classes)),
    model("vit_tiny_patch16_224", 224, 0.0, |x, classes| ViT::tiny(16).forward(x, classes)),
    model("vit_small_patch16_224", 224, 0.0, |x, classes| ViT::small(16).forward(x, classes)),
    model("vit_base_patch16_224", 224, 0.0, |x, classes| ViT::base(16).forward(x, classes)),
    model("deit_tiny_patch16_224", 224, 0.0, |x, classes| ViT::tiny(16).forward(x, classes)),
    model("deit_small_patch16_224", 224, 0.0, |x, classes| ViT::small(16).forward(x, classes)),
    model("deit_base_patch16_224", 224, 0.0, |x, classes| ViT::base(16).forward(x, classes)),
    model("vit_small_patch14_dinov2", 518, 0.0, |x, classes| dinov2(ViT::small(14)).forward(x, classes)),
    model("vit_base_patch14_dinov2", 518, 0.0, |x, classes| dinov2(ViT::base(14)).forward(x, classes)),
    model("vit_small_patch14_reg4_dinov2", 518, 0.0, |x, classes| {
        dinov2(ViT::small(14)).registers(4).forward(x, classes)
    }),
    model("lenet", 28, 0.0, lenet),
    model("mlp", 28, 0.0, mlp),
];

const fn dinov2(vit: ViT) -> ViT {
    vit.layer_scale(1e-5)
}

/// Every model of the zoo.
pub fn models() -> &'static [Model] {
    MODELS
}

/// The model named `name`, as torchvision spells it; `-` and `_` are equivalent.
///
/// # Errors
/// [`ModelError::Unknown`] if there is none. It names the nearest.
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
    let underscored = lower.replace('-', "_");
    let of_family =
        |(beginnings, ..): &&(&[&str], &str, &str)| beginnings.iter().any(|one| underscored.starts_with(one));
    let (family, nearest) = match FAMILIES.iter().find(of_family) {
        Some(&(_, family, nearest)) => (Some(family), nearest),
        None => {
            let names = MODELS.iter().map(|model| model.name);
            (None, names.min_by_key(|known| distance(&lower, known)).unwrap_or_default())
        }
    };
    Err(ModelError::Unknown {
        name: name.into(),
        family,
        nearest,
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

    /// Regression test: the nearest to vit_b_16 was vgg16, and to densenet121 lenet.
    #[test]
    fn the_nearest_to_a_missing_network_has_the_same_purpose() {
        let check = |name: &str, expected: &str| {
            let text = find(name).unwrap_err().to_string();
            assert!(text.contains(expected) && text.contains("resnet18, resnet34"), "{text}");
        };
        check(
            "vit_b_16",
            "no model is named \"vit_b_16\"; there is no vision transformer of this kind yet; for the same purpose there is vit_small_patch16_224 (",
        );
        check("swin-t", "no vision transformer of this kind yet");
        check("vit_tiny_patch16_384", "; the nearest is vit_tiny_patch16_224 (");
        check("efficientnet_v2_s", "no EfficientNetV2 yet; for the same purpose there is efficientnet_b0 (");
        check("EfficientNet-B0", "; the nearest is efficientnet_b0 (");
        check("convnextv2_tiny", "no ConvNeXt V2 yet; for the same purpose there is convnext_tiny (");
        check("densenet121", "no DenseNet yet; for the same purpose there is resnet50 (");
        check("inception_v3", "no Inception network yet; for the same purpose there is resnet50 (");
        check(
            "mobilenetv4_conv_small",
            "no MobileNet of this version yet; for the same purpose there is mobilenet_v3_large (",
        );
        check("shufflenet_v2_x1_0", "no ShuffleNet yet; for the same purpose there is mobilenet_v2 (");
        check("regnet_x_400mf", "no RegNet but RegNetY yet; for the same purpose there is regnet_y_1_6gf (");
        check("tf_efficientnet_lite0", "; the nearest is efficientnet_lite0 (");
        // Mistyped names have the nearest by letters.
        check("resnet81", "; the nearest is resnet18 (");
        check("vgg116", "; the nearest is vgg11 (");
        for (beginnings, _, nearest) in FAMILIES {
            assert!(find(nearest).is_ok(), "{nearest}");
            for model in models() {
                assert!(!beginnings.iter().any(|one| model.name.starts_with(one)), "{}", model.name);
            }
        }
    }

    #[test]
    fn the_error_is_one_line_with_every_name() {
        let text = find("alex\nnet").unwrap_err().to_string();
        assert!(!text.contains('\n') && models().iter().all(|model| text.contains(model.name)), "{text}");
    }
}
