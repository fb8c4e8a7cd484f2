//! Convolution of groups of few channels, as loops over pixels. Depthwise convolution is the case of one channel per group.
//!
//! A vector of channels holds whole groups. An input of a group meets all outputs of the group, so the vector of inputs
//! is used once per channel of a group, each time with another input in every lane of its group. The forward direction
//! and the gradient of the input are one loop nest ([`Grouped`]): rows of the result by runs of pixels that meet
//! the same taps. The gradient of the weights ([`GroupedGradient`]) sums over pixels: each block of rows has its own
//! sums in f32, which are added in block order in f64.

use std::ops::Range;

use super::gather::Start;
use super::geometry::{self, ConvShape, TapRun, met};
use crate::element::Element;
use crate::gemm::panel_width;
use crate::inlined::each_vector;
use crate::isa::{Isa, Kernel, MAX_LANES, Simd, dispatch};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// Number of neighbouring results that are computed together.
const TILE: usize = 8;

/// Whether vectors of this level hold whole groups of the layer, each with as many outputs as inputs.
pub(crate) fn applies(shape: &ConvShape, isa: Isa) -> bool {
    let (each, lanes) = (shape.input[2] / shape.conv.groups, panel_width(isa) / 2);
    shape.conv.groups > 1
        && shape.input[2] == shape.output[2]
        && (each == 1 || (lanes.is_multiple_of(each) && shape.input[2].is_multiple_of(lanes)))
}

/// For each input of a group: the lane of a vector that each lane takes its input from.
fn lanes(each: usize) -> Vec<[i32; MAX_LANES]> {
    (0..each).map(|input| std::array::from_fn(|lane| (lane / each * each + input) as i32)).collect()
}

/// A row of the result: the taps that it meets, each with a row of the source.
struct Row {
    taps: Vec<(usize, usize)>,
}

/// A prepared convolution, forward or to the gradient of its input.
pub(crate) struct Grouped {
    batch: usize,
    /// Height and width.
    source: [usize; 2],
    result: [usize; 2],
    channels: usize,
    /// Channels of a group; for `lanes` see [`lanes`].
    each: usize,
    lanes: Vec<[i32; MAX_LANES]>,
    kernel: [usize; 2],
    /// Whether each group's inputs and outputs exchange their places in the weights.
    backward: bool,
    isa: Isa,
    rows: Vec<Row>,
    columns: Vec<TapRun>,
}

impl Grouped {
    /// `(x, w) -> y`, or `(dy, w) -> dx`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa, backward: bool) -> Self {
        let [source, result] = shape.source_and_result(backward);
        let [row_runs, columns] = [0, 1].map(|axis| geometry::tap_runs(shape, axis, true, backward));
        let mut rows: Vec<Row> = (0..result[0]).map(|_| Row { taps: Vec::new() }).collect();
        for tap_run in row_runs {
            for point in tap_run.points.clone() {
                let row = |&(tap, d): &(usize, isize)| (tap, ((point * tap_run.source_step) as isize + d) as usize);
                rows[point * tap_run.step + tap_run.offset].taps = tap_run.taps.iter().map(row).collect();
            }
        }
        Grouped {
            batch: shape.batch,
            source: [source[0], source[1]],
            result: [result[0], result[1]],
            channels: shape.input[2],
            each: shape.input[2] / shape.conv.groups,
            lanes: lanes(shape.input[2] / shape.conv.groups),
            kernel: shape.conv.window.kernel,
            backward,
            isa,
            rows,
            columns,
        }
    }

    /// Workspace for [`Grouped::run`].
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { shared: if self.is_turned() { self.weights() } else { 0 }, private: 0 }
    }

    /// Number of weights of all taps.
    fn weights(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.each * self.channels
    }

    fn is_turned(&self) -> bool {
        self.backward && self.each > 1
    }

    /// Writes the weights with the inputs and outputs of each group exchanged.
    ///
    /// # Safety
    /// The regions are valid, and no other code uses `turned`.
    unsafe fn turn(&self, context: &mut Context, weights: Region<f32>, turned: Region<f32>) {
        let (each, channels) = (self.each, self.channels);
        context.pool.run(self.weights() / channels, |row, _| {
            let (tap, output) = (row / each, row % each);
            for channel in 0..channels {
                let (group, input) = (channel / each, channel % each);
                let from = (tap * each + input) * channels + group * each + output;
                // SAFETY: this task's row of the turned weights, and a value of the weights.
                unsafe { *turned.at(row * channels + channel, 1) = *weights.at(from, 1) };
            }
        });
    }

    /// Computes the convolution.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the convolution was prepared for, and not written by other code;
    /// `result` overlaps no operand except the base.
    pub(crate) unsafe fn run<E: Element>(
        &self,
        context: &mut Context,
        source: Region<E>,
        weights: Region<f32>,
        result: Region<E>,
        start: Start<E>,
    ) {
        let weights = match self.is_turned() {
            true => {
                let turned = context.shared.part(0, self.weights());
                // SAFETY: the weights are valid, and the workspace is this instruction's.
                unsafe { self.turn(context, weights, turned) };
                turned
            }
            false => weights,
        };
        context.pool.run(self.batch * self.result[0], |row, _| {
            let task = RowTask { conv: self, source, weights, result, start, row };
            // SAFETY: the caller's promise; each task writes its own row of the result.
            unsafe { dispatch(self.isa, task) }
        });
    }
}

