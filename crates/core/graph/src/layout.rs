//! Converts between a parameter's element order on devices and its order in PyTorch.
//!
//! On devices activations are dense NHWC, linear weights are `[input, output]`, and convolution
//! weights have the order of [`FilterOrder`]. PyTorch's names and order appear only where a program
//! loads and stores tensors, and in files.

use std::fmt;
use std::ops::Range;

use enmasse_tensor::Shape;

/// The order in which a device stores the weights of convolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FilterOrder {
    /// `[kernel height, kernel width, input, output]`: output channels are adjacent.
    #[default]
    Hwio,
    /// `[output, kernel height, kernel width, input]`: input channels are adjacent, as in activations (cuDNN's KRSC).
    Ohwi,
}

impl FilterOrder {
    /// The name in plans.
    pub const fn name(self) -> &'static str {
        match self {
            FilterOrder::Hwio => "hwio",
            FilterOrder::Ohwi => "ohwi",
        }
    }

    /// The stored shape of filters.
    pub fn shape(self, kernel: [usize; 2], inputs: usize, outputs: usize) -> Shape {
        match self {
            FilterOrder::Hwio => [kernel[0], kernel[1], inputs, outputs].into(),
            FilterOrder::Ohwi => [outputs, kernel[0], kernel[1], inputs].into(),
        }
    }
}

impl fmt::Display for FilterOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a parameter's stored shape relates to PyTorch's. Devices use the stored order; files and `load`/`store` use
/// PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The same order.
    Plain,
    /// Stored in the order that the device chose; in PyTorch `[output, input, kernel height, kernel width]`.
    Convolution(FilterOrder),
    /// Stored as `[input, output]`; in PyTorch `[output, input]`.
    Linear,
    /// Stored as `[channels]`; in PyTorch `[channels, 1, 1]`, which fits its images.
    Channels,
}

