//! Windows that slide over images: kernel, stride, padding and dilation.

use std::fmt;

/// Kernel, stride, padding and dilation of a sliding window, each `[vertical, horizontal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Window size.
    pub kernel: [usize; 2],
    /// Step between neighbouring outputs.
    pub stride: [usize; 2],
    /// Padding before and after: `[[top, bottom], [left, right]]`. Zeros for convolution, minus infinity for max pooling.
    pub padding: [[usize; 2]; 2],
    /// Distance between neighbouring elements of the window.
    pub dilation: [usize; 2],
}

impl Window {
    /// Output size along `axis` (0 vertical, 1 horizontal) for an input of `size`. Rounds down, as PyTorch does by
    /// default; `None` if the window does not fit.
    pub fn output(&self, axis: usize, size: usize) -> Option<usize> {
        let room = size.checked_add(self.padded(axis))?.checked_sub(self.span(axis)?)?;
        Some(room.checked_div(self.stride[axis])? + 1)
    }

    /// The smallest input along this axis.
    pub(crate) fn least(&self, axis: usize) -> usize {
        self.span(axis).map_or(usize::MAX, |span| span.saturating_sub(self.padded(axis)).max(1))
    }

    /// This window with the padding of TensorFlow's `SAME`: `ceil(size / stride)` outputs along each axis, and the odd
    /// pixel after the input.
    pub(crate) fn same(self, size: [usize; 2]) -> Window {
        let padding = [0, 1].map(|axis| {
            // A kernel or a stride of 0 is refused where the window is used.
            let stride = self.stride[axis].max(1);
            let span = self.span(axis).unwrap_or(0);
            let last = size[axis].div_ceil(stride).saturating_sub(1) * stride;
            let total = last.saturating_add(span).saturating_sub(size[axis]);
            [total / 2, total.div_ceil(2)]
        });
        Window { padding, ..self }
    }

    /// The padding of both sides together.
    fn padded(&self, axis: usize) -> usize {
        let [before, after] = self.padding[axis];
        before + after
    }

    /// The places from the first to the last element of the window.
    fn span(&self, axis: usize) -> Option<usize> {
        self.dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)?.checked_add(1)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}x{}", self.kernel[0], self.kernel[1])?;
        if self.stride != [1; 2] {
            write!(f, " stride {}x{}", self.stride[0], self.stride[1])?;
        }
        match self.padding {
            [[0, 0], [0, 0]] => {}
            [[top, bottom], [left, right]] if (top, left) == (bottom, right) => write!(f, " padding {top}x{left}")?,
            [[top, bottom], [left, right]] => write!(f, " padding {top}+{bottom}x{left}+{right}")?,
        }
        if self.dilation != [1; 2] {
            write!(f, " dilation {}x{}", self.dilation[0], self.dilation[1])?;
        }
        Ok(())
    }
}

/// Describes a pooling window.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    pub(crate) window: Window,
    pub(crate) same: bool,
}

impl Pool {
    /// A square window whose stride is its size, as in PyTorch.
    pub fn new(kernel: usize) -> Self {
        let window = Window { kernel: [kernel; 2], stride: [kernel; 2], padding: [[0; 2]; 2], dilation: [1; 2] };
        Pool { window, same: false }
    }

    /// The stride in both directions.
    pub fn stride(mut self, stride: usize) -> Self {
        self.window.stride = [stride; 2];
        self
    }

    /// Padding on all sides, at most half the kernel.
    pub fn padding(self, padding: usize) -> Self {
        self.padding_sides([[padding; 2]; 2])
    }

    /// Padding of each side, `[[top, bottom], [left, right]]`, at most half the kernel.
    pub fn padding_sides(mut self, padding: [[usize; 2]; 2]) -> Self {
        self.window.padding = padding;
        Pool { same: false, ..self }
    }

    /// TensorFlow's `padding="SAME"`, from the size of the input: see [`Conv::same`](crate::Conv::same).
    pub fn same(self) -> Self {
        Pool { same: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(kernel: usize, stride: usize, padding: [usize; 2], dilation: usize) -> Window {
        Window { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2] }
    }

    #[test]
    fn window_output_rounds_down_and_is_none_if_the_window_does_not_fit() {
        let check = |kernel, stride, padding, dilation, size, expected| {
            assert_eq!(square(kernel, stride, padding, dilation).output(0, size), expected);
        };
        check(7, 2, [3, 3], 1, 224, Some(112));
        check(3, 2, [1, 1], 1, 112, Some(56));
        check(3, 2, [0, 1], 1, 112, Some(56));
        check(3, 2, [1, 1], 1, 7, Some(4));
        check(3, 1, [2, 2], 2, 5, Some(5));
        check(3, 1, [0, 1], 1, 2, Some(1));
        check(3, 1, [0, 0], 1, 2, None);
        check(1, 0, [0, 0], 1, 2, None);
    }

    #[test]
    fn same_padding_is_tensorflows() {
        let check = |kernel, stride, dilation, size: usize, expected| {
            let window = square(kernel, stride, [9, 9], dilation).same([size; 2]);
            assert_eq!(window, square(kernel, stride, expected, dilation));
            assert_eq!(window.output(0, size), Some(size.div_ceil(stride)));
        };
        check(3, 1, 1, 224, [1, 1]);
        check(3, 2, 1, 224, [0, 1]);
        check(3, 2, 1, 225, [1, 1]);
        check(5, 2, 1, 28, [1, 2]);
        check(5, 2, 1, 7, [2, 2]);
        check(2, 1, 1, 5, [0, 1]);
        check(2, 2, 1, 5, [0, 1]);
        check(3, 1, 2, 5, [2, 2]);
        check(1, 2, 1, 5, [0, 0]);
        check(2, 3, 1, 7, [0, 1]);
        check(2, 3, 1, 8, [0, 0]);
        // The axes differ.
        let window = Window { kernel: [3, 5], stride: [2, 2], ..square(1, 1, [0, 0], 1) };
        assert_eq!(window.same([224, 7]).padding, [[0, 1], [2, 2]]);
    }

    #[test]
    fn the_text_names_sides_only_where_they_differ() {
        let check = |padding, expected: &str| {
            assert_eq!(Window { padding, ..square(3, 2, [0, 0], 1) }.to_string(), expected);
        };
        check([[0, 0], [0, 0]], "kernel 3x3 stride 2x2");
        check([[1, 1], [2, 2]], "kernel 3x3 stride 2x2 padding 1x2");
        check([[0, 1], [0, 1]], "kernel 3x3 stride 2x2 padding 0+1x0+1");
        check([[1, 1], [2, 0]], "kernel 3x3 stride 2x2 padding 1+1x2+0");
    }
}