struct RowTask<'a, E> {
    conv: &'a Grouped,
    source: Region<E>,
    weights: Region<f32>,
    result: Region<E>,
    start: Start<E>,
    /// `image * height + row`, of the result.
    row: usize,
}

impl<E: Element> Kernel for RowTask<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise, for every channel once.
        unsafe { each_vector!(S, channel in 0..self.conv.channels => self, channels(channel)) }
    }
}

impl<E: Element> RowTask<'_, E> {
    #[inline(always)]
    unsafe fn channels<S: Simd>(&self, channel: usize) {
        for tap_run in &self.conv.columns {
            let mut point = tap_run.points.start;
            // SAFETY: points of the run.
            unsafe {
                while point + TILE <= tap_run.points.end {
                    self.tile::<S, TILE>(tap_run, point, channel);
                    point += TILE;
                }
                while point < tap_run.points.end {
                    self.tile::<S, 1>(tap_run, point, channel);
                    point += 1;
                }
            }
        }
    }

    /// Computes `N` points of a run, starting at `point`. A result is one chain over the taps, for any `N`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const N: usize>(&self, tap_run: &TapRun, point: usize, channel: usize) {
        let Grouped { source: [source_height, source_width], result: [height, width], channels, each, .. } = *self.conv;
        let image = self.row / height;
        let target = |i: usize| {
            let column = (point + i) * tap_run.step + tap_run.offset;
            (self.row * width + column) * channels + channel
        };
        let from_step = tap_run.source_step * channels;
        // SAFETY: every tap of the run lies on the source for each of its points; the results belong to this task.
        unsafe {
            let mut sums = [S::splat(0.0); N];
            match self.start {
                Start::Zero => {}
                Start::Bias(bias) => sums = [S::load(bias.at(channel, S::LANES)); N],
                Start::Base(base) => sums = std::array::from_fn(|i| E::load::<S>(base.at(target(i), S::LANES))),
            }
            for &(ky, y) in &self.conv.rows[self.row % height].taps {
                let row = (image * source_height + y) * source_width;
                for &(kx, d) in &tap_run.taps {
                    let weights = (ky * self.conv.kernel[1] + kx) * each * channels + channel;
                    let weight = |input: usize| S::load(self.weights.at(weights + input * channels, S::LANES));
                    let x = ((point * tap_run.source_step) as isize + d) as usize;
                    let from = (row + x) * channels + channel;
                    let x = |i: usize| E::load::<S>(self.source.at(from + i * from_step, S::LANES));
                    if each == 1 {
                        let weight = weight(0);
                        for (i, sum) in sums.iter_mut().enumerate() {
                            *sum = S::mul_add(x(i), weight, *sum);
                        }
                        continue;
                    }
                    let x: [S::V; N] = std::array::from_fn(x);
                    for (input, lanes) in self.conv.lanes.iter().enumerate() {
                        let weight = weight(input);
                        for (sum, x) in sums.iter_mut().zip(x) {
                            *sum = S::mul_add(S::permute(x, lanes.as_ptr()), weight, *sum);
                        }
                    }
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                E::store::<S>(self.result.at(target(i), S::LANES), sum);
            }
        }
    }
}

/// Maximum number of pixels that are summed in f32.
const BLOCK_PIXELS: usize = 1024;
/// Channels per task.
const TASK_CHANNELS: usize = 64;
/// Number of neighbouring taps that share the loaded values of dy.
const TAPS: usize = 3;

