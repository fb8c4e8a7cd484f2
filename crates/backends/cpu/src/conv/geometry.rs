//! The taps of a window that meet each pixel, axis by axis, for the forward direction and for the gradient of the input.

use std::ops::Range;

use enmasse_graph::ops::Conv2d;

use crate::pack::Run;

/// A convolution with the sizes of its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    /// Number of images.
    pub batch: usize,
    /// Height, width, channels.
    pub input: [usize; 3],
    /// Height, width, channels.
    pub output: [usize; 3],
    /// Window and groups.
    pub conv: Conv2d,
    /// Whether the source is normalised as it is loaded.
    pub normalized: bool,
}

impl ConvShape {
    /// A linear layer: a convolution of single pixels, the tokens of each sample.
    pub(crate) fn linear(batch: usize, tokens: usize, inputs: usize, outputs: usize) -> Self {
        let window = enmasse_graph::Window { kernel: [1; 2], stride: [1; 2], padding: [[0; 2]; 2], dilation: [1; 2] };
        let conv = Conv2d { window, groups: 1 };
        ConvShape { batch, input: [1, tokens, inputs], output: [1, tokens, outputs], conv, normalized: false }
    }

    /// Height, width and channels of what is read and of what is written, forward or for the gradient of the input.
    pub(crate) fn source_and_result(&self, backward: bool) -> [[usize; 3]; 2] {
        if backward { [self.output, self.input] } else { [self.input, self.output] }
    }

    /// Where a tap meets the input along an axis, counted from the output's place times the stride.
    pub(super) fn displacement(&self, axis: usize, tap: usize) -> isize {
        let window = &self.conv.window;
        (tap * window.dilation[axis]) as isize - window.padding[axis][0] as isize
    }

    /// Whether every channel has its own kernel.
    pub(crate) fn is_depthwise(&self) -> bool {
        self.conv.groups == self.input[2] && self.input[2] == self.output[2] && self.conv.groups > 1
    }

    /// Whether to divide activations by the taps that meet them. This pays if the feature map is so small that a large part of the
    /// matmuls would be with padding, and if there are enough channels for matmuls of only the remaining taps.
    pub(crate) fn cut_at_borders(&self) -> bool {
        let channels = self.input[2].min(self.output[2]) / self.conv.groups;
        (0..2).any(|axis| self.output[axis] <= 8 && self.conv.window.kernel[axis] > 1) && channels >= 16
    }
}

/// Some results along one axis, and the taps that meet the source for them. Lattice point j is pixel
/// `j * step + offset` of the result, and tap (k, d) reads pixel `j * source_step + d`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TapRun {
    /// Lattice points.
    pub points: Range<usize>,
    /// Pixels of the result between points.
    pub step: usize,
    /// First pixel of the result.
    pub offset: usize,
    /// Pixels of the source between points.
    pub source_step: usize,
    /// Tap index and displacement.
    pub taps: Vec<(usize, isize)>,
}

/// The runs along an axis, forward or for the gradient of the input.
pub(crate) fn tap_runs(shape: &ConvShape, axis: usize, cut: bool, backward: bool) -> Vec<TapRun> {
    if backward { self::backward(shape, axis, cut) } else { forward(shape, axis, cut) }
}

fn forward(shape: &ConvShape, axis: usize, cut: bool) -> Vec<TapRun> {
    let window = &shape.conv.window;
    let taps = (0..window.kernel[axis]).map(|k| (k, shape.displacement(axis, k))).collect();
    let whole = TapRun { points: 0..shape.output[axis], step: 1, offset: 0, source_step: window.stride[axis], taps };
    split(whole, shape.input[axis], cut)
}

/// In the gradient of the input, with stride s, pixels with the same remainder modulo s meet the same
/// taps, so each remainder has its own lattice and nothing is multiplied by inserted zeros.
fn backward(shape: &ConvShape, axis: usize, cut: bool) -> Vec<TapRun> {
    let window = &shape.conv.window;
    let stride = window.stride[axis];
    let [before, _] = window.padding[axis];
    let dilation = window.dilation[axis];
    let mut tap_runs = Vec::new();
    for phase in 0..stride.min(shape.input[axis]) {
        let displaced = |k: usize| (phase + before) as isize - (k * dilation) as isize;
        let taps = (0..window.kernel[axis])
            .rev() // displacements ascend
            .filter(|&k| displaced(k).rem_euclid(stride as isize) == 0)
            .map(|k| (k, displaced(k).div_euclid(stride as isize)))
            .collect();
        let points = 0..(shape.input[axis] - phase).div_ceil(stride);
        let whole = TapRun { points, step: stride, offset: phase, source_step: 1, taps };
        tap_runs.extend(split(whole, shape.output[axis], cut));
    }
    tap_runs
}

