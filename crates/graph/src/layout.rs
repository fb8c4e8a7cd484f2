//! From the order in which devices keep a parameter to the order under its PyTorch name, and back.

use std::ops::Range;

use enmasse_tensor::Shape;

/// How a parameter's stored shape relates to PyTorch's. Every device keeps the stored order; files and `load`/`store` use PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The same order.
    Plain,
    /// Stored `[kernel height, kernel width, input, output]`, PyTorch `[output, input, kernel height, kernel width]`: output
    /// channels lie next to each other, as the kernels read them.
    Convolution,
    /// Stored `[input, output]`, PyTorch `[output, input]`.
    Linear,
}

impl Layout {
    /// PyTorch's shape of a tensor stored as `shape`.
    pub fn torch_shape(self, shape: &Shape) -> Shape {
        match (self, &shape[..]) {
            (Layout::Convolution, &[h, w, i, o]) => Shape::from([o, i, h, w]),
            (Layout::Linear, &[i, o]) => Shape::from([o, i]),
            _ => shape.clone(),
        }
    }

    /// Calls `visit(stored index, PyTorch index)` for every element of a tensor stored as `shape`.
    pub fn for_each(self, shape: &Shape, mut visit: impl FnMut(usize, usize)) {
        self.for_each_run(shape, 0..shape.elements(), |stored, torch, stride| {
            stored.enumerate().for_each(|(j, stored)| visit(stored, torch + j * stride));
        });
    }

    /// Cuts a range of stored elements, in order, into runs whose places in PyTorch's order are at equal distances: calls
    /// `visit(stored elements, PyTorch index of the first, distance)`.
    pub fn for_each_run(
        self,
        shape: &Shape,
        elements: Range<usize>,
        mut visit: impl FnMut(Range<usize>, usize, usize),
    ) {
        let mut start = elements.start;
        let (taps, inputs, outputs) = match (self, &shape[..]) {
            (Layout::Convolution, &[h, w, i, o]) => (h * w, i, o),
            (Layout::Linear, &[i, o]) => (1, i, o),
            _ => return visit(elements, start, 1),
        };
        while start < elements.end {
            // A row holds the outputs of one tap and input.
            let (row, output) = (start / outputs, start % outputs);
            let end = elements.end.min((row + 1) * outputs);
            let (tap, input) = (row / inputs, row % inputs);
            visit(start..end, (output * inputs + input) * taps + tap, inputs * taps);
            start = end;
        }
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
        let (stored, torch) = (((3 + 1) * 5 + 2) * 7 + 4, ((4 * 5 + 2) * 2 + 1) * 3 + 1);
        check(Layout::Convolution, [2, 3, 5, 7].into(), [7, 5, 2, 3].into(), (stored, torch));
        check(Layout::Linear, [3, 5].into(), [5, 3].into(), (2 * 5 + 4, 4 * 3 + 2));
        check(Layout::Plain, [6].into(), [6].into(), (5, 5));
    }
}
