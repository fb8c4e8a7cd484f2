//! What a model says about a layer: convolutions, linear layers and pooling windows, with PyTorch's defaults.

use crate::Window;

/// A convolution layer to be: PyTorch's defaults, a bias among them.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    pub(crate) channels: usize,
    pub(crate) window: Window,
    pub(crate) groups: usize,
    pub(crate) bias: bool,
    pub(crate) kaiming: bool,
}

impl Conv {
    /// `channels` outputs from a square kernel; stride 1, no padding, one group, with bias.
    pub fn new(channels: usize, kernel: usize) -> Self {
        let window = Window { kernel: [kernel; 2], stride: [1; 2], padding: [0; 2], dilation: [1; 2] };
        Conv { channels, window, groups: 1, bias: true, kaiming: false }
    }

    /// Another window, for what is not square.
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

    /// Splits channels into groups that do not see each other.
    pub fn groups(self, groups: usize) -> Self {
        Conv { groups, ..self }
    }

    /// No bias, as in front of a batch norm.
    pub fn no_bias(self) -> Self {
        Conv { bias: false, ..self }
    }

    /// Weights start as torchvision's models do: `kaiming_normal_(mode="fan_out", nonlinearity="relu")`, and a bias at 0.
    /// Otherwise as PyTorch's `Conv2d` does: uniform within `1 / sqrt(fan in)`.
    pub fn kaiming_normal(self) -> Self {
        Conv { kaiming: true, ..self }
    }
}

/// A linear layer to be. A number of outputs is one by PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    pub(crate) outputs: usize,
    pub(crate) deviation: Option<f32>,
}

impl Linear {
    /// Weights and bias start as PyTorch's `Linear` does: uniform within `1 / sqrt(inputs)`.
    pub fn new(outputs: usize) -> Self {
        Linear { outputs, deviation: None }
    }

    /// Weights start normal with this deviation, the bias at 0, as in torchvision's VGG and MobileNetV2.
    pub fn normal(self, deviation: f32) -> Self {
        Linear { deviation: Some(deviation), ..self }
    }
}

impl From<usize> for Linear {
    fn from(outputs: usize) -> Self {
        Linear::new(outputs)
    }
}

/// A pooling window to be.
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
