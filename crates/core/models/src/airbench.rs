//! The networks of airbench, which learn CIFAR-10 in few epochs.
//!
//! Source: K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv:2404.04454, 2024. Tensors have the names of his later
//! sources. There the bias of the first layer is trained in the first three epochs, to save time; here in all.

use enmasse_graph::{BatchNorm, Conv, Linear, Pool, Tensor};

/// A whitening of 2x2 patches, three groups of two convolutions, and a linear layer without a bias, for images from 26x26.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::Airbench;
/// let plans = compile(&|x| Airbench::airbench94().forward(x, 10), &CompileOptions::new("airbench94", 2, 32, 10)).unwrap();
/// assert_eq!(*plans.find("head.weight").unwrap().shape, [256, 10]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Airbench {
    widths: [usize; 3],
}

impl Airbench {
    /// For 94 % of CIFAR-10's test images.
    pub const fn airbench94() -> Self {
        Airbench::new([64, 256, 256])
    }

    /// For 95 %.
    pub const fn airbench95() -> Self {
        Airbench::new([128, 384, 384])
    }

    /// With these channels of the groups.
    pub const fn new(widths: [usize; 3]) -> Self {
        Airbench { widths }
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let filters = 2 * 2 * 2 * x.shape().last();
        let mut x = x.conv2d("whiten", Conv::new(filters, 2).whitening(5e-4)).gelu();
        for (number, width) in (1..).zip(self.widths) {
            x = group(x, &format!("layers.{number}"), width);
        }
        // The logits are divided by nine, which is the same before a linear layer without a bias.
        let x = x.max_pool(Pool::new(3)).flatten().affine(1.0 / 9.0, 0.0);
        x.linear("head", Linear::new(classes).no_bias())
    }
}

fn group(x: Tensor, name: &str, width: usize) -> Tensor {
    let conv = Conv::new(width, 3).padding(1).no_bias().dirac();
    let norm = BatchNorm::new().epsilon(1e-12).momentum(0.4).fixed_weight();
    let x = x.conv2d(&format!("{name}.conv1"), conv).max_pool(Pool::new(2));
    let x = x.batch_norm_with(&format!("{name}.norm1"), norm).gelu();
    x.conv2d(&format!("{name}.conv2"), conv).batch_norm_with(&format!("{name}.norm2"), norm).gelu()
}
