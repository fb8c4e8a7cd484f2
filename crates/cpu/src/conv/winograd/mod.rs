//! Winograd's convolution F(4x4, 3x3): a 3x3 convolution of stride 1 by 36 products where direct sums take 144.
//!
//! A tile of 4x4 results is the transform of 36 products; each of these is one value of a transformed 6x6 patch of the
//! source times one of the transformed filter, summed over channels. So the convolution is 36 matrix products with
//! rows that are tiles, between two transforms that work on vectors of channels. The gradient of the input is the same
//! with the filter turned around; the gradient of the filter sums products of transformed patches over tiles and
//! transforms the sums back.
//!
//! Patches, products and results go block by block, so that they stay in the second-level cache of a thread; with many
//! channels all threads work on one block, and transformed weights are made where they are used.
//!
//! Rounding is two to four times that of direct sums. The largest error against f64, relative to the largest value, of one
//! image of noise (AVX-512; `errors_of_layers` prints it for every level), forward, gradient of the input, of the weights:
//!
//! | channels, size | Winograd | direct sums |
//! |---|---|---|
//! | 64, 56x56 | 1.6e-6, 1.5e-6, 7.4e-7 | 1.1e-6, 9.8e-7, 3.0e-7 |
//! | 128, 28x28 | 2.1e-6, 1.9e-6, 6.1e-7 | 7.0e-7, 7.4e-7, 4.0e-7 |
//! | 256, 14x14 | 1.7e-6, 2.0e-6, 1.0e-6 | 7.3e-7, 6.0e-7, 5.1e-7 |
//! | 512, 7x7 | 1.8e-6, 1.6e-6, 7.1e-7 | 4.6e-7, 5.1e-7, 2.5e-7 |
//!
//! Of maps in bf16 the transformed patches and filters are rounded to bf16 too, and multiplied as pairs. Transforms magnify that
//! rounding: the root mean square of the error, relative to that of the values, is 1.2e-2 in each direction, where direct sums
//! of bf16 products have 2.2e-3, nearly all of it from storing the result.

mod forward;
mod gradient;
mod tiles;
mod tiling;
mod transform;
mod weights;

use std::ops::Range;

use super::{ConvShape, geometry};
use crate::element::Element;
use tiling::Tiling;

pub(crate) use forward::Winograd;
pub(crate) use gradient::WinogradGradient;

/// Products of a tile and channel.
const PLANES: usize = 36;

/// Values that fill an odd number of cache lines, so that pieces of this distance spread over the sets of the caches.
fn odd_lines(values: usize) -> usize {
    (values.div_ceil(16) | 1) * 16
}

/// Values from row to row of a matrix: whole cache lines, and no multiple of 512 bytes, at which the rows of a register
/// tile would meet in few sets of the first-level cache.
fn row_values(columns: usize) -> usize {
    let values = columns.next_multiple_of(16);
    if values.is_multiple_of(128) { values + 16 } else { values }
}

/// Cuts `0..len` into pieces of nearly one size, of at most `most`.
fn even_pieces(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let count = len.div_ceil(most.max(1));
    (0..count).map(move |i| len * i / count..len * (i + 1) / count)
}

/// Whether the algorithm can compute the convolution.
pub(crate) fn applies(shape: &ConvShape) -> bool {
    let window = &shape.conv.window;
    (window.kernel, window.stride, window.dilation, shape.conv.groups) == ([3; 2], [1; 2], [1; 2], 1)
}

/// Channels below which direct sums are as fast: vectors of a tile's channels would be mostly empty.
const CHANNELS: usize = 16;
/// Tiles below which the transforms of weights outweigh what products save: forward and data, gradient of weights.
const TILES: [usize; 2] = [4, 32];

/// Whether the algorithm is faster than direct sums, forward and for the gradient of the input, by what was measured on
/// AVX-512 (Zen 5), with AVX2 and portable instructions there: 2.5 to 3.5 times as fast on maps of 7x7 and more, or of
/// 4x4; 1.2 to 1.4 times on 5x5 and 3x3, of maps in f32; half as fast on 2x2, where direct sums skip most taps. Beside products
/// of pairs transforms weigh twice as much: in bf16 5x5 and 3x3 are as fast by direct sums, which round less.
pub(crate) fn pays<E: Element>(shape: &ConvShape) -> bool {
    let tilings = [shape.output, shape.input].map(|size| Tiling::new(shape.batch, size));
    let tiles = tilings.iter().map(Tiling::count).min().unwrap_or(0);
    let direct = match shape.cut_at_borders() {
        true => (0..2).map(|axis| met_taps(shape, axis)).product(),
        false => 9 * shape.output[0] * shape.output[1],
    };
    let channels = shape.input[2].min(shape.output[2]);
    // A good part must be saved: at least a third of the multiplications, in bf16 a half.
    applies(shape)
        && channels >= CHANNELS
        && tiles >= TILES[0]
        && 2 * shape.batch * direct >= (2 + E::PER_WORD) * tilings[0].products()
}

/// The same for the gradient of the weights.
pub(crate) fn gradient_pays<E: Element>(shape: &ConvShape) -> bool {
    pays::<E>(shape) && Tiling::new(shape.batch, shape.output).count() >= TILES[1]
}

/// How often a tap meets the map along an axis, over all results.
fn met_taps(shape: &ConvShape, axis: usize) -> usize {
    let padding = shape.conv.window.padding[axis] as isize;
    (0..3).map(|tap| geometry::met(shape, axis, tap - padding).len()).sum()
}
