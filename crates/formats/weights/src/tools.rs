//! Names that other tools give to the tensors of the same models, recognised by a tensor that only such files have.
//!
//! Source: timm's `vgg.py`, `efficientnet.py`, `_efficientnet_blocks.py` and `resnet.py`. Its plain ResNets, ResNeXts and
//! wide ResNets have torchvision's names.

use crate::{ModelTensors, NamedTensor};

/// Names of another tool.
pub(crate) struct Tool {
    /// A tensor that only such files have.
    marker: &'static str,
    /// Whose names these are: the end of "these are".
    pub names: &'static str,
    /// torchvision's name for the tool's, where they differ; `None` for models that are not the same tensors.
    translate: Option<fn(&str) -> Option<String>>,
}

const TOOLS: &[Tool] = &[
    Tool { marker: "pre_logits.fc1.weight", names: "timm's names of a VGG", translate: Some(vgg) },
    Tool {
        marker: "conv_stem.weight",
        names: "timm's names of a MobileNet or EfficientNet, of which only mobilenetv2_100 is a model here (mobilenet_v2)",
        translate: Some(mobilenet),
    },
    Tool {
        marker: "conv1.0.weight",
        names: "timm's names of a ResNet with a stem of three convolutions, such as resnet50d, which no model here has",
        translate: None,
    },
    Tool {
        marker: "patch_embed.proj.weight",
        names: "timm's names of a vision transformer, and no model here is one",
        translate: None,
    },
    Tool {
        marker: "embedder.embedder.convolution.weight",
        names: "the names of Hugging Face's Transformers; take a file with torchvision's or timm's names",
        translate: None,
    },
];

impl Tool {
    /// The tool whose names these are, possibly after a prefix, which is the second part.
    pub fn of(names: &[String]) -> Option<(&'static Tool, String)> {
        let after = |name: &str, marker: &str| {
            let prefix = name.strip_suffix(marker)?;
            (prefix.is_empty() || prefix.ends_with('.')).then(|| prefix.to_owned())
        };
        TOOLS.iter().find_map(|tool| Some((tool, names.iter().find_map(|name| after(name, tool.marker))?)))
    }

    /// Gives the tensors after `prefix` torchvision's names and shapes, if the model has tensors with such names. Returns
    /// the number of those that changed.
    pub fn translate(
        &self,
        prefix: &str,
        names: &mut [String],
        tensors: &mut [NamedTensor],
        model: &ModelTensors,
    ) -> usize {
        let is_known = |name: String| model.tensors.iter().any(|(own, _)| *own == name);
        let Some(translate) = self.translate.filter(|translate| translate(self.marker).is_some_and(is_known)) else {
            return 0;
        };
        let mut changed = 0;
        for (name, tensor) in names.iter_mut().zip(tensors) {
            let Some(own) = name.strip_prefix(prefix) else { continue };
            // A convolution over the whole image: the elements are in the order of the linear layer's.
            if let ([outputs, inputs, height, width], true) = (&tensor.shape[..], own.starts_with("pre_logits.")) {
                tensor.shape = vec![*outputs, inputs * height * width];
            }
            if let Some(new) = translate(own) {
                *name = format!("{prefix}{new}");
                changed += 1;
            }
        }
        changed
    }
}

/// The name with the first of these beginnings that it has replaced.
fn replaced(name: &str, beginnings: &[(&str, &str)]) -> Option<String> {
    beginnings.iter().find_map(|(old, new)| Some(format!("{new}{}", name.strip_prefix(old)?)))
}

fn vgg(name: &str) -> Option<String> {
    const LAYERS: [(&str, &str); 3] =
        [("pre_logits.fc1.", "classifier.0."), ("pre_logits.fc2.", "classifier.3."), ("head.fc.", "classifier.6.")];
    replaced(name, &LAYERS)
}

