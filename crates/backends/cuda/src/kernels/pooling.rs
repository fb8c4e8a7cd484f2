//! Max, average and adaptive average pooling, and their gradients.
//!
//! `shapes` are those of the pooling's input and of its output, `[samples, height, width, channels]`, also of a gradient.

use enmasse_graph::Window;
use enmasse_tensor::DType;

use crate::kernels::rows::Rows;
use crate::kernels::{BLOCKS, THREADS, blocks, kernel, named};
use crate::work::Argument::{F32, Read, U32, Write};
use crate::work::{Argument, Kernel, Span};

/// The largest element of each window, and its tap. A position has 8 bits, so a window has at most 255 taps.
pub(crate) fn max(dtype: DType, shapes: [[usize; 4]; 2], window: &Window, x: Span, y: Span, position: Span) -> Kernel {
    by_pixel("max_pool", dtype, shapes[1], &[Read(x), Write(y), Write(position)], &places(shapes, window))
}

/// The sum of dy over the windows that each element won.
pub(crate) fn max_backward(
    dtype: DType,
    shapes: [[usize; 4]; 2],
    window: &Window,
    dy: Span,
    position: Span,
    dx: Span,
) -> Kernel {
    by_pixel("max_pool_backward", dtype, shapes[0], &[Read(dy), Read(position), Write(dx)], &places(shapes, window))
}

/// The mean of each window. The divisor includes padding.
pub(crate) fn average(dtype: DType, shapes: [[usize; 4]; 2], window: &Window, x: Span, y: Span) -> Kernel {
    by_pixel("avg_pool", dtype, shapes[1], &[Read(x), Write(y)], &shares(shapes, window))
}

/// The sum of dy, divided by the number of taps, over the windows that have each element.
pub(crate) fn average_backward(dtype: DType, shapes: [[usize; 4]; 2], window: &Window, dy: Span, dx: Span) -> Kernel {
    by_pixel("avg_pool_backward", dtype, shapes[0], &[Read(dy), Write(dx)], &shares(shapes, window))
}

/// The mean of the region of each output: inputs `floor(i * size / n) .. ceil((i + 1) * size / n)` along each axis.
pub(crate) fn adaptive_average(dtype: DType, shapes: [[usize; 4]; 2], x: Span, y: Span) -> Kernel {
    let shapes @ [input, output] = if shapes[1][1..3] == [1, 1] { in_one_row(shapes) } else { shapes };
    let results = output[..3].iter().product::<usize>() * packets(dtype, output[3]);
    let lanes = lanes(results, input[2] / output[2]);
    let operands = [Read(x), Write(y)];
    let numbers = [&sizes(shapes)[..], &[U32(lanes as u32)]].concat();
    Kernel { grid: blocks(results * lanes), ..by_pixel("adaptive_avg_pool", dtype, output, &operands, &numbers) }
}

/// The sum of dy, divided by the size of the region, over the regions that have each element.
pub(crate) fn adaptive_average_backward(dtype: DType, shapes: [[usize; 4]; 2], dy: Span, dx: Span) -> Kernel {
    by_pixel("adaptive_avg_pool_backward", dtype, shapes[0], &[Read(dy), Write(dx)], &sizes(shapes))
}

/// A pass over the pixels of a result by `for_pixels` in pooling.cu.
fn by_pixel(name: &str, dtype: DType, result: [usize; 4], operands: &[Argument], geometry: &[Argument]) -> Kernel {
    let [samples, height, width, channels] = result;
    let rows = samples * height * width;
    let numbers = [rows, channels].map(|number| U32(number as u32));
    kernel(named(name, dtype), Rows { rows, channels, dtype }.pass(), [operands, &numbers, geometry].concat())
}

/// Height and width of input and output.
fn sizes([input, output]: [[usize; 4]; 2]) -> Vec<Argument> {
    [&input[1..3], &output[1..3]].concat().into_iter().map(|size| U32(size as u32)).collect()
}

/// `Window` in pooling.cu, to which the padding after the input is only a part of the output's size.
fn places(shapes: [[usize; 4]; 2], window: &Window) -> Vec<Argument> {
    let Window { kernel, stride, padding, dilation } = *window;
    let before = padding.map(|[before, _]| before);
    let numbers = [kernel, stride, before, dilation].concat().into_iter().map(|number| U32(number as u32));
    sizes(shapes).into_iter().chain(numbers).collect()
}

/// [`places`], then the share of each tap.
fn shares(shapes: [[usize; 4]; 2], window: &Window) -> Vec<Argument> {
    let taps = window.kernel[0] * window.kernel[1];
    [&places(shapes, window)[..], &[F32(1.0 / taps as f32)]].concat()
}

/// The shapes of global pooling with all pixels of a sample in one row, along which more threads can share the work.
fn in_one_row([input, output]: [[usize; 4]; 2]) -> [[usize; 4]; 2] {
    let [samples, height, width, channels] = input;
    [[samples, 1, height * width, channels], output]
}

/// Accesses to a pixel's channels: of 16 bytes, if the channels divide so.
fn packets(dtype: DType, channels: usize) -> usize {
    let wide = 16 / dtype.size();
    if channels.is_multiple_of(wide) { channels / wide } else { channels }
}

/// Pixels of a row for each thread, so that sums over threads have some work behind them.
const MIN_PIXELS: usize = 4;

/// Threads that share a region whose rows have this width: as many as fill half of the largest grid, if there is work for
/// them.
fn lanes(results: usize, width: usize) -> usize {
    let wanted = (BLOCKS / 2 * THREADS as usize).div_ceil(results);
    let most = (width / MIN_PIXELS).clamp(1, THREADS as usize);
    1 << wanted.min(most).ilog2()
}

#[cfg(test)]
#[path = "pooling_tests.rs"]
mod tests;
