//! Convolution over images, and its two gradients.

use std::fmt;

use super::{BiasBackward, Matmuls, Operand, Operation};
use crate::autodiff::Backward;
use crate::{GraphError, Init, Layout, Node, Tensor, ValueId, Window};

/// Cross-correlation with zero padding, plus the bias if given. If the statistics are results, they are those of `y` as it is stored, as
/// [`super::BatchNormStatistics`] has them: a device gathers them while a piece of the result is in cache. Channels of `x` that `w` lacks
/// are zeros ([`crate::Target::image_channels`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// The window.
    pub window: Window,
    /// Number of groups; divides both input and output channels.
    pub groups: usize,
}

impl fmt::Display for Conv2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.window)?;
        if self.groups > 1 {
            write!(f, " groups {}", self.groups)?;
        }
        Ok(())
    }
}

impl Operation for Conv2d {
    const NAME: &'static str = "conv2d";
    const SIGNATURE: &'static str = "(x, w, bias? [C]) -> (y, mean? [C], variance? [C])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.Conv2d");

    fn attributes(&self) -> String {
        self.to_string()
    }

    fn matmuls(&self) -> Option<Matmuls> {
        Some(Matmuls { result: Operand::Output(0), weights: Operand::Input(1) })
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let [x, w] = [node.inputs[0], node.inputs[1]];
        backward.emit_gradient(w, Conv2dBackwardWeights(*self), vec![x, dy]);
        if let Some(&bias) = node.inputs.get(2) {
            backward.emit_gradient(bias, BiasBackward, vec![dy]);
        }
        if backward.wants(x) {
            // The convolution adds the earlier gradient of x, which saves another pass over memory.
            let inputs = [dy, w].into_iter().chain(backward.gradient_of(x)).collect();
            let gradient = backward.emit(Conv2dBackwardData(*self), inputs, &[x])[0];
            backward.set_gradient(x, gradient);
        }
        Ok(())
    }
}

/// The gradient of a convolution's input, plus `base` if given; `dx` may lie over `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dBackwardData(pub Conv2d);

impl Operation for Conv2dBackwardData {
    const NAME: &'static str = "conv2d_backward_data";
    const SIGNATURE: &'static str = "(dy, w, base?) -> (dx)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.grad.conv2d_input");

    fn attributes(&self) -> String {
        self.0.to_string()
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 2))
    }

    fn matmuls(&self) -> Option<Matmuls> {
        Some(Matmuls { result: Operand::Input(0), weights: Operand::Input(1) })
    }
}

/// The gradient of a convolution's weights. Channels of `x` that `dw` lacks are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dBackwardWeights(pub Conv2d);

impl Operation for Conv2dBackwardWeights {
    const NAME: &'static str = "conv2d_backward_weights";
    const SIGNATURE: &'static str = "(x, dy) -> (dw)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.grad.conv2d_weight");

    fn attributes(&self) -> String {
        self.0.to_string()
    }

    fn matmuls(&self) -> Option<Matmuls> {
        Some(Matmuls { result: Operand::Input(1), weights: Operand::Output(0) })
    }
}

/// Describes a convolution layer. Defaults are PyTorch's, including a bias.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    pub(crate) channels: usize,
    pub(crate) window: Window,
    pub(crate) same: bool,
    pub(crate) groups: usize,
    pub(crate) bias: bool,
    pub(crate) init: ConvInit,
    pub(crate) uniform_bias: bool,
}

/// The initial weights of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConvInit {
    /// Uniform within `1 / sqrt(fan in)`, and the bias too.
    Default,
    /// Normal with the std `sqrt(2 / fan out)`, and a bias of 0.
    Kaiming,
    /// Normal with this std, and a bias of 0.
    Normal(f32),
    /// The first filters repeat their inputs, others are as by default, and a bias is 0.
    Dirac,
    /// From the training images, not trained, and a bias of 0. The number is added to eigenvalues.
    Whitening(f32),
}

impl Conv {
    /// `channels` output channels from a square kernel; stride 1, no padding, one group, with bias.
    pub fn new(channels: usize, kernel: usize) -> Self {
        let window = Window { kernel: [kernel; 2], stride: [1; 2], padding: [[0; 2]; 2], dilation: [1; 2] };
        Conv { channels, window, same: false, groups: 1, bias: true, init: ConvInit::Default, uniform_bias: false }
    }

    /// Replaces the window, for kernels, strides or padding that are not square.
    pub fn window(self, window: Window) -> Self {
        Conv { window, same: false, ..self }
    }

    /// The stride in both directions.
    pub fn stride(mut self, stride: usize) -> Self {
        self.window.stride = [stride; 2];
        self
    }

    /// Zero padding on all sides.
    pub fn padding(self, padding: usize) -> Self {
        self.padding_sides([[padding; 2]; 2])
    }

    /// Zero padding of each side, `[[top, bottom], [left, right]]`, as by PyTorch's `F.pad`.
    pub fn padding_sides(mut self, padding: [[usize; 2]; 2]) -> Self {
        self.window.padding = padding;
        Conv { same: false, ..self }
    }