fn mobilenet(name: &str) -> Option<String> {
    const LAYERS: [(&str, &str); 5] = [
        ("conv_stem.", "features.0.0."),
        ("bn1.", "features.0.1."),
        ("conv_head.", "features.18.0."),
        ("bn2.", "features.18.1."),
        ("classifier.", "classifier.1."),
    ];
    /// torchvision counts the blocks of all stages: the first block of each, and the number after the last.
    const FIRST: [usize; 8] = [1, 2, 4, 7, 11, 14, 17, 18];
    /// The blocks of the first stage do not widen.
    const NARROW: [(&str, &str); 4] = [("conv_dw.", "0.0."), ("bn1.", "0.1."), ("conv_pw.", "1."), ("bn2.", "2.")];
    const WIDENING: [(&str, &str); 6] = [
        ("conv_pw.", "0.0."),
        ("bn1.", "0.1."),
        ("conv_dw.", "1.0."),
        ("bn2.", "1.1."),
        ("conv_pwl.", "2."),
        ("bn3.", "3."),
    ];
    let Some(block) = name.strip_prefix("blocks.") else { return replaced(name, &LAYERS) };
    let (stage, rest) = block.split_once('.')?;
    let (index, part) = rest.split_once('.')?;
    let (stage, index): (usize, usize) = (stage.parse().ok()?, index.parse().ok()?);
    let number =
        FIRST.get(stage)?.checked_add(index).filter(|number| FIRST.get(stage + 1).is_some_and(|next| number < next))?;
    let part = replaced(part, if stage == 0 { &NARROW } else { &WIDENING })?;
    Some(format!("features.{number}.conv.{part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_timm() {
        let check = |translate: fn(&str) -> Option<String>, name: &str, expected: Option<&str>| {
            assert_eq!(translate(name).as_deref(), expected, "{name}");
        };
        check(vgg, "features.0.weight", None);
        check(vgg, "pre_logits.fc1.weight", Some("classifier.0.weight"));
        check(vgg, "pre_logits.fc2.bias", Some("classifier.3.bias"));
        check(vgg, "head.fc.bias", Some("classifier.6.bias"));
        check(mobilenet, "conv_stem.weight", Some("features.0.0.weight"));
        check(mobilenet, "bn1.running_mean", Some("features.0.1.running_mean"));
        check(mobilenet, "blocks.0.0.conv_dw.weight", Some("features.1.conv.0.0.weight"));
        check(mobilenet, "blocks.0.0.bn1.bias", Some("features.1.conv.0.1.bias"));
        check(mobilenet, "blocks.0.0.conv_pw.weight", Some("features.1.conv.1.weight"));
        check(mobilenet, "blocks.0.0.bn2.weight", Some("features.1.conv.2.weight"));
        check(mobilenet, "blocks.1.0.conv_pw.weight", Some("features.2.conv.0.0.weight"));
        check(mobilenet, "blocks.1.1.conv_dw.weight", Some("features.3.conv.1.0.weight"));
        check(mobilenet, "blocks.3.3.bn2.weight", Some("features.10.conv.1.1.weight"));
        check(mobilenet, "blocks.5.2.conv_pwl.weight", Some("features.16.conv.2.weight"));
        check(mobilenet, "blocks.6.0.bn3.running_var", Some("features.17.conv.3.running_var"));
        check(mobilenet, "conv_head.weight", Some("features.18.0.weight"));
        check(mobilenet, "bn2.weight", Some("features.18.1.weight"));
        check(mobilenet, "classifier.weight", Some("classifier.1.weight"));
        // Of wider or deeper relatives.
        check(mobilenet, "blocks.1.2.conv_pw.weight", None);
        check(mobilenet, "blocks.7.0.conv_pw.weight", None);
        check(mobilenet, "blocks.1.0.se.conv_reduce.weight", None);
        check(mobilenet, "blocks.1.18446744073709551615.bn1.weight", None);
    }

    #[test]
    fn tools_by_their_marks() {
        let check = |names: &[&str], expected: Option<(&str, &str)>| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = Tool::of(&names);
            let found = found.as_ref().map(|(tool, prefix)| (tool.marker, prefix.as_str()));
            assert_eq!(found, expected, "{names:?}");
        };
        check(&["conv1.weight", "fc.weight"], None);
        check(&["conv_stem.weight"], Some(("conv_stem.weight", "")));
        check(&["loss.weight", "model.conv_stem.weight"], Some(("conv_stem.weight", "model.")));
        check(&["my_conv_stem.weight"], None);
        let transformers = "embedder.embedder.convolution.weight";
        check(&["resnet.embedder.embedder.convolution.weight"], Some((transformers, "resnet.")));
    }
}