impl Layout {
    /// The stored axis for each axis of PyTorch's shape; `None` if the orders are equal.
    fn axes(self) -> Option<&'static [usize]> {
        match self {
            Layout::Plain | Layout::Channels => None,
            Layout::Convolution(FilterOrder::Hwio) => Some(&[3, 2, 0, 1]),
            Layout::Convolution(FilterOrder::Ohwi) => Some(&[0, 3, 1, 2]),
            Layout::Linear => Some(&[1, 0]),
        }
    }

    /// PyTorch's shape of a tensor stored as `shape`.
    pub fn torch_shape(self, shape: &Shape) -> Shape {
        match self.axes() {
            None if self == Layout::Channels => [shape.elements(), 1, 1].into(),
            None => shape.clone(),
            Some(axes) => axes.iter().map(|&axis| shape[axis]).collect::<Vec<_>>().into(),
        }
    }

    /// Calls `visit(stored index, PyTorch index)` for every element of a tensor stored as `shape`.
    pub fn for_each(self, shape: &Shape, mut visit: impl FnMut(usize, usize)) {
        self.for_each_run(shape, 0..shape.elements(), |stored, torch, stride| {
            stored.enumerate().for_each(|(j, stored)| visit(stored, torch + j * stride));
        });
    }

    /// Splits a range of stored elements, in order, into runs that are evenly spaced in PyTorch's order. Calls
    /// `visit(stored elements, PyTorch index of the first, distance)` for each run.
    pub fn for_each_run(
        self,
        shape: &Shape,
        elements: Range<usize>,
        mut visit: impl FnMut(Range<usize>, usize, usize),
    ) {
        let Some(axes) = self.axes() else { return visit(elements.clone(), elements.start, 1) };
        // The distance in PyTorch's order between neighbours along each stored axis.
        let mut strides = [0; 4];
        axes.iter().rev().fold(1, |stride, &axis| {
            strides[axis] = stride;
            stride * shape[axis]
        });
        let mut start = elements.start;
        while start < elements.end {
            // A run stays within one row, whose elements differ only in the last axis.
            let end = elements.end.min((start / shape.last() + 1) * shape.last());
            let place = (0..shape.len()).rev().fold((start, 0), |(rest, torch), axis| {
                (rest / shape[axis], torch + rest % shape[axis] * strides[axis])
            });
            visit(start..end, place.1, strides[shape.len() - 1]);
            start = end;
        }
    }

    /// Like [`Layout::for_each_run`], for some of the rows of PyTorch's tensor: the elements with these indices along its
    /// first axis.
    pub fn for_each_run_of_rows(
        self,
        shape: &Shape,
        rows: Range<usize>,
        mut visit: impl FnMut(Range<usize>, usize, usize),
    ) {
        let (count, row) = self.rows(shape);
        match self.axes() {
            // The index of the row varies fastest, so each run holds one element of every row.
            Some(axes) if axes[0] + 1 == shape.len() => {
                for first in (0..row).map(|at| at * count) {
                    self.for_each_run(shape, first + rows.start..first + rows.end, &mut visit);
                }
            }
            _ => self.for_each_run(shape, rows.start * row..rows.end * row, visit),
        }
    }

    /// The number of rows of PyTorch's tensor, and of elements in each. A scalar is one row.
    pub fn rows(self, shape: &Shape) -> (usize, usize) {
        let count = self.torch_shape(shape).first().copied().unwrap_or(1);
        (count, shape.elements().checked_div(count).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_order_matches_torch_names() {
        let check = |layout: Layout, stored: Shape, torch: Shape, pair: (usize, usize)| {
            assert_eq!(layout.torch_shape(&stored), torch);
            let mut pairs = Vec::new();
            layout.for_each(&stored, |a, b| pairs.push((a, b)));
            assert!(pairs.contains(&pair), "{pair:?}");
            for side in [pairs.iter().map(|p| p.0).collect::<Vec<_>>(), pairs.iter().map(|p| p.1).collect()] {
                let mut side = side;
                side.sort_unstable();
                assert!(side.into_iter().eq(0..stored.elements()));
            }
        };
        // [h=1,w=1,i=2,o=4] of 2x3 taps: stored ((1*3+1)*5+2)*7+4 is torch ((4*5+2)*2+1)*3+1.
        let stored = ((3 + 1) * 5 + 2) * 7 + 4;
        let torch = ((4 * 5 + 2) * 2 + 1) * 3 + 1;
        check(Layout::Convolution(FilterOrder::Hwio), [2, 3, 5, 7].into(), [7, 5, 2, 3].into(), (stored, torch));
        // The same element as [o=4,h=1,w=1,i=2].
        let stored = ((4 * 2 + 1) * 3 + 1) * 5 + 2;
        check(Layout::Convolution(FilterOrder::Ohwi), [7, 2, 3, 5].into(), [7, 5, 2, 3].into(), (stored, torch));
        check(Layout::Linear, [3, 5].into(), [5, 3].into(), (2 * 5 + 4, 4 * 3 + 2));
        check(Layout::Plain, [6].into(), [6].into(), (5, 5));
        check(Layout::Channels, [6].into(), [6, 1, 1].into(), (5, 5));
    }

    #[test]
    fn rows_are_those_of_torch() {
        let check = |layout: Layout, stored: Shape| {
            let mut expected = Vec::new();
            layout.for_each(&stored, |a, b| expected.push((b, a)));
            expected.sort_unstable();
            let (count, row) = layout.rows(&stored);
            assert_eq!(count * row, stored.elements());
            for rows in [0..count, 0..count / 2, count / 2..count, 0..0] {
                let mut found = Vec::new();
                layout.for_each_run_of_rows(&stored, rows.clone(), |stored, torch, stride| {
                    found.extend(stored.enumerate().map(|(j, stored)| (torch + j * stride, stored)));
                });
                found.sort_unstable();
                assert_eq!(found, expected[rows.start * row..rows.end * row], "{layout:?} {rows:?}");
            }
        };
        check(Layout::Convolution(FilterOrder::Hwio), [2, 3, 5, 7].into());
        check(Layout::Convolution(FilterOrder::Ohwi), [7, 2, 3, 5].into());
        check(Layout::Linear, [3, 5].into());
        check(Layout::Plain, [6].into());
        check(Layout::Channels, [6].into());
        check(Layout::Plain, [0].into());
        check(Layout::Plain, Vec::new().into());
    }
}
