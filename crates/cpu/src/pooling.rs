//! Max and average pooling. Gradients are gathered by input pixels, so that every task writes its own rows.

use std::ops::Range;

use enmasse_graph::Window;

use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::region::Region;
use crate::scratch::Context;

/// Sizes of a pooling layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolShape {
    pub batch: usize,
    /// Height, width, channels.
    pub input: [usize; 3],
    /// Height and width.
    pub output: [usize; 2],
}

/// Channels that go through a window together.
const STRIP: usize = 16;

struct MaxRow<'a, E> {
    shape: &'a PoolShape,
    window: &'a Window,
    x: Region<E>,
    y: Region<E>,
    position: Region<u8>,
    /// `image * output height + output row`.
    row: usize,
}

impl<E: Element> Kernel for MaxRow<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.shape.input[2];
        for column in 0..self.shape.output[1] {
            let mut channel = 0;
            // SAFETY: strips stay inside the pixel.
            unsafe {
                while channel + STRIP <= channels {
                    self.strip::<STRIP>(column, channel);
                    channel += STRIP;
                }
                while channel < channels {
                    self.strip::<1>(column, channel);
                    channel += 1;
                }
            }
        }
    }
}

impl<E: Element> MaxRow<'_, E> {
    #[inline(always)]
    unsafe fn strip<const N: usize>(&self, column: usize, channel: usize) {
        let [height, width, channels] = self.shape.input;
        let (image, row) = (self.row / self.shape.output[0], self.row % self.shape.output[0]);
        let mut best = [f32::NEG_INFINITY; N];
        // The first element inside the map stands until something beats it, as when all are minus infinity.
        let mut winner = [u32::MAX; N];
        for ky in 0..self.window.kernel[0] {
            let y = (row * self.window.stride[0] + ky * self.window.dilation[0]).wrapping_sub(self.window.padding[0]);
            for kx in 0..self.window.kernel[1] {
                let x = (column * self.window.stride[1] + kx * self.window.dilation[1])
                    .wrapping_sub(self.window.padding[1]);
                if y >= height || x >= width {
                    continue;
                }
                let position = (ky * self.window.kernel[1] + kx) as u32;
                // SAFETY: the pixel is inside the map.
                let values = unsafe { self.x.slice(((image * height + y) * width + x) * channels + channel, N) };
                for i in 0..N {
                    let value = values[i].get();
                    let wins = value > best[i] || value.is_nan() || winner[i] == u32::MAX;
                    best[i] = if wins { value } else { best[i] };
                    winner[i] = if wins { position } else { winner[i] };
                }
            }
        }
        let at = (self.row * self.shape.output[1] + column) * channels + channel;
        // SAFETY: this task's row of the output.
        let (y, position) = unsafe { (self.y.slice_mut(at, N), self.position.slice_mut(at, N)) };
        for i in 0..N {
            y[i] = E::of(best[i]);
            position[i] = winner[i] as u8;
        }
    }
}

/// The maximum of each window and where in the window it was.
///
/// # Safety
/// Regions are valid, of the shape's sizes; `y` and `position` are written.
pub(crate) unsafe fn max_pool<E: Element>(
    context: &mut Context,
    shape: &PoolShape,
    window: &Window,
    x: Region<E>,
    y: Region<E>,
    position: Region<u8>,
) {
    let isa = context.isa;
    context.pool.run(shape.batch * shape.output[0], |row, _| {
        // SAFETY: the caller's promise; each task writes its own row.
        unsafe { dispatch(isa, MaxRow { shape, window, x, y, position, row }) }
    });
}

struct MaxBackwardRow<'a, E> {
    shape: &'a PoolShape,
    window: &'a Window,
    dy: Region<E>,
    position: Region<u8>,
    dx: Region<E>,
    /// `image * input height + input row`.
    row: usize,
}

impl<E: Element> Kernel for MaxBackwardRow<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.shape.input[2];
        for x in 0..self.shape.input[1] {
            let mut channel = 0;
            // SAFETY: strips stay inside the pixel.
            unsafe {
                while channel + STRIP <= channels {
                    self.strip::<STRIP>(x, channel);
                    channel += STRIP;
                }
                while channel < channels {
                    self.strip::<1>(x, channel);
                    channel += 1;
                }
            }
        }
    }
}

