//! The layers of a model from the stem to the head, as its parameters name them, and the learning rate of each.

use enmasse_tensor::Shape;

use crate::{Graph, GraphError, ValueId};

/// The number of each parameter's layer, from 0, for the names and shapes of all parameters in their order. The last layer is the head.
///
/// Neighbours belong to one layer if their names agree up to the first part with a digit: `layer1`, `blocks.0`,
/// `features.denseblock1`, or up to the last dot where none has a digit: `conv_stem`, `fc`. What then has vectors alone, such as a
/// batch norm with a name of its own, belongs to the layer before it.
///
/// ```
/// use enmasse_graph::layers;
/// let conv = [8, 3, 3, 3].into();
/// let [norm, linear] = [[8].into(), [10, 8].into()];
/// let names = [("conv1.weight", &conv), ("bn1.weight", &norm), ("layer1.0.conv.weight", &conv), ("layer1.1.conv.weight", &conv)];
/// assert_eq!(layers(names.into_iter().chain([("fc.weight", &linear), ("fc.bias", &norm)])), [0, 0, 1, 1, 2, 2]);
/// ```
pub fn layers<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a Shape)>) -> Vec<usize> {
    let parameters: Vec<_> = parameters.into_iter().collect();
    let mut layers = Vec::with_capacity(parameters.len());
    for run in parameters.chunk_by(|(one, _), (next, _)| layer_of(one) == layer_of(next)) {
        let is_norm = run.iter().all(|(_, shape)| shape.len() == 1);
        let next = layers.last().map_or(0, |last| last + usize::from(!is_norm));
        layers.extend(run.iter().map(|_| next));
    }
    layers
}

/// The beginning of a parameter's name that it shares with those of its layer.
fn layer_of(name: &str) -> &str {
    let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
    let mut end = 0;
    for part in module.split('.') {
        end += part.len();
        if part.contains(|letter: char| letter.is_ascii_digit()) {
            break;
        }
        end += 1;
    }
    &module[..end.min(module.len())]
}

/// The layer of each parameter of a graph, and the number of the head.
pub(crate) fn layers_of(graph: &Graph) -> (Vec<(ValueId, usize)>, usize) {
    let layers = layers(graph.parameters().map(|(_, value, _)| (value.name.as_str(), &value.shape)));
    let head = layers.last().copied().unwrap_or(0);
    (graph.parameters().map(|(id, ..)| id).zip(layers).collect(), head)
}

/// Factors of the learning rate by a parameter's layer ([`layers`]), besides those of its group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerRates {
    /// Each layer has the rate of the next one towards the head times this, as timm's `layer_decay`.
    pub decay: f32,
    /// The factor of the head.
    pub head: f32,
}

impl Default for LayerRates {
    /// All layers have one rate.
    fn default() -> Self {
        LayerRates { decay: 1.0, head: 1.0 }
    }
}

impl LayerRates {
    /// The factor of each parameter.
    pub(crate) fn of(&self, graph: &Graph) -> Vec<(ValueId, f32)> {
        let (layers, head) = layers_of(graph);
        let factor = |layer: usize| match head - layer {
            0 => self.head,
            below => self.decay.powi(below as i32),
        };
        layers.into_iter().map(|(id, layer)| (id, factor(layer))).collect()
    }

    /// Refuses factors that are not above 0.
    pub(crate) fn check(&self) -> Result<(), GraphError> {
        match [self.decay, self.head].into_iter().find(|factor| !(factor.is_finite() && *factor > 0.0)) {
            None => Ok(()),
            Some(factor) => {
                Err(GraphError::Option(format!("factors of layers' rates must be finite and above 0, got {factor}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names with the number of their dimensions.
    fn check(parameters: &[(&str, usize)], expected: &[usize]) {
        let shapes: Vec<Shape> = parameters.iter().map(|(_, axes)| vec![2; *axes].into()).collect();
        assert_eq!(layers(parameters.iter().map(|(name, _)| *name).zip(&shapes)), expected, "{parameters:?}");
    }

    #[test]
    fn layers_follow_from_names() {
        check(&[], &[]);
        check(&[("fc.weight", 2), ("fc.bias", 1)], &[0, 0]);
        // A norm of its own belongs to the layer before it, and stands alone where none is.
        check(&[("norm.weight", 1), ("fc.weight", 2)], &[0, 1]);
        let mobilenet = [
            ("features.0.0.weight", 4),
            ("features.0.1.weight", 1),
            ("features.1.conv.0.0.weight", 4),
            ("features.10.conv.0.0.weight", 4),
            ("classifier.1.weight", 2),
            ("classifier.1.bias", 1),
        ];
        check(&mobilenet, &[0, 0, 1, 2, 3, 3]);
        let efficientnet = [
            ("conv_stem.weight", 4),
            ("bn1.weight", 1),
            ("blocks.0.0.conv_dw.weight", 4),
            ("blocks.0.0.bn1.weight", 1),
            ("blocks.1.0.conv_pw.weight", 4),
            ("blocks.1.1.conv_pw.weight", 4),
            ("conv_head.weight", 4),
            ("bn2.bias", 1),
            ("classifier.weight", 2),
        ];
        check(&efficientnet, &[0, 0, 1, 1, 2, 2, 3, 3, 4]);
        let vit = [
            ("cls_token", 3),
            ("patch_embed.proj.weight", 4),
            ("patch_embed.proj.bias", 1),
            ("blocks.0.norm1.weight", 1),
            ("blocks.0.attn.qkv.weight", 2),
            ("norm.weight", 1),
            ("head.weight", 2),
        ];
        check(&vit, &[0, 1, 1, 2, 2, 2, 3]);
        let densenet =
            [("features.conv0.weight", 4), ("features.norm0.weight", 1), ("features.denseblock1.denselayer1.w", 4)];
        check(&densenet, &[0, 0, 1]);
    }
}