/// A prepared gradient of the weights.
pub(crate) struct GroupedGradient {
    shape: ConvShape,
    isa: Isa,
    /// Channels of a group; for `lanes` see [`lanes`].
    each: usize,
    lanes: Vec<[i32; MAX_LANES]>,
    /// Rows of dy, of all images, per block.
    block_rows: usize,
    /// For each kernel row and column, its displacement and the outputs whose tap lies on the feature map.
    taps: [Vec<(isize, Range<usize>)>; 2],
}

impl GroupedGradient {
    /// `(x, dy) -> dw`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa) -> Self {
        let window = &shape.conv.window;
        let taps = [0, 1].map(|axis| {
            let tap = |displacement| (displacement, met(shape, axis, displacement));
            (0..window.kernel[axis]).map(|k| tap(shape.displacement(axis, k))).collect()
        });
        let block_rows = (BLOCK_PIXELS / shape.output[1].max(1)).max(1);
        let each = shape.input[2] / shape.conv.groups;
        GroupedGradient { shape: *shape, isa, each, lanes: lanes(each), block_rows, taps }
    }

    fn rows(&self) -> usize {
        self.shape.batch * self.shape.output[0]
    }

    fn blocks(&self) -> usize {
        self.rows().div_ceil(self.block_rows)
    }

    /// Number of values of the gradient.
    fn len(&self) -> usize {
        self.taps[0].len() * self.taps[1].len() * self.each * self.shape.input[2]
    }

    /// Workspace for [`GroupedGradient::run`].
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { shared: self.blocks() * self.len(), private: 0 }
    }

    /// Computes the gradient.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the gradient was prepared for, and `dw` overlaps no other region.
    pub(crate) unsafe fn run<E: Element>(&self, context: &mut Context, x: Region<E>, dy: Region<E>, dw: Region<f32>) {
        let (partial, len, blocks) = (context.shared, self.len(), self.blocks());
        let pieces = self.shape.input[2].div_ceil(TASK_CHANNELS);
        context.pool.run(blocks * pieces, |task, _| {
            let (block, piece) = (task / pieces, task % pieces);
            let task = BlockTask {
                gradient: self,
                x,
                dy,
                sums: partial.part(block * len, len),
                rows: block * self.block_rows..((block + 1) * self.block_rows).min(self.rows()),
                channels: piece * TASK_CHANNELS..((piece + 1) * TASK_CHANNELS).min(self.shape.input[2]),
            };
            // SAFETY: the caller's promise; tasks have disjoint sums.
            unsafe { dispatch(self.isa, task) }
        });
        context.pool.run(len.div_ceil(BLOCK_PIXELS), |task, _| {
            for i in task * BLOCK_PIXELS..((task + 1) * BLOCK_PIXELS).min(len) {
                // SAFETY: the blocks' sums are complete; each value of the gradient is written once.
                unsafe {
                    let sum: f64 = (0..blocks).map(|block| f64::from(*partial.at(block * len + i, 1))).sum();
                    *dw.at(i, 1) = sum as f32;
                }
            }
        });
    }
}

struct BlockTask<'a, E> {
    gradient: &'a GroupedGradient,
    x: Region<E>,
    dy: Region<E>,
    sums: Region<f32>,
    /// `image * height + row`, of dy.
    rows: Range<usize>,
    channels: Range<usize>,
}

impl<E: Element> Kernel for BlockTask<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise, for every channel once.
        unsafe { each_vector!(S, channel in self.channels.clone() => self, channels(channel)) }
    }
}