/// Drops taps that never meet a source of `size` pixels. If `cut`, points with different taps become different runs.
fn split(whole: TapRun, size: usize, cut: bool) -> Vec<TapRun> {
    let meets = |point: usize, displacement: isize| {
        let pixel = (point * whole.source_step) as isize + displacement;
        (0..size as isize).contains(&pixel)
    };
    if !cut {
        let mut taps = whole.taps.clone();
        taps.retain(|&(_, d)| whole.points.clone().any(|point| meets(point, d)));
        return vec![TapRun { taps, ..whole }];
    }
    let mut tap_runs: Vec<TapRun> = Vec::new();
    for point in whole.points.clone() {
        let mut taps = whole.taps.clone();
        taps.retain(|&(_, d)| meets(point, d));
        match tap_runs.last_mut() {
            Some(last) if last.taps == taps => last.points.end = point + 1,
            _ => tap_runs.push(TapRun { points: point..point + 1, taps, ..whole.clone() }),
        }
    }
    tap_runs
}

/// Output points along an axis for which a tap displaced by `displacement` meets the feature map.
pub(crate) fn met(shape: &ConvShape, axis: usize, displacement: isize) -> Range<usize> {
    let pixel = |point: usize| (point * shape.conv.window.stride[axis]) as isize + displacement;
    let inside = |point: &usize| (0..shape.input[axis] as isize).contains(&pixel(*point));
    let start = (0..shape.output[axis]).find(inside).unwrap_or(0);
    let len = (start..shape.output[axis]).take_while(|point| inside(point)).count();
    start..start + len
}

/// A tap of a part: its position in the packed order, and its displacement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlacedTap {
    /// Position in the packed order.
    pub position: usize,
    /// Vertical displacement.
    pub dy: isize,
    /// Horizontal displacement.
    pub dx: isize,
}

/// The runs that gather columns `columns` of packed rows, counted from the first of `taps`. The taps have consecutive
/// positions and `channels` columns each. Adjacent taps in a row of the source become one run if `whole` pixels are read.
pub(crate) fn runs(taps: &[PlacedTap], channels: usize, whole: bool, columns: Range<usize>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut previous: Option<PlacedTap> = None;
    for (index, &tap) in taps.iter().enumerate() {
        let start = columns.start.max(index * channels);
        let end = columns.end.min((index + 1) * channels);
        if start >= end {
            continue;
        }
        let joins = previous.is_some_and(|p| p.dy == tap.dy && p.dx + 1 == tap.dx) && whole;
        match runs.last_mut() {
            Some(run) if joins => {
                run.pixels += 1;
                run.len += end - start;
            }
            _ => runs.push(Run { dy: tap.dy, dx: tap.dx, pixels: 1, skip: start - index * channels, len: end - start }),
        }
        previous = Some(tap);
    }
    runs
}

#[cfg(test)]
mod tests {
    use enmasse_graph::Window;

    use super::*;

    fn shape(input: usize, output: usize, kernel: usize, stride: usize, padding: usize) -> ConvShape {
        let window = Window { kernel: [kernel; 2], stride: [stride; 2], padding: [[padding; 2]; 2], dilation: [1; 2] };
        ConvShape {
            batch: 1,
            input: [input, input, 16],
            output: [output, output, 16],
            conv: Conv2d { window, groups: 1 },
            normalized: false,
        }
    }

    #[test]
    fn borders_have_fewer_taps() {
        let taps = |tap_runs: Vec<TapRun>| -> Vec<(Range<usize>, Vec<usize>)> {
            tap_runs.into_iter().map(|s| (s.points, s.taps.into_iter().map(|t| t.0).collect())).collect()
        };
        let same = shape(4, 4, 3, 1, 1);
        assert_eq!(taps(forward(&same, 0, false)), [(0..4, vec![0, 1, 2])]);
        assert_eq!(taps(forward(&same, 0, true)), [(0..1, vec![1, 2]), (1..3, vec![0, 1, 2]), (3..4, vec![0, 1])]);
        // A feature map of one pixel meets only the centre, cut or not.
        assert_eq!(taps(forward(&shape(1, 1, 3, 1, 1), 0, false)), [(0..1, vec![1])]);
        // Stride 2: even pixels meet the centre tap, odd ones the outer two.
        assert_eq!(taps(backward(&shape(8, 4, 3, 2, 1), 0, false)), [(0..4, vec![1]), (0..4, vec![2, 0])]);
        // With a 1x1 window of stride 2, odd pixels meet no tap.
        assert_eq!(taps(backward(&shape(8, 4, 1, 2, 0), 0, false)), [(0..4, vec![0]), (0..4, vec![])]);
    }

    #[test]
    fn neighbouring_taps_are_one_run() {
        let tap = |position, dy, dx| PlacedTap { position, dy, dx };
        let taps = [tap(0, 0, -1), tap(1, 0, 0), tap(2, 0, 1), tap(3, 1, -1)];
        let run = |dy, dx, pixels, skip, len| Run { dy, dx, pixels, skip, len };
        assert_eq!(runs(&taps, 5, true, 0..20), [run(0, -1, 3, 0, 15), run(1, -1, 1, 0, 5)]);
        assert_eq!(runs(&taps, 5, true, 3..12), [run(0, -1, 3, 3, 9)]);
        assert_eq!(runs(&taps, 5, false, 8..17), [run(0, 0, 1, 3, 2), run(0, 1, 1, 0, 5), run(1, -1, 1, 0, 2)]);
    }
}
