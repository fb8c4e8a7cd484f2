//! VGG networks, with and without batch norm, as torchvision builds them.
//!
//! Source: K. Simonyan, A. Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015.

use enmasse_graph::{Conv, Linear, Pool, Tensor};

/// Five stages of 3x3 convolutions with max pooling after each, then three linear layers; for images from 32x32.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::Vgg;
/// let narrow = Vgg::vgg11().batch_norm().width(8).hidden(64);
/// let plans = compile(&|x| narrow.forward(x, 10), &CompileOptions::new("vgg11_bn/8", 2, 32, 10)).unwrap();
/// assert_eq!(*plans.find("features.4.weight").unwrap().shape, [3, 3, 8, 16]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vgg {
    convolutions: [usize; 5],
    batch_norm: bool,
    width: usize,
    hidden: usize,
    dropout: f32,
}

impl Vgg {
    /// A network with this many convolutions per stage, at the usual width.
    pub const fn new(convolutions: [usize; 5]) -> Self {
        Vgg { convolutions, batch_norm: false, width: 64, hidden: 4096, dropout: 0.5 }
    }

    /// VGG-11, configuration A.
    pub const fn vgg11() -> Self {
        Self::new([1, 1, 2, 2, 2])
    }

    /// VGG-13, configuration B.
    pub const fn vgg13() -> Self {
        Self::new([2, 2, 2, 2, 2])
    }

    /// VGG-16, configuration D.
    pub const fn vgg16() -> Self {
        Self::new([2, 2, 3, 3, 3])
    }

    /// VGG-19, configuration E.
    pub const fn vgg19() -> Self {
        Self::new([2, 2, 4, 4, 4])
    }

    /// A batch norm after every convolution.
    pub const fn batch_norm(self) -> Self {
        Vgg { batch_norm: true, ..self }
    }

    /// Channels of the first stage, instead of 64; the next three double them as usual.
    pub const fn width(self, width: usize) -> Self {
        Vgg { width, ..self }
    }

    /// Features between the linear layers, instead of 4096.
    pub const fn hidden(self, hidden: usize) -> Self {
        Vgg { hidden, ..self }
    }

    /// Probability of the dropout after the first two linear layers, instead of 0.5.
    pub const fn dropout(self, dropout: f32) -> Self {
        Vgg { dropout, ..self }
    }

    /// Images to logits.
    pub fn forward(&self, mut x: Tensor, classes: usize) -> Tensor {
        // torchvision counts every module of the stages, including those without parameters.
        let mut module = 0;
        for (stage, &convolutions) in self.convolutions.iter().enumerate() {
            let channels = self.width << stage.min(3);
            for _ in 0..convolutions {
                x = x.conv2d(&format!("features.{module}"), Conv::new(channels, 3).padding(1).kaiming_normal());
                if self.batch_norm {
                    module += 1;
                    x = x.batch_norm(&format!("features.{module}"));
                }
                x = x.relu();
                module += 2;
            }
            x = x.max_pool(Pool::new(2));
            module += 1;
        }
        let linear = |outputs| Linear::new(outputs).normal(0.01);
        let x = x.adaptive_avg_pool([7, 7]).flatten();
        let x = x.linear("classifier.0", linear(self.hidden)).relu().dropout("classifier.2", self.dropout);
        let x = x.linear("classifier.3", linear(self.hidden)).relu().dropout("classifier.5", self.dropout);
        x.linear("classifier.6", linear(classes))
    }
}