impl<E: Element> BlockTask<'_, E> {
    #[inline(always)]
    unsafe fn channels<S: Simd>(&self, channel: usize) {
        let [kernel_height, kernel_width] = self.gradient.shape.conv.window.kernel;
        for ky in 0..kernel_height {
            let mut kx = 0;
            // SAFETY: taps of the kernel.
            unsafe {
                while kx + TAPS <= kernel_width {
                    self.inputs::<S, TAPS>(ky, kx, channel);
                    kx += TAPS;
                }
                while kx < kernel_width {
                    self.inputs::<S, 1>(ky, kx, channel);
                    kx += 1;
                }
            }
        }
    }

    /// Sums `N` neighbouring taps of all inputs of the groups, with enough sums at a time to hide the latency of each.
    #[inline(always)]
    unsafe fn inputs<S: Simd, const N: usize>(&self, ky: usize, kx: usize, channel: usize) {
        // SAFETY: the caller's promise; groups lie within vectors, so their channels are a power of two.
        unsafe {
            match self.gradient.each {
                1 => self.taps::<S, N, 1, 4>(ky, kx, channel, 0),
                2 => self.taps::<S, N, 2, 2>(ky, kx, channel, 0),
                each => (0..each).step_by(4).for_each(|input| self.taps::<S, N, 4, 1>(ky, kx, channel, input)),
            }
        }
    }

    /// Sums `N` neighbouring taps of `K` inputs of each group over all pixels of the block, `PIXELS` at a time.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "indices of a known range are what the compiler unrolls")]
    unsafe fn taps<S: Simd, const N: usize, const K: usize, const PIXELS: usize>(
        &self,
        ky: usize,
        kx: usize,
        channel: usize,
        input: usize,
    ) {
        let shape = &self.gradient.shape;
        let ([height, width, channels], [out_height, out_width, _]) = (shape.input, shape.output);
        let [stride_y, stride_x] = shape.conv.window.stride;
        let (dy, rows) = &self.gradient.taps[0][ky];
        let taps = &self.gradient.taps[1][kx..kx + N];
        let first = taps.iter().map(|(_, met)| met.start).min().unwrap_or(0);
        let end = taps.iter().map(|(_, met)| met.end).max().unwrap_or(0);
        // The pixels at which all taps lie on the feature map; the pixels on either side are processed one by one.
        let low = taps.iter().map(|(_, met)| met.start).max().unwrap_or(0).clamp(first, end);
        let high = taps.iter().map(|(_, met)| met.end).min().unwrap_or(0).clamp(low, end);
        let step = stride_x * channels;
        let lanes = &self.gradient.lanes[input..input + K];
        // SAFETY: a tap is read only at pixels where it lies on the feature map; the sums belong to this task.
        unsafe {
            let pick = |x: S::V, k: usize| match K {
                1 => x,
                _ => S::permute(x, lanes[k].as_ptr()),
            };
            let mut sums = [[[S::splat(0.0); PIXELS]; K]; N];
            for row in self.rows.clone().filter(|row| rows.contains(&(row % out_height))) {
                let (image, y) = (row / out_height, row % out_height);
                let y = ((y * stride_y) as isize + dy) as usize;
                let gradients = row * out_width * channels + channel;
                let pixels = (image * height + y) * width;
                let at = |tap: usize, point: usize| {
                    let x = ((point * stride_x) as isize + taps[tap].0) as usize;
                    (pixels + x) * channels + channel
                };
                for point in (first..low).chain(high..end) {
                    let gradient = E::load::<S>(self.dy.at(gradients + point * channels, S::LANES));
                    for (tap, sums) in sums.iter_mut().enumerate() {
                        if taps[tap].1.contains(&point) {
                            let x = E::load::<S>(self.x.at(at(tap, point), S::LANES));
                            for k in 0..K {
                                sums[k][0] = S::mul_add(pick(x, k), gradient, sums[k][0]);
                            }
                        }
                    }
                }
                let mut point = low;
                while point + PIXELS <= high {
                    let from: [usize; N] = std::array::from_fn(|tap| at(tap, point));
                    for pixel in 0..PIXELS {
                        let gradient = E::load::<S>(self.dy.at(gradients + (point + pixel) * channels, S::LANES));
                        for tap in 0..N {
                            let x = E::load::<S>(self.x.at(from[tap] + pixel * step, S::LANES));
                            for k in 0..K {
                                sums[tap][k][pixel] = S::mul_add(pick(x, k), gradient, sums[tap][k][pixel]);
                            }
                        }
                    }
                    point += PIXELS;
                }
                while point < high {
                    let gradient = E::load::<S>(self.dy.at(gradients + point * channels, S::LANES));
                    for (tap, sums) in sums.iter_mut().enumerate() {
                        let x = E::load::<S>(self.x.at(at(tap, point), S::LANES));
                        for k in 0..K {
                            sums[k][0] = S::mul_add(pick(x, k), gradient, sums[k][0]);
                        }
                    }
                    point += 1;
                }
            }
            for (tap, sums) in sums.into_iter().enumerate() {
                let position = (ky * self.gradient.taps[1].len() + kx + tap) * self.gradient.each + input;
                for (k, mut sums) in sums.into_iter().enumerate() {
                    let mut count = PIXELS;
                    while count > 1 {
                        count /= 2;
                        for i in 0..count {
                            sums[i] = S::add(sums[2 * i], sums[2 * i + 1]);
                        }
                    }
                    S::store(self.sums.at((position + k) * channels + channel, S::LANES), sums[0]);
                }
            }
        }
    }
}
