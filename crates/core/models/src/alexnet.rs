//! AlexNet, as torchvision builds it.
//!
//! Source: A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997, 2014.

use enmasse_graph::{Conv, Pool, Tensor};

/// Five convolutions and three linear layers, for images from 63x63.
///
/// ```
/// use enmasse_graph::{CompileOptions, compile};
/// use enmasse_models::AlexNet;
/// let narrow = AlexNet::new().width(8).hidden(64).dropout(0.0);
/// let plans = compile(&|x| narrow.forward(x, 10), &CompileOptions::new("alexnet/8", 2, 63, 10)).unwrap();
/// assert_eq!(*plans.find("classifier.1.weight").unwrap().shape, [32 * 6 * 6, 64]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlexNet {
    width: usize,
    hidden: usize,
    dropout: f32,
}

impl AlexNet {
    /// torchvision's configuration.
    pub const fn new() -> Self {
        AlexNet { width: 64, hidden: 4096, dropout: 0.5 }
    }

    /// Channels of the first convolution, instead of 64; the others keep their ratio to it.
    pub const fn width(self, width: usize) -> Self {
        AlexNet { width, ..self }
    }

    /// Features between the linear layers, instead of 4096.
    pub const fn hidden(self, hidden: usize) -> Self {
        AlexNet { hidden, ..self }
    }

    /// Probability of the dropout before the first two linear layers, instead of 0.5.
    pub const fn dropout(self, dropout: f32) -> Self {
        AlexNet { dropout, ..self }
    }

    /// Images to logits.
    pub fn forward(&self, x: Tensor, classes: usize) -> Tensor {
        let pool = Pool::new(3).stride(2);
        let x = x.conv2d("features.0", Conv::new(self.width, 11).stride(4).padding(2)).relu().max_pool(pool);
        let x = x.conv2d("features.3", Conv::new(3 * self.width, 5).padding(2)).relu().max_pool(pool);
        let x = x.conv2d("features.6", Conv::new(6 * self.width, 3).padding(1)).relu();
        let x = x.conv2d("features.8", Conv::new(4 * self.width, 3).padding(1)).relu();
        let x = x.conv2d("features.10", Conv::new(4 * self.width, 3).padding(1)).relu().max_pool(pool);
        let x = x.adaptive_avg_pool([6, 6]).flatten();
        let x = x.dropout("classifier.0", self.dropout).linear("classifier.1", self.hidden).relu();
        let x = x.dropout("classifier.3", self.dropout).linear("classifier.4", self.hidden).relu();
        x.linear("classifier.6", classes)
    }
}

impl Default for AlexNet {
    fn default() -> Self {
        Self::new()
    }
}