impl<E: Element> MaxBackwardRow<'_, E> {
    #[inline(always)]
    unsafe fn strip<const N: usize>(&self, x: usize, channel: usize) {
        let [height, width, channels] = self.shape.input;
        let (image, y) = (self.row / height, self.row % height);
        let mut sums = [0.0; N];
        for ky in 0..self.window.kernel[0] {
            let Some(out_y) = self.output(0, y, ky) else { continue };
            for kx in 0..self.window.kernel[1] {
                let Some(out_x) = self.output(1, x, kx) else { continue };
                let here = (ky * self.window.kernel[1] + kx) as u8;
                let pixel = (image * self.shape.output[0] + out_y) * self.shape.output[1] + out_x;
                let at = pixel * channels + channel;
                // SAFETY: a pixel of the output.
                let (dy, position) = unsafe { (self.dy.slice(at, N), self.position.slice(at, N)) };
                for i in 0..N {
                    sums[i] += if position[i] == here { dy[i].get() } else { 0.0 };
                }
            }
        }
        // SAFETY: this task's row.
        let dx = unsafe { self.dx.slice_mut((self.row * width + x) * channels + channel, N) };
        dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx = E::of(sum));
    }

    /// The output whose window has `pixel` as its element `k`.
    #[inline(always)]
    fn output(&self, axis: usize, pixel: usize, k: usize) -> Option<usize> {
        let from = (pixel + self.window.padding[axis]).checked_sub(k * self.window.dilation[axis])?;
        let stride = self.window.stride[axis];
        (from % stride == 0 && from / stride < self.shape.output[axis]).then_some(from / stride)
    }
}

/// Sends each gradient to where its maximum was.
///
/// # Safety
/// Regions are valid, of the shape's sizes; `dx` is written.
pub(crate) unsafe fn max_pool_backward<E: Element>(
    context: &mut Context,
    shape: &PoolShape,
    window: &Window,
    dy: Region<E>,
    position: Region<u8>,
    dx: Region<E>,
) {
    let isa = context.isa;
    context.pool.run(shape.batch * shape.input[0], |row, _| {
        // SAFETY: the caller's promise; each task writes its own row.
        unsafe { dispatch(isa, MaxBackwardRow { shape, window, dy, position, dx, row }) }
    });
}

/// An average pooling: which inputs each output averages along an axis, and by what they are divided there.
#[derive(Clone, Debug)]
pub(crate) struct Average {
    shape: PoolShape,
    axes: [Vec<(Range<usize>, usize)>; 2],
}

impl Average {
    /// A window without dilation; padding counts in the divisor.
    pub(crate) fn window(shape: PoolShape, window: &Window) -> Self {
        let axis = |axis: usize| {
            let range = |i: usize| {
                let start = i * window.stride[axis];
                let inside = |at: usize| at.saturating_sub(window.padding[axis]).min(shape.input[axis]);
                (inside(start)..inside(start + window.kernel[axis]), window.kernel[axis])
            };
            (0..shape.output[axis]).map(range).collect()
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
            (0..n).map(range).collect()
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
            unsafe { dispatch(isa, AverageRow { average: self, from: x, to: y, row, backward: false }) }
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
            unsafe { dispatch(isa, AverageRow { average: self, from: dy, to: dx, row, backward: true }) }
        });
    }
}

struct AverageRow<'a, E> {
    average: &'a Average,
    from: Region<E>,
    to: Region<E>,
    /// `image * height + row`, of the output forward and of the input backward.
    row: usize,
    backward: bool,
}

impl<E: Element> Kernel for AverageRow<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let [_, width, channels] = self.average.shape.input;
        let width = if self.backward { width } else { self.average.shape.output[1] };
        for column in 0..width {
            let mut channel = 0;
            // SAFETY: strips stay inside the pixel.
            unsafe {
                while channel + STRIP <= channels {
                    self.strip::<STRIP>(column, channel);
                    channel += STRIP;
                }
                while channel < channels {
                    self.strip::<1>(column, channel);
                    channel += 1;
                }
            }
        }
    }
}

impl<E: Element> AverageRow<'_, E> {
    #[inline(always)]
    unsafe fn strip<const N: usize>(&self, column: usize, channel: usize) {
        let Average { shape, axes: [rows, columns] } = self.average;
        let ([height, width, channels], [out_height, out_width]) = (shape.input, shape.output);
        let mut sums = [0.0; N];
        let mut add = |pixel: usize, factor: f32| {
            // SAFETY: a pixel of the operand.
            let from = unsafe { self.from.slice(pixel * channels + channel, N) };
            sums.iter_mut().zip(from).for_each(|(sum, from)| *sum += from.get() * factor);
        };
        let to_width = if self.backward {
            let (image, y) = (self.row / height, self.row % height);
            for (out_y, (_, divisor_y)) in rows.iter().enumerate().filter(|(_, (in_y, _))| in_y.contains(&y)) {
                let meets = |(_, (in_x, _)): &(usize, &(Range<usize>, usize))| in_x.contains(&column);
                for (out_x, (_, divisor_x)) in columns.iter().enumerate().filter(meets) {
                    add((image * out_height + out_y) * out_width + out_x, 1.0 / (divisor_y * divisor_x) as f32);
                }
            }
            width
        } else {
            let image = self.row / out_height;
            let ((in_y, divisor_y), (in_x, divisor_x)) = (&rows[self.row % out_height], &columns[column]);
            let factor = 1.0 / (divisor_y * divisor_x) as f32;
            for x in in_x.clone() {
                in_y.clone().for_each(|y| add((image * height + y) * width + x, factor));
            }
            out_width
        };
        // SAFETY: this task's row.
        let to = unsafe { self.to.slice_mut((self.row * to_width + column) * channels + channel, N) };
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = E::of(sum));
    }
}

#[cfg(test)]
#[path = "pooling_tests.rs"]
mod tests;
