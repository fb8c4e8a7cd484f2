//! EfficientNet-Lite, as TensorFlow trained it, with timm's names of tensors (`tf_efficientnet_lite0`): torchvision has
//! none.
//!
//! Sources: M. Tan, Q. Le, "EfficientNet: Rethinking model scaling for convolutional neural networks", ICML 2019; for
//! Lite, which has no squeeze-excitation, ReLU6 for SiLU, and a stem and head of fixed widths, the code of TensorFlow's
//! TPU models.

use enmasse_graph::{BatchNorm, Conv, Linear, Tensor};

use crate::blocks::channels;
use crate::efficientnet::STAGES;

/// Inverted residuals with TensorFlow's padding, and epsilon 1e-3 in batch norms.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::EfficientNetLite;
/// let small = EfficientNetLite::lite0().width(0.25).depth(0.25);
/// let plans = compile(&|x| small.forward(x, 10), &CompileOptions::new("efficientnet_lite0/4", 2, 32, 10)).unwrap();
/// assert_eq!(*plans.find("blocks.6.0.conv_pwl.weight").unwrap().shape, [1, 1, 48 * 6, 80]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EfficientNetLite {
    width: f64,
    depth: f64,
    dropout: f32,
}

impl EfficientNetLite {
    /// EfficientNet-Lite0.
    pub const fn lite0() -> Self {
        EfficientNetLite { width: 1.0, depth: 1.0, dropout: 0.2 }
    }

    /// EfficientNet-Lite1.
    pub const fn lite1() -> Self {
        Self::lite0().depth(1.1)
    }

    /// EfficientNet-Lite2.
    pub const fn lite2() -> Self {
        Self::lite0().width(1.1).depth(1.2).dropout(0.3)
    }

    /// EfficientNet-Lite3.
    pub const fn lite3() -> Self {
        Self::lite0().width(1.2).depth(1.4).dropout(0.3)
    }

    /// EfficientNet-Lite4.
    pub const fn lite4() -> Self {
        Self::lite0().width(1.4).depth(1.8).dropout(0.3)
    }

    /// Multiplies the channels between stem and head by this, rounded to multiples of eight.
    pub const fn width(self, width: f64) -> Self {
        EfficientNetLite { width, ..self }
    }

    /// Multiplies the blocks of each stage but the first and the last by this, rounded up.
    pub const fn depth(self, depth: f64) -> Self {
        EfficientNetLite { depth, ..self }
    }

    /// Probability of the dropout before the classifier.
    pub const fn dropout(self, dropout: f32) -> Self {
        EfficientNetLite { dropout, ..self }
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let mut x = conv_norm(x, ["conv_stem", "bn1"], Conv::new(32, 3).stride(2), 9 * 32).relu6().checkpoint();
        for (stage, (kernel, expansion, planes, stride, blocks)) in STAGES.into_iter().enumerate() {
            let depth = if stage == 0 || stage + 1 == STAGES.len() { 1.0 } else { self.depth };
            let outputs = channels(planes as f64 * self.width);
            for index in 0..(blocks as f64 * depth).ceil() as usize {
                let name = format!("blocks.{stage}.{index}");
                let stride = if index == 0 { stride } else { 1 };
                x = inverted_residual(x, &name, kernel, expansion, outputs, stride).checkpoint();
            }
        }
        let x = conv_norm(x, ["conv_head", "bn2"], Conv::new(1280, 1), 1280).relu6();
        let x = x.adaptive_avg_pool([1, 1]).flatten().dropout("dropout", self.dropout);
        x.linear("classifier", Linear::new(classes).uniform(1.0 / (classes as f32).sqrt()))
    }
}

/// `fan_out` is the number of outputs on which an input has an effect, those of its group: TensorFlow's rule.
fn conv_norm(x: Tensor, [conv, norm]: [&str; 2], window: Conv, fan_out: usize) -> Tensor {
    let window = window.same().no_bias().normal((2.0 / fan_out as f32).sqrt());
    x.conv2d(conv, window).batch_norm_with(norm, BatchNorm::new().epsilon(1e-3))
}

fn inverted_residual(x: Tensor, name: &str, kernel: usize, expansion: usize, outputs: usize, stride: usize) -> Tensor {
    let inputs = x.shape().last();
    let hidden = inputs * expansion;
    let part = |part: &str| format!("{name}.{part}");
    let mut y = x.clone();
    let (depthwise, last) = match expansion {
        1 => ("bn1", ["conv_pw", "bn2"]),
        _ => {
            y = conv_norm(y, [&part("conv_pw"), &part("bn1")], Conv::new(hidden, 1), hidden).relu6();
            ("bn2", ["conv_pwl", "bn3"])
        }
    };
    let window = Conv::new(hidden, kernel).stride(stride).groups(hidden);
    y = conv_norm(y, [&part("conv_dw"), &part(depthwise)], window, kernel * kernel).relu6();
    let [conv, norm] = last.map(part);
    y = conv_norm(y, [&conv, &norm], Conv::new(outputs, 1), outputs);
    if stride == 1 && inputs == outputs { y + x } else { y }
}
