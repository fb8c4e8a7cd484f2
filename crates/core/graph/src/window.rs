//! Windows that slide over images: kernel, stride, padding and dilation.

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
