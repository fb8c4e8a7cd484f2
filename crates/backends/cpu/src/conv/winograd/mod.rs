//! Winograd's convolution F(4x4, 3x3): a 3x3 convolution of stride 1 with 36 products where direct sums take 144.
//!
//! A tile of 4x4 results is the transform of 36 products. Each of these is one value of a transformed 6x6 patch of the
//! source times one value of the transformed filter, summed over channels. So the convolution is 36 matmuls
//! whose rows are tiles, between two transforms that work on vectors of channels. The gradient of the input is the same
//! with the filter rotated by 180 degrees. The gradient of the filter sums products of transformed patches over tiles
//! and transforms the sums back.
//!
//! Patches, products and results are processed block by block, so that they stay in the second-level cache of a thread.
//! With many channels all threads work on one block, and weights are transformed where they are used.
//!
//! Rounding errors are two to four times those of direct sums. The table gives the largest error against f64, relative
//! to the largest value, for one image of noise (AVX-512; `errors_of_layers` prints it for every level): forward,
//! gradient of the input, gradient of the weights.
//!
//! | channels, size | Winograd | direct sums |
//! |---|---|---|
//! | 64, 56x56 | 1.6e-6, 1.5e-6, 7.4e-7 | 1.1e-6, 9.8e-7, 3.0e-7 |
//! | 128, 28x28 | 2.1e-6, 1.9e-6, 6.1e-7 | 7.0e-7, 7.4e-7, 4.0e-7 |
//! | 256, 14x14 | 1.7e-6, 2.0e-6, 1.0e-6 | 7.3e-7, 6.0e-7, 5.1e-7 |
//! | 512, 7x7 | 1.8e-6, 1.6e-6, 7.1e-7 | 4.6e-7, 5.1e-7, 2.5e-7 |
//!
//! With activations in bf16 the transformed patches and filters are rounded to bf16 too, and multiplied as pairs. Transforms
//! magnify that rounding: the root mean square of the error, relative to that of the values, is 1.2e-2 in each
//! direction. Direct sums of bf16 products have 2.2e-3, nearly all of it from storing the result.

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

/// Products per tile and channel.
const PLANES: usize = 36;

/// Rounds up to an odd number of cache lines, so that pieces at this distance spread over the sets of the caches.
fn odd_lines(values: usize) -> usize {
    (values.div_ceil(16) | 1) * 16
}

/// Values from row to row of a matrix: whole cache lines, and not a multiple of 512 bytes, at which the rows of a
/// register tile would fall on few sets of the first-level cache.
fn row_values(columns: usize) -> usize {
    let values = columns.next_multiple_of(16);
    if values.is_multiple_of(128) { values + 16 } else { values }
}

/// Divides `0..len` into pieces of nearly equal size, of at most `most`.
fn even_pieces(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let count = len.div_ceil(most.max(1));
    (0..count).map(move |i| len * i / count..len * (i + 1) / count)
}

/// Whether the algorithm can compute the convolution.
pub(crate) fn applies(shape: &ConvShape) -> bool {
    let window = &shape.conv.window;
    (window.kernel, window.stride, window.dilation, shape.conv.groups) == ([3; 2], [1; 2], [1; 2], 1)
}

/// Minimum number of channels. Below it direct sums are as fast: vectors of a tile's channels would be mostly empty.
const CHANNELS: usize = 16;
/// Minimum number of tiles: forward and gradient of the input, gradient of the weights. Below it the transforms of
/// weights outweigh the savings in products.
const TILES: [usize; 2] = [4, 32];

/// Whether the algorithm is faster than direct sums, forward and for the gradient of the input. The rule follows
/// measurements on AVX-512 (Zen 5), and with AVX2 and portable instructions on the same machine. On feature maps of 7x7 and
/// more, or of 4x4, the algorithm is 2.5 to 3.5 times as fast. On 5x5 and 3x3, with activations in f32, it is 1.2 to 1.4 times
/// as fast. On 2x2, where direct sums skip most taps, it is half as fast. Compared with products of pairs, transforms
/// cost twice as much: in bf16, direct sums are as fast on 5x5 and 3x3, and round less.
pub(crate) fn pays<E: Element>(shape: &ConvShape) -> bool {
    let tilings = [shape.output, shape.input].map(|size| Tiling::new(shape.batch, size));
    let tiles = tilings.iter().map(Tiling::count).min().unwrap_or(0);
    let direct = match shape.cut_at_borders() {
        true => (0..2).map(|axis| met_taps(shape, axis)).product(),
        false => 9 * shape.output[0] * shape.output[1],
    };
    let channels = shape.input[2].min(shape.output[2]);
    // The savings must be large: at least a third of the multiplications, in bf16 a half.
    applies(shape)
        && channels >= CHANNELS
        && tiles >= TILES[0]
        && 2 * shape.batch * direct >= (2 + E::PER_WORD) * tilings[0].matmuls()
}

/// The same for the gradient of the weights.
pub(crate) fn gradient_pays<E: Element>(shape: &ConvShape) -> bool {
    pays::<E>(shape) && Tiling::new(shape.batch, shape.output).count() >= TILES[1]
}

/// Number of products for one channel of the source and one of a result of this size.
pub(crate) fn matmuls(batch: usize, size: [usize; 3]) -> usize {
    Tiling::new(batch, size).matmuls()
}

/// The number of times that a tap meets the feature map along an axis, over all results.
fn met_taps(shape: &ConvShape, axis: usize) -> usize {
    (0..3).map(|tap| geometry::met(shape, axis, shape.displacement(axis, tap)).len()).sum()
}
