//! Descriptions of layers in a model: convolutions, linear layers and pooling windows, with PyTorch's defaults.

use crate::Window;

/// Describes a convolution layer. Defaults are PyTorch's, including a bias.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    pub(crate) channels: usize,
    pub(crate) window: Window,
    pub(crate) groups: usize,
    pub(crate) bias: bool,
    pub(crate) kaiming: bool,
}

impl Conv {
    /// `channels` output channels from a square kernel; stride 1, no padding, one group, with bias.
    pub fn new(channels: usize, kernel: usize) -> Self {
        let window = Window { kernel: [kernel; 2], stride: [1; 2], padding: [0; 2], dilation: [1; 2] };
        Conv { channels, window, groups: 1, bias: true, kaiming: false }
    }

    /// Replaces the window, for kernels, strides or padding that are not square.
    pub fn window(self, window: Window) -> Self {
        Conv { window, ..self }
    }

    /// The stride in both directions.
    pub fn stride(mut self, stride: usize) -> Self {
        self.window.stride = [stride; 2];
        self
    }

    /// Zero padding on all sides.
    pub fn padding(mut self, padding: usize) -> Self {
        self.window.padding = [padding; 2];
        self
    }

    /// The dilation in both directions.
    pub fn dilation(mut self, dilation: usize) -> Self {
        self.window.dilation = [dilation; 2];
        self
    }

    /// Splits the channels into groups that are convolved independently.
    pub fn groups(self, groups: usize) -> Self {
        Conv { groups, ..self }
    }

    /// No bias, as before a batch norm.
    pub fn no_bias(self) -> Self {
        Conv { bias: false, ..self }
    }

    /// Initialises the weights as torchvision's models do, by `kaiming_normal_(mode="fan_out", nonlinearity="relu")`, and
    /// a bias to 0. The default is that of PyTorch's `Conv2d`: uniform within `1 / sqrt(fan in)`.
    pub fn kaiming_normal(self) -> Self {
        Conv { kaiming: true, ..self }
    }
}

/// Describes a linear layer. A number converts to a layer with that many outputs and PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    pub(crate) outputs: usize,
    pub(crate) std: Option<f32>,
}

impl Linear {
    /// Weights and bias are initialised as in PyTorch's `Linear`: uniform within `1 / sqrt(inputs)`.
    pub fn new(outputs: usize) -> Self {
        Linear { outputs, std: None }
    }

    /// Initialises the weights from a normal distribution with this deviation, and the bias to 0, as in torchvision's VGG
    /// and MobileNetV2.
    pub fn normal(self, std: f32) -> Self {
        Linear { std: Some(std), ..self }
    }
}

impl From<usize> for Linear {
    fn from(outputs: usize) -> Self {
        Linear::new(outputs)
    }
}

/// Describes a pooling window.
#[derive(Clone, Copy, Debug)]
pub struct Pool(pub(crate) Window);

impl Pool {
    /// A square window whose stride is its size, as in PyTorch.
    pub fn new(kernel: usize) -> Self {
        Pool(Window { kernel: [kernel; 2], stride: [kernel; 2], padding: [0; 2], dilation: [1; 2] })
    }

    /// The stride in both directions.
    pub fn stride(mut self, stride: usize) -> Self {
        self.0.stride = [stride; 2];
        self
    }

    /// Padding on all sides, at most half the kernel.
    pub fn padding(mut self, padding: usize) -> Self {
        self.0.padding = [padding; 2];
        self
    }
}
