//! Attributes of operations: windows, groups, statistics, activations, functions.

use std::fmt;

/// Kernel, stride, padding and dilation of a sliding window, each `[vertical, horizontal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Window size.
    pub kernel: [usize; 2],
    /// Step between neighbouring outputs.
    pub stride: [usize; 2],
    /// Padding on each side: zeros for convolution, minus infinity for max pooling.
    pub padding: [usize; 2],
    /// Distance between neighbouring elements of the window.
    pub dilation: [usize; 2],
}

impl Window {
    /// Output size along `axis` (0 vertical, 1 horizontal) for an input of `size`. Rounds down, as PyTorch does by
    /// default; `None` if the window does not fit.
    pub fn output(&self, axis: usize, size: usize) -> Option<usize> {
        let room = size.checked_add(2 * self.padding[axis])?.checked_sub(self.span(axis)?)?;
        Some(room.checked_div(self.stride[axis])? + 1)
    }

    /// The smallest input along this axis.
    pub(crate) fn least(&self, axis: usize) -> usize {
        self.span(axis).map_or(usize::MAX, |span| span.saturating_sub(2 * self.padding[axis]).max(1))
    }

    /// The places from the first to the last element of the window.
    fn span(&self, axis: usize) -> Option<usize> {
        self.dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)?.checked_add(1)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}x{}", self.kernel[0], self.kernel[1])?;
        for (name, value, default) in
            [("stride", self.stride, 1), ("padding", self.padding, 0), ("dilation", self.dilation, 1)]
        {
            if value != [default; 2] {
                write!(f, " {name} {}x{}", value[0], value[1])?;
            }
        }
        Ok(())
    }
}

/// Attributes of a convolution (PyTorch's `Conv2d`, cross-correlation, zero padding).
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

/// Output size of an adaptive average pooling. Output `i` of `n` averages inputs `floor(i*size/n) .. ceil((i+1)*size/n)`,
/// as PyTorch's `AdaptiveAvgPool2d` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveAvgPool {
    /// Output `[height, width]`.
    pub output: [usize; 2],
}

/// The statistics that a batch norm normalises by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormStatistics {
    /// Mean and biased variance of the batch, over `count` pixels. The gradient of the input includes the path through
    /// them.
    Batch {
        /// Pixels (batch x height x width) that the statistics cover; over all shards with SyncBatchNorm.
        count: usize,
    },
    /// The running statistics, which are constants within a step. Used in evaluation and by frozen layers.
    Running,
}

impl fmt::Display for NormStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NormStatistics::Batch { count } => write!(f, "batch of {count}"),
            NormStatistics::Running => f.write_str("running"),
        }
    }
}

/// An activation whose gradient follows from its result `y`: ReLU passes the gradient where `0 < y`, ReLU6 where
/// `0 < y < 6` (as PyTorch's `ReLU` and `ReLU6` do; NaN stays NaN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `scale * x + shift`.
    Affine {
        /// Factor of x.
        scale: f32,
        /// Added to the product.
        shift: f32,
    },
    /// e to the power of x.
    Exp,
    /// The natural logarithm.
    Log,
    /// x to the power of an exponent. The derivative of the power 0 is 0 everywhere, as in PyTorch.
    Power(f32),
    /// The larger of x and a minimum; NaN stays NaN. The derivative at the minimum is 1, as in PyTorch.
    ClampMin(f32),
}

impl Function {
    /// The name in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Function::Affine { .. } => "affine",
            Function::Exp => "exp",
            Function::Log => "log",
            Function::Power(_) => "power",
            Function::ClampMin(_) => "clamp_min",
        }
    }

    /// The name of its gradient in plans.
    pub(crate) const fn backward_name(self) -> &'static str {
        match self {
            Function::Affine { .. } => "affine_backward",
            Function::Exp => "exp_backward",
            Function::Log => "log_backward",
            Function::Power(_) => "power_backward",
            Function::ClampMin(_) => "clamp_min_backward",
        }
    }

    /// Whether its attributes are finite.
    pub(crate) fn is_finite(self) -> bool {
        match self {
            Function::Affine { scale, shift } => scale.is_finite() && shift.is_finite(),
            Function::Exp | Function::Log => true,
            Function::Power(value) | Function::ClampMin(value) => value.is_finite(),
        }
    }
}

/// Writes the attributes as they follow the name in the text of an operation.
impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Function::Affine { scale, shift } => write!(f, " {{scale {scale} shift {shift}}}"),
            Function::Exp | Function::Log => Ok(()),
            Function::Power(exponent) => write!(f, " {{{exponent}}}"),
            Function::ClampMin(minimum) => write!(f, " {{{minimum}}}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_output_rounds_down_and_is_none_if_the_window_does_not_fit() {
        let check = |kernel, stride, padding, dilation, size, expected| {
            let window =
                Window { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2] };
            assert_eq!(window.output(0, size), expected);
        };
        check(7, 2, 3, 1, 224, Some(112));
        check(3, 2, 1, 1, 112, Some(56));
        check(3, 2, 1, 1, 7, Some(4));
        check(3, 1, 2, 2, 5, Some(5));
        check(3, 1, 0, 1, 2, None);
        check(1, 0, 0, 1, 2, None);
    }
}
