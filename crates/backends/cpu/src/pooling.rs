//! Max and average pooling. Gradients are gathered by input pixels, so that every task writes its own rows.

use std::ops::Range;

use enmasse_graph::Window;

use crate::element::Element;
use crate::inlined::{each_vector, inlined};
use crate::isa::{Kernel, Scalar, Simd, dispatch};
use crate::region::Region;
use crate::workspace::Context;

/// Sizes of a pooling layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolShape {
    pub batch: usize,
    /// Height, width, channels.
    pub input: [usize; 3],
    /// Height and width.
    pub output: [usize; 2],
}

/// Vectors of channels that share one walk through a window, or one search for outputs.
const VECTORS: usize = 4;

/// A max pooling: for each output, the elements of its window that lie in the feature map, and for each input, the outputs
/// whose windows contain it, axis by axis. Each element is listed with its place in the window.
#[derive(Clone, Debug)]
pub(crate) struct Maximum {
    shape: PoolShape,
    /// Elements in a row of the window.
    kernel_width: usize,
    /// For each output, the inputs of its window.
    inputs: [Vec<Vec<(usize, usize)>>; 2],
    /// For each input, the outputs whose windows contain it.
    outputs: [Vec<Vec<(usize, usize)>>; 2],
}

impl Maximum {
    /// The window has at most 256 elements, whose positions fit a byte.
    pub(crate) fn new(shape: PoolShape, window: &Window) -> Self {
        let axis = |axis: usize| {
            let mut inputs = vec![Vec::new(); shape.output[axis]];
            let mut outputs = vec![Vec::new(); shape.input[axis]];
            for (output, met) in inputs.iter_mut().enumerate() {
                for k in 0..window.kernel[axis] {
                    let at = output * window.stride[axis] + k * window.dilation[axis];
                    if let Some(input) = at.checked_sub(window.padding[axis][0]).filter(|&at| at < shape.input[axis]) {
                        met.push((k, input));
                        outputs[input].push((k, output));
                    }
                }
            }
            // In window order, whatever the order of the outputs was.
            outputs.iter_mut().for_each(|met| met.sort_unstable());
            (inputs, outputs)
        };
        let (input_rows, output_rows) = axis(0);
        let (input_columns, output_columns) = axis(1);
        Maximum {
            shape,
            kernel_width: window.kernel[1],
            inputs: [input_rows, input_columns],
            outputs: [output_rows, output_columns],
        }
    }

    /// The maximum of each window, and its position in the window.
    ///
    /// # Safety
    /// Regions are valid, of the shape's sizes; `y` and `position` are written.
    pub(crate) unsafe fn forward<E: Element>(
        &self,
        context: &mut Context,
        x: Region<E>,
        y: Region<E>,
        position: Region<u8>,
    ) {
        let isa = context.isa;
        context.pool.run(self.shape.batch * self.shape.output[0], |row, _| {
            // SAFETY: the caller's promise; each task writes its own row.
            unsafe { dispatch(isa, MaximumRow { maximum: self, x, y, position, row }) }
        });
    }

    /// Sends each gradient to the position of its maximum.
    ///
    /// # Safety
    /// Regions are valid, of the shape's sizes; `dx` is written.
    pub(crate) unsafe fn backward<E: Element>(
        &self,
        context: &mut Context,
        dy: Region<E>,
        position: Region<u8>,
        dx: Region<E>,
    ) {
        let isa = context.isa;
        context.pool.run(self.shape.batch * self.shape.input[0], |row, _| {
            // SAFETY: the caller's promise; each task writes its own row.
            unsafe { dispatch(isa, MaximumBackwardRow { maximum: self, dy, position, dx, row }) }
        });
    }
}

struct MaximumRow<'a, E> {
    maximum: &'a Maximum,
    x: Region<E>,
    y: Region<E>,
    position: Region<u8>,
    /// `image * output height + output row`.
    row: usize,
}

impl<E: Element> Kernel for MaximumRow<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.maximum.shape.input[2];
        for column in 0..self.maximum.shape.output[1] {
            let mut channel = 0;
            // SAFETY: vectors stay inside the pixel.
            unsafe {
                while channel + VECTORS * S::LANES <= channels {
                    self.vectors::<S, VECTORS>(column, channel);
                    channel += VECTORS * S::LANES;
                }
                while channel + S::LANES <= channels {
                    self.vectors::<S, 1>(column, channel);
                    channel += S::LANES;
                }
                while channel < channels {
                    self.vectors::<Scalar, 1>(column, channel);
                    channel += 1;
                }
            }
        }
    }
}

