//! A convolution to plan: what is computed from what, in which shapes and types.

use std::fmt;

use enmasse_graph::Precision;
use enmasse_graph::ops::Conv2d;

/// Which of x, w and y follows from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `y = x * w`, plus a bias of f32 for each channel if there is one. With a bias, the sum is rounded once.
    Forward {
        /// Whether there is a bias.
        bias: bool,
    },
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
            Direction::Forward { bias: false } => "convolution",
            Direction::Forward { bias: true } => "convolution with bias",
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
