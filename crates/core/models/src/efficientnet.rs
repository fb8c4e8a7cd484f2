//! EfficientNet, as torchvision builds it.
//!
//! Source: M. Tan, Q. Le, "EfficientNet: Rethinking model scaling for convolutional neural networks", ICML 2019.

use enmasse_graph::{BatchNorm, Conv, Linear, Tensor};

use crate::blocks::{InvertedResidual, SqueezeExcitation, channels, conv_norm};

/// `(kernel, expansion, channels, stride, blocks)` of each stage.
pub(crate) const STAGES: [(usize, usize, usize, usize, usize); 7] = [
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 2, 3),
    (5, 6, 112, 1, 3),
    (5, 6, 192, 2, 4),
    (3, 6, 320, 1, 1),
];

/// Inverted residuals with squeeze-excitation and SiLU.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::EfficientNet;
/// let small = EfficientNet::b0().width(0.25).depth(0.25);
/// let plans = compile(&|x| small.forward(x, 10), &CompileOptions::new("efficientnet_b0/4", 2, 32, 10)).unwrap();
/// assert_eq!(*plans.find("classifier.1.weight").unwrap().shape, [320, 10]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EfficientNet {
    width: f64,
    depth: f64,
    dropout: f32,
    drop_path: f32,
}

impl EfficientNet {
    /// EfficientNet-B0.
    pub const fn b0() -> Self {
        EfficientNet { width: 1.0, depth: 1.0, dropout: 0.2, drop_path: 0.2 }
    }

    /// EfficientNet-B1.
    pub const fn b1() -> Self {
        Self::b0().depth(1.1)
    }

    /// EfficientNet-B2.
    pub const fn b2() -> Self {
        Self::b0().width(1.1).depth(1.2).dropout(0.3)
    }

    /// EfficientNet-B3.
    pub const fn b3() -> Self {
        Self::b0().width(1.2).depth(1.4).dropout(0.3)
    }

    /// EfficientNet-B4.
    pub const fn b4() -> Self {
        Self::b0().width(1.4).depth(1.8).dropout(0.4)
    }

    /// Multiplies all channels by this, rounded to multiples of eight.
    pub const fn width(self, width: f64) -> Self {
        EfficientNet { width, ..self }
    }

    /// Multiplies the blocks of each stage by this, rounded up.
    pub const fn depth(self, depth: f64) -> Self {
        EfficientNet { depth, ..self }
    }

    /// Probability of the dropout before the classifier.
    pub const fn dropout(self, dropout: f32) -> Self {
        EfficientNet { dropout, ..self }
    }

    /// Probability of leaving out the last block, instead of 0.2; those before it have less, in proportion to their place.
    pub const fn drop_path(self, drop_path: f32) -> Self {
        EfficientNet { drop_path, ..self }
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let norm = BatchNorm::new();
        let rate = x.drop_path_rate(self.drop_path);
        let scaled = |planes: usize| channels(planes as f64 * self.width);
        let blocks = |blocks: usize| (blocks as f64 * self.depth).ceil() as usize;
        let total: usize = STAGES.iter().map(|stage| blocks(stage.4)).sum();
        let mut x = conv_norm(x, "features.0", Conv::new(scaled(32), 3).stride(2).padding(1), norm).silu().checkpoint();
        let mut place = 0;
        for (stage, (kernel, expansion, planes, stride, count)) in STAGES.into_iter().enumerate() {
            for index in 0..blocks(count) {
                let inputs = x.shape().last();
                let squeeze_excitation = SqueezeExcitation {
                    squeezed: (inputs / 4).max(1),
                    conv: |outputs| Conv::new(outputs, 1).kaiming_normal(),
                    activation: Tensor::silu,
                    gate: Tensor::sigmoid,
                };
                let block = InvertedResidual {
                    kernel,
                    stride: if index == 0 { stride } else { 1 },
                    expanded: inputs * expansion,
                    outputs: scaled(planes),
                    norm,
                    activation: Tensor::silu,
                    squeeze_excitation: Some(squeeze_excitation),
                    drop_path: rate * place as f32 / total as f32,
                };
                x = block.forward(x, &format!("features.{}.{index}", stage + 1)).checkpoint();
                place += 1;
            }
        }
        let last = Conv::new(4 * x.shape().last(), 1);
        let x = conv_norm(x, "features.8", last, norm).silu();
        let x = x.adaptive_avg_pool([1, 1]).flatten().dropout("classifier.0", self.dropout);
        x.linear("classifier.1", Linear::new(classes).uniform(1.0 / (classes as f32).sqrt()))
    }
}
