//! MobileNetV3, as torchvision builds it.
//!
//! Source: A. Howard et al., "Searching for MobileNetV3", ICCV 2019.

use enmasse_graph::{BatchNorm, Conv, Linear, Tensor};

use crate::blocks::{Activation, InvertedResidual, SqueezeExcitation, channels, conv_norm};

/// A block: kernel, channels of the depthwise convolution, of the output, whether it has squeeze-excitation, its
/// activation, and the stride.
type Block = (usize, usize, usize, bool, Activation, usize);

const RELU: Activation = Tensor::relu;
const HARD_SWISH: Activation = Tensor::hard_swish;

const LARGE: &[Block] = &[
    (3, 16, 16, false, RELU, 1),
    (3, 64, 24, false, RELU, 2),
    (3, 72, 24, false, RELU, 1),
    (5, 72, 40, true, RELU, 2),
    (5, 120, 40, true, RELU, 1),
    (5, 120, 40, true, RELU, 1),
    (3, 240, 80, false, HARD_SWISH, 2),
    (3, 200, 80, false, HARD_SWISH, 1),
    (3, 184, 80, false, HARD_SWISH, 1),
    (3, 184, 80, false, HARD_SWISH, 1),
    (3, 480, 112, true, HARD_SWISH, 1),
    (3, 672, 112, true, HARD_SWISH, 1),
    (5, 672, 160, true, HARD_SWISH, 2),
    (5, 960, 160, true, HARD_SWISH, 1),
    (5, 960, 160, true, HARD_SWISH, 1),
];

const SMALL: &[Block] = &[
    (3, 16, 16, true, RELU, 2),
    (3, 72, 24, false, RELU, 2),
    (3, 88, 24, false, RELU, 1),
    (5, 96, 40, true, HARD_SWISH, 2),
    (5, 240, 40, true, HARD_SWISH, 1),
    (5, 240, 40, true, HARD_SWISH, 1),
    (5, 120, 48, true, HARD_SWISH, 1),
    (5, 144, 48, true, HARD_SWISH, 1),
    (5, 288, 96, true, HARD_SWISH, 2),
    (5, 576, 96, true, HARD_SWISH, 1),
    (5, 576, 96, true, HARD_SWISH, 1),
];

/// Inverted residuals with squeeze-excitation and hard swish, and two linear layers.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::MobileNetV3;
/// let narrow = MobileNetV3::small().width(0.25);
/// let plans = compile(&|x| narrow.forward(x, 10), &CompileOptions::new("mobilenet_v3/4", 2, 32, 10)).unwrap();
/// assert_eq!(*plans.find("classifier.3.weight").unwrap().shape, [256, 10]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MobileNetV3 {
    blocks: &'static [Block],
    hidden: usize,
    width: f64,
    dropout: f32,
}

impl MobileNetV3 {
    /// torchvision's `mobilenet_v3_small`.
    pub const fn small() -> Self {
        MobileNetV3 { blocks: SMALL, hidden: 1024, width: 1.0, dropout: 0.2 }
    }

    /// torchvision's `mobilenet_v3_large`.
    pub const fn large() -> Self {
        MobileNetV3 { blocks: LARGE, hidden: 1280, width: 1.0, dropout: 0.2 }
    }

    /// Multiplies all channels by this, rounded to multiples of eight.
    pub const fn width(self, width: f64) -> Self {
        MobileNetV3 { width, ..self }
    }

    /// Probability of the dropout before the last linear layer, instead of 0.2.
    pub const fn dropout(self, dropout: f32) -> Self {
        MobileNetV3 { dropout, ..self }
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let scaled = |planes: usize| channels(planes as f64 * self.width);
        let norm = BatchNorm::new().epsilon(1e-3).momentum(0.01);
        let stem = Conv::new(scaled(16), 3).stride(2).padding(1);
        let mut x = conv_norm(x, "features.0", stem, norm).hard_swish().checkpoint();
        for (index, &(kernel, expanded, outputs, squeezes, activation, stride)) in self.blocks.iter().enumerate() {
            let expanded = scaled(expanded);
            let squeeze_excitation = SqueezeExcitation {
                squeezed: channels((expanded / 4) as f64),
                conv: |outputs| Conv::new(outputs, 1).kaiming_normal(),
                activation: Tensor::relu,
                gate: hard_sigmoid,
            };
            let block = InvertedResidual {
                kernel,
                stride,
                expanded,
                outputs: scaled(outputs),
                norm,
                activation,
                squeeze_excitation: squeezes.then_some(squeeze_excitation),
                drop_path: 0.0,
            };
            x = block.forward(x, &format!("features.{}", index + 1)).checkpoint();
        }
        let last = Conv::new(6 * x.shape().last(), 1);
        let x = conv_norm(x, &format!("features.{}", self.blocks.len() + 1), last, norm).hard_swish();
        let x = x.adaptive_avg_pool([1, 1]).flatten();
        let x = x.linear("classifier.0", Linear::new(scaled(self.hidden)).normal(0.01)).hard_swish();
        x.dropout("classifier.2", self.dropout).linear("classifier.3", Linear::new(classes).normal(0.01))
    }
}

/// `min(max(x + 3, 0), 6) / 6`.
fn hard_sigmoid(x: Tensor) -> Tensor {
    x.affine(1.0, 3.0).relu6().affine(1.0 / 6.0, 0.0)
}
