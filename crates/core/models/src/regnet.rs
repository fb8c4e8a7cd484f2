//! RegNetY, as torchvision builds it.
//!
//! Source: I. Radosavovic et al., "Designing network design spaces", CVPR 2020. The widths and numbers of blocks are
//! those that its rule gives for the named costs.

use enmasse_graph::{BatchNorm, Conv, Linear, Tensor};

use crate::blocks::{SqueezeExcitation, conv_norm};

/// Bottlenecks of the same width throughout, with groups of fixed width and squeeze-excitation.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::RegNetY;
/// let narrow = RegNetY::new([1, 1, 2, 1], [16, 24, 32, 40], 8);
/// let plans = compile(&|x| narrow.forward(x, 10), &CompileOptions::new("regnet_y", 2, 32, 10)).unwrap();
/// assert_eq!(*plans.find("fc.weight").unwrap().shape, [40, 10]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegNetY {
    blocks: [usize; 4],
    widths: [usize; 4],
    group_width: usize,
}

impl RegNetY {
    /// A network of these blocks and widths of the four stages; the 3x3 convolutions have groups of `group_width` channels.
    pub const fn new(blocks: [usize; 4], widths: [usize; 4], group_width: usize) -> Self {
        RegNetY { blocks, widths, group_width }
    }

    /// torchvision's `regnet_y_400mf`.
    pub const fn y_400mf() -> Self {
        Self::new([1, 3, 6, 6], [48, 104, 208, 440], 8)
    }

    /// torchvision's `regnet_y_800mf`.
    pub const fn y_800mf() -> Self {
        Self::new([1, 3, 8, 2], [64, 144, 320, 784], 16)
    }

    /// torchvision's `regnet_y_1_6gf`.
    pub const fn y_1_6gf() -> Self {
        Self::new([2, 6, 17, 2], [48, 120, 336, 888], 24)
    }

    /// torchvision's `regnet_y_3_2gf`.
    pub const fn y_3_2gf() -> Self {
        Self::new([2, 5, 13, 1], [72, 216, 576, 1512], 24)
    }

    /// torchvision's `regnet_y_8gf`.
    pub const fn y_8gf() -> Self {
        Self::new([2, 4, 10, 1], [224, 448, 896, 2016], 56)
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let mut x = conv_norm(x, "stem", Conv::new(32, 3).stride(2).padding(1), BatchNorm::new());
        x = x.relu().checkpoint();
        for (stage, (&blocks, &width)) in self.blocks.iter().zip(&self.widths).enumerate() {
            let stage = stage + 1;
            for index in 0..blocks {
                let name = format!("trunk_output.block{stage}.block{stage}-{index}");
                x = self.block(x, &name, width, if index == 0 { 2 } else { 1 }).checkpoint();
            }
        }
        x.adaptive_avg_pool([1, 1]).flatten().linear("fc", Linear::new(classes).normal(0.01))
    }

    fn block(&self, x: Tensor, name: &str, width: usize, stride: usize) -> Tensor {
        let inputs = x.shape().last();
        let norm = BatchNorm::new();
        let part = |part: &str| format!("{name}.{part}");
        let identity = match stride != 1 || inputs != width {
            true => conv_norm(x.clone(), &part("proj"), Conv::new(width, 1).stride(stride), norm),
            false => x.clone(),
        };
        let window = Conv::new(width, 3).stride(stride).padding(1).groups(width / self.group_width.min(width));
        let squeeze_excitation = SqueezeExcitation {
            squeezed: (0.25 * inputs as f64).round_ties_even() as usize,
            conv: |outputs| Conv::new(outputs, 1).kaiming_normal().uniform_bias(),
            activation: Tensor::relu,
            gate: Tensor::sigmoid,
        };
        let y = conv_norm(x, &part("f.a"), Conv::new(width, 1), norm).relu();
        let y = conv_norm(y, &part("f.b"), window, norm).relu();
        let y = squeeze_excitation.forward(y, &part("f.se"));
        let y = conv_norm(y, &part("f.c"), Conv::new(width, 1), norm);
        (y + identity).relu()
    }
}