impl<E: Element> MaximumRow<'_, E> {
    #[inline(always)]
    unsafe fn vectors<S: Simd, const N: usize>(&self, column: usize, channel: usize) {
        let Maximum { shape, kernel_width, inputs: [rows, columns], .. } = self.maximum;
        let [height, width, channels] = shape.input;
        let [out_height, out_width] = shape.output;
        let image = self.row / out_height;
        // SAFETY: pixels inside the feature map, and this task's row of the output.
        unsafe {
            let mut best = [[S::splat(f32::NEG_INFINITY), S::splat(f32::from(u8::MAX))]; N];
            let mut is_first = true;
            for &(ky, y) in &rows[self.row % out_height] {
                for &(kx, x) in &columns[column] {
                    let position = S::splat((ky * kernel_width + kx) as f32);
                    let from = self.x.at(((image * height + y) * width + x) * channels + channel, N * S::LANES);
                    for (i, best) in best.iter_mut().enumerate() {
                        let found = [E::load::<S>(from.add(i * S::LANES)), position];
                        // The first element inside the feature map is always taken, so that there is a maximum even if all are
                        // minus infinity.
                        *best = if is_first { found } else { S::greater(*best, found) };
                    }
                    is_first = false;
                }
            }
            let at = (self.row * out_width + column) * channels + channel;
            let y = self.y.at(at, N * S::LANES);
            let position = self.position.at(at, N * S::LANES);
            for (i, [value, winner]) in best.into_iter().enumerate() {
                E::store::<S>(y.add(i * S::LANES), value);
                S::store_bytes(position.add(i * S::LANES), winner);
            }
        }
    }
}

struct MaximumBackwardRow<'a, E> {
    maximum: &'a Maximum,
    dy: Region<E>,
    position: Region<u8>,
    dx: Region<E>,
    /// `image * input height + input row`.
    row: usize,
}

impl<E: Element> Kernel for MaximumBackwardRow<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.maximum.shape.input[2];
        for x in 0..self.maximum.shape.input[1] {
            let mut channel = 0;
            // SAFETY: vectors stay inside the pixel.
            unsafe {
                while channel + VECTORS * S::LANES <= channels {
                    self.vectors::<S, VECTORS>(x, channel);
                    channel += VECTORS * S::LANES;
                }
                while channel + S::LANES <= channels {
                    self.vectors::<S, 1>(x, channel);
                    channel += S::LANES;
                }
                while channel < channels {
                    self.vectors::<Scalar, 1>(x, channel);
                    channel += 1;
                }
            }
        }
    }
}

impl<E: Element> MaximumBackwardRow<'_, E> {
    #[inline(always)]
    unsafe fn vectors<S: Simd, const N: usize>(&self, x: usize, channel: usize) {
        let Maximum { shape, kernel_width, outputs: [rows, columns], .. } = self.maximum;
        let [height, width, channels] = shape.input;
        let [out_height, out_width] = shape.output;
        let image = self.row / height;
        let y = self.row % height;
        let values = N * S::LANES;
        // SAFETY: pixels of the output, and this task's row.
        unsafe {
            let mut sums = [S::splat(0.0); N];
            for &(ky, out_y) in &rows[y] {
                for &(kx, out_x) in &columns[x] {
                    let here = (ky * kernel_width + kx) as u8;
                    let at = ((image * out_height + out_y) * out_width + out_x) * channels + channel;
                    let (dy, position) = (self.dy.at(at, values), self.position.at(at, values));
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let dy = E::load::<S>(dy.add(i * S::LANES));
                        *sum = S::add(*sum, S::where_byte(dy, position.add(i * S::LANES), here));
                    }
                }
            }
            let dx = self.dx.at((self.row * width + x) * channels + channel, values);
            for (i, sum) in sums.into_iter().enumerate() {
                E::store::<S>(dx.add(i * S::LANES), sum);
            }
        }
    }
}

/// An average pooling.
#[derive(Clone, Debug)]
pub(crate) struct Average {
    shape: PoolShape,
    axes: [Axis; 2],
}

/// The rows, or the columns, of an average pooling.
#[derive(Clone, Debug)]
struct Axis {
    /// For each output, the inputs that it averages, and the divisor.
    outputs: Vec<(Range<usize>, usize)>,
    /// For each input, the outputs that average it.
    inputs: Vec<Range<usize>>,
}

impl Axis {
    /// Both ends of the outputs' ranges grow with the outputs.
    fn new(size: usize, outputs: Vec<(Range<usize>, usize)>) -> Self {
        let inputs = (0..size).map(|input| {
            let meet = |(range, _): &(Range<usize>, usize)| range.contains(&input);
            let first = outputs.iter().position(meet).unwrap_or(0);
            first..outputs.iter().rposition(meet).map_or(first, |last| last + 1)
        });
        Axis { inputs: inputs.collect(), outputs }
    }
}

impl Average {
    /// A window without dilation; the divisor counts padding.
    pub(crate) fn window(shape: PoolShape, window: &Window) -> Self {
        let axis = |axis: usize| {
            let range = |i: usize| {
                let start = i * window.stride[axis];
                let inside = |at: usize| at.saturating_sub(window.padding[axis][0]).min(shape.input[axis]);
                (inside(start)..inside(start + window.kernel[axis]), window.kernel[axis])
            };
            Axis::new(shape.input[axis], (0..shape.output[axis]).map(range).collect())
        };
        Average { shape, axes: [axis(0), axis(1)] }
    }

