//! Residual networks, as torchvision builds them.
//!
//! Source: K. He et al., "Deep residual learning for image recognition", CVPR 2016. The stride of a bottleneck is in
//! its 3x3 convolution, as in torchvision ("ResNet v1.5").

use enmasse_graph::{Conv, Pool, Tensor};

/// The repeated unit of a residual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1 down, 3x3, 1x1 up to four times the planes.
    Bottleneck,
}

impl Block {
    /// Output channels per plane.
    fn expansion(self) -> usize {
        match self {
            Block::Basic => 1,
            Block::Bottleneck => 4,
        }
    }
}

/// The layers that turn images into the planes of the first stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stem {
    /// 7x7 of stride 2, then 3x3 max pooling of stride 2: a quarter of the size.
    ImageNet,
    /// 3x3 of stride 1: the size is kept.
    Cifar,
}

/// The names of a block's `index`-th convolution and its batch norm.
fn layer(block: &str, index: usize) -> [String; 2] {
    [format!("{block}.conv{index}"), format!("{block}.bn{index}")]
}

fn conv_norm(x: Tensor, [conv, norm]: &[String; 2], window: Conv) -> Tensor {
    x.conv2d(conv, window.no_bias().kaiming_normal()).batch_norm(norm)
}

/// A residual network: stem, four stages of blocks, mean over the image, one linear layer.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::ResNet;
/// let narrow = ResNet::resnet50().width(16);
/// let plans = compile(&|x| narrow.forward(x, 10), &CompileOptions::new("resnet50/4", 2, 64, 10)).unwrap();
/// assert_eq!(*plans.find("fc.weight").unwrap().shape, [512, 10]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResNet {
    block: Block,
    blocks: [usize; 4],
    stem: Stem,
    width: usize,
    groups: usize,
    width_per_group: usize,
}

impl ResNet {
    /// A network of `blocks` blocks per stage, at the usual width.
    pub const fn new(block: Block, blocks: [usize; 4]) -> Self {
        ResNet { block, blocks, stem: Stem::ImageNet, width: 64, groups: 1, width_per_group: 64 }
    }

    /// ResNet-18.
    pub const fn resnet18() -> Self {
        Self::new(Block::Basic, [2, 2, 2, 2])
    }

    /// ResNet-34.
    pub const fn resnet34() -> Self {
        Self::new(Block::Basic, [3, 4, 6, 3])
    }

    /// ResNet-50.
    pub const fn resnet50() -> Self {
        Self::new(Block::Bottleneck, [3, 4, 6, 3])
    }

    /// ResNet-101.
    pub const fn resnet101() -> Self {
        Self::new(Block::Bottleneck, [3, 4, 23, 3])
    }

    /// ResNet-152.
    pub const fn resnet152() -> Self {
        Self::new(Block::Bottleneck, [3, 8, 36, 3])
    }

    /// Channels of the stem and planes of the first stage, instead of 64; later stages double them as usual.
    pub const fn width(self, width: usize) -> Self {
        ResNet { width, ..self }
    }

    /// The 3x3 convolutions of bottlenecks have `groups` groups of `width_per_group` channels per 64 planes, instead of
    /// one group of 64. ResNeXt has many narrow groups; a wide ResNet has one that is twice as wide.
    ///
    /// Sources: S. Xie et al., "Aggregated residual transformations for deep neural networks", CVPR 2017; S. Zagoruyko,
    /// N. Komodakis, "Wide residual networks", BMVC 2016.
    pub const fn groups(self, groups: usize, width_per_group: usize) -> Self {
        ResNet { groups, width_per_group, ..self }
    }

    /// The stem for images of 32x32: a 3x3 convolution of stride 1 and no pooling. The usual stem would leave a feature map
    /// of 8x8 to the first stage, and one of a single pixel to the last.
    pub const fn cifar_stem(self) -> Self {
        ResNet { stem: Stem::Cifar, ..self }
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let names = ["conv1".to_string(), "bn1".to_string()];
        let mut x = match self.stem {
            Stem::ImageNet => conv_norm(x, &names, Conv::new(self.width, 7).stride(2).padding(3))
                .relu()
                .max_pool(Pool::new(3).stride(2).padding(1)),
            Stem::Cifar => conv_norm(x, &names, Conv::new(self.width, 3).padding(1)).relu(),
        };
        x = x.checkpoint();
        for (stage, &blocks) in self.blocks.iter().enumerate() {
            for index in 0..blocks {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                x = self.block(x, &format!("layer{}.{index}", stage + 1), self.width << stage, stride).checkpoint();
            }
        }
        x.adaptive_avg_pool([1, 1]).flatten().linear("fc", classes)
    }

    fn block(&self, x: Tensor, name: &str, planes: usize, stride: usize) -> Tensor {
        let outputs = planes * self.block.expansion();
        let identity = x.clone();
        let y = match self.block {
            Block::Basic => {
                let y = conv_norm(x, &layer(name, 1), Conv::new(planes, 3).stride(stride).padding(1)).relu();
                conv_norm(y, &layer(name, 2), Conv::new(planes, 3).padding(1))
            }
            Block::Bottleneck => {
                let width = planes * self.width_per_group / 64 * self.groups;
                let window = Conv::new(width, 3).stride(stride).padding(1).groups(self.groups);
                let y = conv_norm(x, &layer(name, 1), Conv::new(width, 1)).relu();
                let y = conv_norm(y, &layer(name, 2), window).relu();
                conv_norm(y, &layer(name, 3), Conv::new(outputs, 1))
            }
        };
        let identity = match stride != 1 || identity.shape().last() != outputs {
            true => {
                let names = [format!("{name}.downsample.0"), format!("{name}.downsample.1")];
                conv_norm(identity, &names, Conv::new(outputs, 1).stride(stride))
            }
            false => identity,
        };
        (y + identity).relu()
    }
}
