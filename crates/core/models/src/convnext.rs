//! ConvNeXt, as torchvision builds it. timm's smaller ones (Atto to Nano) have torchvision's names, too.
//!
//! Source: Z. Liu et al., "A ConvNet for the 2020s", CVPR 2022.

use enmasse_graph::{Conv, Linear, Tensor};

/// Of all layer norms.
const EPSILON: f32 = 1e-6;
/// Of all weights' initial values.
const STD: f32 = 0.02;

/// Depthwise 7x7 convolutions, each with two linear layers over channels, and layer norms.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::ConvNext;
/// let narrow = ConvNext::atto().widths([8, 16, 24, 32]);
/// let plans = compile(&|x| narrow.forward(x, 10), &CompileOptions::new("convnext/5", 2, 32, 10)).unwrap();
/// assert_eq!(*plans.find("classifier.2.weight").unwrap().shape, [32, 10]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvNext {
    blocks: [usize; 4],
    widths: [usize; 4],
    drop_path: f32,
}

impl ConvNext {
    /// A network of these blocks and channels of the four stages.
    pub const fn new(blocks: [usize; 4], widths: [usize; 4]) -> Self {
        ConvNext { blocks, widths, drop_path: 0.0 }
    }

    /// timm's `convnext_atto`.
    pub const fn atto() -> Self {
        Self::new([2, 2, 6, 2], [40, 80, 160, 320])
    }

    /// timm's `convnext_femto`.
    pub const fn femto() -> Self {
        Self::new([2, 2, 6, 2], [48, 96, 192, 384])
    }

    /// timm's `convnext_pico`.
    pub const fn pico() -> Self {
        Self::new([2, 2, 6, 2], [64, 128, 256, 512])
    }

    /// timm's `convnext_nano`.
    pub const fn nano() -> Self {
        Self::new([2, 2, 8, 2], [80, 160, 320, 640])
    }

    /// torchvision's `convnext_tiny`.
    pub const fn tiny() -> Self {
        Self::new([3, 3, 9, 3], [96, 192, 384, 768]).drop_path(0.1)
    }

    /// torchvision's `convnext_small`.
    pub const fn small() -> Self {
        Self::new([3, 3, 27, 3], [96, 192, 384, 768]).drop_path(0.4)
    }

    /// torchvision's `convnext_base`.
    pub const fn base() -> Self {
        Self::new([3, 3, 27, 3], [128, 256, 512, 1024]).drop_path(0.5)
    }

    /// Number of blocks in each stage.
    pub const fn blocks(self, blocks: [usize; 4]) -> Self {
        ConvNext { blocks, ..self }
    }

    /// Channels of each stage.
    pub const fn widths(self, widths: [usize; 4]) -> Self {
        ConvNext { widths, ..self }
    }

    /// Probability of leaving out the last block; those before it have less, in proportion to their place.
    pub const fn drop_path(self, drop_path: f32) -> Self {
        ConvNext { drop_path, ..self }
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let rate = x.drop_path_rate(self.drop_path);
        let last = self.blocks.iter().sum::<usize>().saturating_sub(1).max(1);
        let conv = |width: usize, stride: usize| Conv::new(width, stride).stride(stride).normal(STD);
        let (mut x, mut place) = (x, 0);
        for (stage, (&blocks, &width)) in self.blocks.iter().zip(&self.widths).enumerate() {
            let before = 2 * stage;
            let within = 2 * stage + 1;
            x = match stage {
                0 => x.conv2d("features.0.0", conv(width, 4)).layer_norm("features.0.1", EPSILON),
                _ => x
                    .layer_norm(&format!("features.{before}.0"), EPSILON)
                    .conv2d(&format!("features.{before}.1"), conv(width, 2)),
            }
            .checkpoint();
            for index in 0..blocks {
                let drop_path = rate * place as f32 / last as f32;
                x = block(x, &format!("features.{within}.{index}"), drop_path).checkpoint();
                place += 1;
            }
        }
        let x = x.adaptive_avg_pool([1, 1]).flatten().layer_norm("classifier.0", EPSILON);
        x.linear("classifier.2", Linear::new(classes).normal(STD))
    }
}

fn block(x: Tensor, name: &str, drop_path: f32) -> Tensor {
    let shape = x.shape();
    let channels = shape.last();
    // If this is no image, the convolution says so.
    let size = if let [_, height, width, _] = shape[..] { [height, width] } else { [0, 0] };
    let part = |part: &str| format!("{name}.{part}");
    let y = x.clone().conv2d(&part("block.0"), Conv::new(channels, 7).padding(3).groups(channels).normal(STD));
    let y = y.tokens().layer_norm(&part("block.2"), EPSILON);
    let y = y.linear(&part("block.3"), Linear::new(4 * channels).normal(STD)).gelu();
    let y = y.linear(&part("block.5"), Linear::new(channels).normal(STD));
    let y = y.images(size).scale_images(&part("layer_scale"), 1e-6);
    y.drop_path(&part("stochastic_depth"), drop_path) + x
}
