//! MobileNetV2, as torchvision builds it.
//!
//! Source: M. Sandler et al., "MobileNetV2: Inverted residuals and linear bottlenecks", CVPR 2018.

use enmasse_graph::{Conv, Linear, Tensor};

use crate::blocks::channels;

/// `(expansion, channels, stride)` of each stage.
const STAGES: [(usize, usize, usize); 7] =
    [(1, 16, 1), (6, 24, 2), (6, 32, 2), (6, 64, 2), (6, 96, 1), (6, 160, 2), (6, 320, 1)];

/// Inverted residuals: 1x1 up, 3x3 depthwise, 1x1 down without an activation.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::MobileNetV2;
/// let narrow = MobileNetV2::new().width(0.25);
/// let plans = compile(&|x| narrow.forward(x, 10), &CompileOptions::new("mobilenet_v2/4", 2, 32, 10)).unwrap();
/// assert_eq!(*plans.find("classifier.1.weight").unwrap().shape, [1280, 10]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MobileNetV2 {
    width: f64,
    blocks: [usize; 7],
    dropout: f32,
}

impl MobileNetV2 {
    /// torchvision's configuration.
    pub const fn new() -> Self {
        MobileNetV2 { width: 1.0, blocks: [1, 2, 3, 4, 3, 3, 1], dropout: 0.2 }
    }

    /// Multiplies all channels by this, rounded to multiples of eight. The layer before the classifier never has fewer
    /// than 1280.
    pub const fn width(self, width: f64) -> Self {
        MobileNetV2 { width, ..self }
    }

    /// Number of blocks in each stage.
    pub const fn blocks(self, blocks: [usize; 7]) -> Self {
        MobileNetV2 { blocks, ..self }
    }

    /// Probability of the dropout before the classifier, instead of 0.2.
    pub const fn dropout(self, dropout: f32) -> Self {
        MobileNetV2 { dropout, ..self }
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let stem = Conv::new(channels(32.0 * self.width), 3).stride(2).padding(1);
        let mut x = conv_norm(x, "features.0.0", "features.0.1", stem).relu6().checkpoint();
        let mut module = 1;
        for ((expansion, planes, stride), blocks) in STAGES.into_iter().zip(self.blocks) {
            for index in 0..blocks {
                let stride = if index == 0 { stride } else { 1 };
                let outputs = channels(planes as f64 * self.width);
                let name = format!("features.{module}.conv");
                x = inverted_residual(x, &name, expansion, outputs, stride).checkpoint();
                module += 1;
            }
        }
        let last = Conv::new(channels(1280.0 * self.width.max(1.0)), 1);
        let x = conv_norm(x, &format!("features.{module}.0"), &format!("features.{module}.1"), last).relu6();
        let x = x.adaptive_avg_pool([1, 1]).flatten().dropout("classifier.0", self.dropout);
        x.linear("classifier.1", Linear::new(classes).normal(0.01))
    }
}

impl Default for MobileNetV2 {
    fn default() -> Self {
        Self::new()
    }
}

fn conv_norm(x: Tensor, conv: &str, norm: &str, window: Conv) -> Tensor {
    x.conv2d(conv, window.no_bias().kaiming_normal()).batch_norm(norm)
}

fn inverted_residual(x: Tensor, name: &str, expansion: usize, outputs: usize, stride: usize) -> Tensor {
    let inputs = x.shape().last();
    let hidden = inputs * expansion;
    let part = |index: usize| [format!("{name}.{index}.0"), format!("{name}.{index}.1")];
    let mut y = x.clone();
    let mut index = 0;
    if expansion != 1 {
        let [conv, norm] = part(index);
        y = conv_norm(y, &conv, &norm, Conv::new(hidden, 1)).relu6();
        index += 1;
    }
    let [conv, norm] = part(index);
    let depthwise = Conv::new(hidden, 3).stride(stride).padding(1).groups(hidden);
    y = conv_norm(y, &conv, &norm, depthwise).relu6();
    let [conv, norm] = [1, 2].map(|further| format!("{name}.{}", index + further));
    y = conv_norm(y, &conv, &norm, Conv::new(outputs, 1));
    if stride == 1 && inputs == outputs { x + y } else { y }
}