    /// Output i of n averages inputs `floor(i * size / n) .. ceil((i + 1) * size / n)`.
    pub(crate) fn adaptive(shape: PoolShape) -> Self {
        let axis = |axis: usize| {
            let (size, n) = (shape.input[axis], shape.output[axis]);
            let range = |i: usize| {
                let range = i * size / n..((i + 1) * size).div_ceil(n);
                (range.clone(), range.len())
            };
            Axis::new(size, (0..n).map(range).collect())
        };
        Average { shape, axes: [axis(0), axis(1)] }
    }

    /// Averages `x` into `y`.
    ///
    /// # Safety
    /// Regions are valid, of the shape's sizes; `y` is written.
    pub(crate) unsafe fn forward<E: Element>(&self, context: &mut Context, x: Region<E>, y: Region<E>) {
        let isa = context.isa;
        context.pool.run(self.shape.batch * self.shape.output[0], |row, _| {
            // SAFETY: the caller's promise; each task writes its own row.
            unsafe { dispatch(isa, AverageRow::<E, false> { average: self, from: x, to: y, row }) }
        });
    }

    /// Spreads `dy` over `dx`.
    ///
    /// # Safety
    /// Regions are valid, of the shape's sizes; `dx` is written.
    pub(crate) unsafe fn backward<E: Element>(&self, context: &mut Context, dy: Region<E>, dx: Region<E>) {
        let isa = context.isa;
        context.pool.run(self.shape.batch * self.shape.input[0], |row, _| {
            // SAFETY: the caller's promise; each task writes its own row.
            unsafe { dispatch(isa, AverageRow::<E, true> { average: self, from: dy, to: dx, row }) }
        });
    }
}

struct AverageRow<'a, E, const BACKWARD: bool> {
    average: &'a Average,
    from: Region<E>,
    to: Region<E>,
    /// `image * height + row`, with the output's height forward and the input's backward.
    row: usize,
}

impl<E: Element, const BACKWARD: bool> Kernel for AverageRow<'_, E, BACKWARD> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let [_, width, channels] = self.average.shape.input;
        for column in 0..if BACKWARD { width } else { self.average.shape.output[1] } {
            let mut channel = 0;
            // SAFETY: vectors stay inside the pixel.
            unsafe {
                while channel + VECTORS * S::LANES <= channels {
                    self.vectors::<S, VECTORS>(column, channel);
                    channel += VECTORS * S::LANES;
                }
                each_vector!(S, channel in channel..channels => self, one(column, channel))
            }
        }
    }
}

impl<E: Element, const BACKWARD: bool> AverageRow<'_, E, BACKWARD> {
    inlined! {
        unsafe fn one<S: Simd>(&self, column: usize, channel: usize) {
            self.vectors::<S, 1>(column, channel)
        }
    }

    /// Adds vectors of a pixel of the operand, times a factor.
    #[inline(always)]
    unsafe fn add<S: Simd, const N: usize>(&self, sums: &mut [S::V; N], pixel: usize, channel: usize, divisor: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let factor = S::splat(1.0 / divisor as f32);
            let from = self.from.at(pixel * self.average.shape.input[2] + channel, N * S::LANES);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::mul_add(E::load::<S>(from.add(i * S::LANES)), factor, *sum);
            }
        }
    }

    #[inline(always)]
    unsafe fn vectors<S: Simd, const N: usize>(&self, column: usize, channel: usize) {
        let Average { shape, axes: [rows, columns] } = self.average;
        let [height, width, channels] = shape.input;
        let [out_height, out_width] = shape.output;
        // SAFETY: pixels of the operand, and this task's row.
        unsafe {
            let mut sums = [S::splat(0.0); N];
            let to_width = if BACKWARD {
                let image = self.row / height;
                let y = self.row % height;
                for out_y in rows.inputs[y].clone() {
                    for out_x in columns.inputs[column].clone() {
                        let divisor = rows.outputs[out_y].1 * columns.outputs[out_x].1;
                        let pixel = (image * out_height + out_y) * out_width + out_x;
                        self.add::<S, N>(&mut sums, pixel, channel, divisor);
                    }
                }
                width
            } else {
                let image = self.row / out_height;
                let (in_y, divisor_y) = &rows.outputs[self.row % out_height];
                let (in_x, divisor_x) = &columns.outputs[column];
                for y in in_y.clone() {
                    for x in in_x.clone() {
                        self.add::<S, N>(&mut sums, (image * height + y) * width + x, channel, divisor_y * divisor_x);
                    }
                }
                out_width
            };
            let to = self.to.at((self.row * to_width + column) * channels + channel, N * S::LANES);
            for (i, sum) in sums.into_iter().enumerate() {
                E::store::<S>(to.add(i * S::LANES), sum);
            }
        }
    }
}

#[cfg(test)]
#[path = "pooling_tests.rs"]
mod tests;