    /// TensorFlow's `padding="SAME"`: as much as gives `ceil(size / stride)` outputs, half of it before the input, and of
    /// an odd number the last pixel after it. A kernel of 3 with stride 2 pads an even size by 0 and 1.
    pub fn same(self) -> Self {
        Conv { same: true, ..self }
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
        Conv { init: ConvInit::Kaiming, ..self }
    }

    /// Initialises the weights from a normal distribution with this std, and a bias to 0.
    pub fn normal(self, std: f32) -> Self {
        Conv { init: ConvInit::Normal(std), ..self }
    }

    /// Lets each of the first filters repeat the input channel of its number, by PyTorch's `dirac_`. Further ones are as by default, and
    /// a bias is 0.
    pub fn dirac(self) -> Self {
        Conv { init: ConvInit::Dirac, ..self }
    }

    /// Lets the filters whiten what they see of the model's input, from the start and without being trained: they are the eigenvectors
    /// of the covariance of training images' patches, each over the root of its eigenvalue plus `epsilon`, and then their negatives. So
    /// the layer is the model's first one, and has twice as many outputs as a patch has numbers. A bias is 0, and trained.
    ///
    /// A `Trainer` computes the filters from the first training images. Without one they are as by default.
    pub fn whitening(self, epsilon: f32) -> Self {
        Conv { init: ConvInit::Whitening(epsilon), ..self }
    }

    /// Initialises a bias as PyTorch's `Conv2d` does, uniformly within `1 / sqrt(fan in)`, whatever its weights.
    pub fn uniform_bias(self) -> Self {
        Conv { uniform_bias: true, ..self }
    }
}

impl Tensor {
    /// `y[n,oh,ow,k] = bias[k] + sum over i, j, c of x[n, oh * stride + i * dilation - top, .., c] * w[i,j,c,k]`, within the
    /// channels of k's group. Parameters are `NAME.weight` and, if it has a bias, `NAME.bias`.
    ///
    /// # Shapes
    /// `[N,H,W,C]` to `[N,OH,OW,channels]`, with `OH = floor((H + top + bottom - dilation * (kernel - 1) - 1) / stride) + 1`
    /// for the padding of both sides, and `OW` alike.
    pub fn conv2d(self, name: &str, conv: Conv) -> Tensor {
        self.enter(name);
        let shape = self.shape();
        let Some([n, h, w, c]) = self.image_dims(self.layer("conv2d"), &shape) else { return self };
        if conv.groups == 0 || c % conv.groups != 0 || conv.channels == 0 || !conv.channels.is_multiple_of(conv.groups)
        {
            let (groups, outputs) = (conv.groups, conv.channels);
            let reason = format!("its groups ({groups}) must divide {c} input and {outputs} output channels");
            return self.fail(GraphError::Shape { place: self.layer("conv2d"), shape, reason });
        }
        let window = if conv.same { conv.window.same([h, w]) } else { conv.window };
        let Some([oh, ow]) = self.window_dims(self.layer("conv2d"), &shape, &window, [h, w]) else { return self };
        let taps = window.kernel[0] * window.kernel[1];
        let bound = 1.0 / ((c / conv.groups * taps) as f32).sqrt();
        let uniform = Init::Uniform { bound };
        let (weight, bias) = match conv.init {
            ConvInit::Default => (uniform, uniform),
            ConvInit::Kaiming => {
                (Init::Normal { std: (2.0 / (conv.channels * taps) as f32).sqrt() }, Init::Constant(0.0))
            }
            ConvInit::Normal(std) => (Init::Normal { std }, Init::Constant(0.0)),
            ConvInit::Dirac => {
                let inputs = c / conv.groups;
                (Init::Dirac { inputs, kernel: window.kernel, bound }, Init::Constant(0.0))
            }
            ConvInit::Whitening(epsilon) => {
                let reason = if !self.is_pixels() {
                    "whitens images, so it must be the model's first layer".to_owned()
                } else if conv.groups > 1 || window.dilation != [1; 2] || conv.channels != 2 * c * taps {
                    format!(
                        "whitens patches of {c}x{taps} numbers: it needs {} outputs, one group and no dilation",
                        2 * c * taps
                    )
                } else if !(epsilon.is_finite() && epsilon > 0.0) {
                    format!("has epsilon {epsilon}, which must be above 0")
                } else {
                    String::new()
                };
                if !reason.is_empty() {
                    return self.fail(GraphError::Attribute { place: self.layer("conv2d"), reason });
                }
                (Init::Whitening { epsilon, bound }, Init::Constant(0.0))
            }
        };
        let filters = self.filters();
        let dims = filters.shape(window.kernel, c / conv.groups, conv.channels);
        let layout = Layout::Convolution(filters);
        let mut operands = vec![self.parameter(format!("{name}.weight"), dims, layout, weight)];
        if matches!(conv.init, ConvInit::Whitening(_)) {
            self.fix(operands[0]);
        }
        if conv.bias {
            let bias = if conv.uniform_bias { uniform } else { bias };
            operands.push(self.parameter(format!("{name}.bias"), [conv.channels].into(), Layout::Plain, bias));
        }
        self.record(Conv2d { window, groups: conv.groups }, &operands, [n, oh, ow, conv.channels].into())
    }
}
