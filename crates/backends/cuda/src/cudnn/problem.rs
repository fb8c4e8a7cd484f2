//! A convolution to plan: what is computed from what, in which shapes and types.

use std::fmt;

use enmasse_graph::Precision;
use enmasse_graph::ops::Conv2d;

/// What an engine does with each sum before it rounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// Adds the bias of its channel, which has the type of the activations: cuDNN has no engine of its own that adds one of f32 to
    /// sums of 16-bit values, and would compile it for some seconds.
    Bias,
    /// Adds the bias, and makes 0 of what is below it.
    BiasRelu,
}

/// Which of x, w and y follows from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `y = x * w`.
    Forward(Epilogue),
    /// The gradient of x from those of y and w.
    BackwardData {
        /// Whether it is added to what x holds.
        accumulate: bool,
    },
    /// The gradient of w from x and the gradient of y.
    BackwardWeights,
}

/// A convolution. Activations are dense NHWC, weights KRSC: `[output channels, kernel height, kernel width, input channels /
/// groups]`. All addresses are multiples of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// What is computed.
    pub direction: Direction,
    /// Shape of the input, or of its gradient.
    pub x: [usize; 4],
    /// Shape of the weights, or of their gradient.
    pub w: [usize; 4],
    /// Shape of the output, or of its gradient.
    pub y: [usize; 4],
    /// Window and groups.
    pub conv: Conv2d,
    /// The element type of activations and weights, and how products are computed: in [`Precision::F32`] by no engine that uses
    /// tensor cores, which would round to tf32. Sums are always f32.
    pub arithmetic: Precision,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |shape: [usize; 4]| shape.map(|size| size.to_string()).join(",");
        f.write_str(match self.direction {
            Direction::Forward(Epilogue::None) => "convolution",
            Direction::Forward(Epilogue::Bias) => "convolution with bias",
            Direction::Forward(Epilogue::BiasRelu) => "convolution with bias and relu",
            Direction::BackwardData { accumulate: false } => "gradient of a convolution's input",
            Direction::BackwardData { accumulate: true } => "added gradient of a convolution's input",
            Direction::BackwardWeights => "gradient of a convolution's weights",
        })?;
        write!(
            f,
            " {} x[{}] w[{}] y[{}] {}",
            self.arithmetic.name(),
            list(self.x),
            list(self.w),
            list(self.y),
            self.conv
        )
    }
}
