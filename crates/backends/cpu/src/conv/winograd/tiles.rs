//! The transforms of tiles: patches of a tensor to 36 matrices, and 36 matrices to tiles of the result.

use std::ops::Range;

use super::tiling::{TILE, Tile, Tiling};
use super::transform;
use super::{PLANES, odd_lines, row_values};
use crate::conv::{Epilogue, Source, Start};
use crate::element::Element;
use crate::inlined::{each_vector, inlined};
use crate::isa::{Isa, Kernel, Simd};
use crate::region::Region;

/// Positions of the words of 36 matrices, which have a row per tile (or per two) and columns in panels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Words from plane to plane: an odd number of cache lines, so that the 36 planes spread over the sets of the cache.
    pub plane: usize,
    /// Words from row to row.
    pub row: usize,
    /// Words from panel to panel.
    pub panel: usize,
    /// Base-2 logarithm of the columns of a panel.
    shift: u32,
}

impl Layout {
    /// A layout of up to `rows` rows of `columns` words.
    pub(super) fn rows(rows: usize, columns: usize) -> Self {
        let row = row_values(columns);
        Layout { plane: odd_lines(rows * row), row, panel: 0, shift: usize::BITS - 1 }
    }

    /// A layout of up to `rows` rows of panels of `width` columns, a power of two.
    pub(super) fn panels(rows: usize, columns: usize, width: usize) -> Self {
        debug_assert!(width.is_power_of_two());
        let panel = rows * width;
        Layout { plane: odd_lines(columns.div_ceil(width) * panel), row: width, panel, shift: width.trailing_zeros() }
    }

    /// Words of all matrices.
    pub(super) fn len(&self) -> usize {
        PLANES * self.plane
    }

    /// Number of columns, including those that fill the last panel.
    fn filled(&self, columns: usize) -> usize {
        if self.panel == 0 { columns } else { columns.next_multiple_of(1 << self.shift) }
    }

    /// The position of a column of a row in plane 0.
    #[inline(always)]
    fn at(&self, row: usize, column: usize) -> usize {
        (column >> self.shift) * self.panel + row * self.row + (column & ((1 << self.shift) - 1))
    }
}

/// 36 matrices in memory.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub data: Region<f32>,
    pub layout: Layout,
}

impl Planes {
    /// The matrices starting at another row.
    pub(super) fn starting_at(&self, row: usize) -> Self {
        let skipped = row * self.layout.row;
        Planes { data: self.data.part(skipped, self.data.len() - skipped), layout: self.layout }
    }

    /// The address of `count` columns of a row in plane 0; every plane has as many.
    #[inline(always)]
    pub(super) fn at(&self, row: usize, column: usize, count: usize) -> *mut f32 {
        self.data.at(self.layout.at(row, column), (PLANES - 1) * self.layout.plane + count)
    }
}

/// The input of a transform: patches of `N x N` pixels, 6 x 6 of the source or 4 x 4 of the result's gradient.
#[derive(Clone, Copy)]
pub(super) struct Patches<'a, E, const N: usize> {
    pub source: Source<E>,
    /// Height, width and channels of the source.
    pub size: [usize; 3],
    pub tiling: &'a Tiling,
    /// From a tile's first pixel to its patch's first pixel.
    pub offset: [isize; 2],
    /// Zeros for pixels outside the feature map, one per channel.
    pub zeros: Region<E>,
}

impl<E: Element, const N: usize> Patches<'_, E, N> {
    /// The addresses of the pixels of a tile's patch. They point to zeros if there is no tile, outside the feature map, and
    /// where a tile is not whole: its patch is smaller by as many pixels.
    #[inline(always)]
    fn pixels(&self, tile: Option<usize>) -> [[*const E; N]; N] {
        let [height, width, channels] = self.size;
        let mut pixels = [[self.zeros.at(0, channels).cast_const(); N]; N];
        let Some(&Tile { image, corner, size }) = tile.map(|tile| &self.tiling.tiles[tile]) else { return pixels };
        let [top, left] = [0, 1].map(|axis| corner[axis] as isize + self.offset[axis]);
        let [rows, columns] = size.map(|size| N - TILE + size);
        for (y, pixels) in (top..).zip(&mut pixels[..rows]) {
            for (x, pixel) in (left..).zip(&mut pixels[..columns]) {
                if (0..height as isize).contains(&y) && (0..width as isize).contains(&x) {
                    let place = (image * height + y as usize) * width + x as usize;
                    *pixel = self.source.data.at(place * channels, channels);
                }
            }
        }
        pixels
    }
}

impl<E: Element, const N: usize> Patches<'_, E, N> {
    /// The transform of a patch's columns. The transform of the rows follows later.
    #[inline(always)]
    unsafe fn columns<S: Simd>(&self, pixels: &[[*const E; N]; N], channel: usize) -> [[S::V; 6]; 6] {
        // SAFETY: the caller's promise: pixels have a vector of values starting at the channel.
        unsafe {
            let mut half = [[S::splat(0.0); 6]; 6];
            for x in 0..N {
                let mut column = [S::splat(0.0); 6];
                for y in 0..N {
                    column[y] = self.load::<S>(pixels[y][x], channel);
                }
                let column = one_dimension::<S, N>(column);
                for i in 0..6 {
                    half[i][x] = column[i];
                }
            }
            half
        }
    }

    /// A vector of a pixel. Pixels outside the feature map stay zeros.
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, pixel: *const E, channel: usize) -> S::V {
        let from = pixel.wrapping_add(channel);
        // SAFETY: the caller's promise.
        unsafe {
            match self.source.norm {
                Some(norm) if pixel != self.zeros.at(0, 0).cast_const() => norm.vector::<S, E>(from, channel),
                _ => E::load::<S>(from),
            }
        }
    }
}

#[inline(always)]
unsafe fn one_dimension<S: Simd, const N: usize>(values: [S::V; 6]) -> [S::V; 6] {
    // SAFETY: the caller's promise.
    unsafe { if N == 6 { transform::source::<S>(values) } else { transform::result_gradient::<S>(values) } }
}

/// Transforms patches to matrices whose rows are tiles and whose words run along the channels. Products that a tile
/// does not need are not written.
pub(super) struct TransformPatches<'a, E, const N: usize> {
    pub patches: Patches<'a, E, N>,
    pub tiles: Range<usize>,
    pub out: Planes,
}

impl<E: Element, const N: usize> Kernel for TransformPatches<'_, E, N> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.patches.size[2];
        for (row, tile) in self.tiles.clone().enumerate() {
            let pixels = self.patches.pixels(Some(tile));
            let points = self.patches.tiling.tiles[tile].points();
            let words = channels.div_ceil(E::PER_WORD);
            let (out, plane): (*mut E, usize) =
                (self.out.at(row, 0, words).cast(), self.out.layout.plane * E::PER_WORD);
            // SAFETY: pixels have `channels` values; the row of each plane has as many, plus the values
            // that fill its last word.
            unsafe {
                each_vector!(S, channel in 0..channels => self, transform(&pixels, channel, out, plane, points));
                for channel in channels..words * E::PER_WORD {
                    (0..PLANES).for_each(|i| *out.add(channel + i * plane) = E::ZERO);
                }
            }
        }
    }
}

impl<E: Element, const N: usize> TransformPatches<'_, E, N> {
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "indices of a known range are what the compiler unrolls")]
    unsafe fn transform<S: Simd>(
        &self,
        pixels: &[[*const E; N]; N],
        channel: usize,
        out: *mut E,
        plane: usize,
        points: [usize; 2],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let half = self.patches.columns::<S>(pixels, channel);
            for i in 0..6 {
                if i == points[0] {
                    break;
                }
                let values = one_dimension::<S, N>(half[i]);
                for j in 0..6 {
                    if j == points[1] {
                        break;
                    }
                    E::store::<S>(out.add((i * 6 + j) * plane + channel), values[j]);
                }
            }
        }
    }
}

/// Transforms patches to matrices whose words run along the tiles. A row is one tile in f32 or two tiles in bf16; the
/// last row may be filled up with zeros. Columns are channels. All planes are written, since the two tiles of a word
/// may need different ones.
pub(super) struct TransformTiles<'a, E, const N: usize> {
    pub patches: Patches<'a, E, N>,
    pub tiles: Range<usize>,
    pub out: Planes,
}

impl<E: Element, const N: usize> Kernel for TransformTiles<'_, E, N> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.patches.size[2];
        let filled = self.out.layout.filled(channels);
        for (row, tile) in self.tiles.clone().step_by(E::PER_WORD).enumerate() {
            let pixels = [
                self.patches.pixels(Some(tile)),
                self.patches.pixels(Some(tile + 1).filter(|next| E::PER_WORD > 1 && self.tiles.contains(next))),
            ];
            // SAFETY: pixels have `channels` values; the row of each plane has as many, plus the values that
            // fill its last panel.
            unsafe {
                each_vector!(S, channel in 0..channels => self, transform(&pixels, row, channel));
                for channel in channels..filled {
                    let out = self.out.at(row, channel, 1);
                    (0..PLANES).for_each(|plane| *out.add(plane * self.out.layout.plane) = 0.0);
                }
            }
        }
    }
}

impl<E: Element, const N: usize> TransformTiles<'_, E, N> {
    inlined! {
        unsafe fn transform<S: Simd>(&self, pixels: &[[[*const E; N]; N]; 2], row: usize, channel: usize) {
            let first = self.patches.columns::<S>(&pixels[0], channel);
            let second = if E::PER_WORD > 1 { self.patches.columns::<S>(&pixels[1], channel) } else { first };
            let out = self.out.at(row, channel, S::LANES);
            for i in 0..6 {
                let values = one_dimension::<S, N>(first[i]);
                let others = if E::PER_WORD > 1 { one_dimension::<S, N>(second[i]) } else { values };
                for j in 0..6 {
                    S::store(out.add((i * 6 + j) * self.out.layout.plane), E::word::<S>(values[j], others[j]));
                }
            }
        }
    }
}

/// Transforms products back to tiles of the result. Products that a tile does not need may have any value: they affect
/// only results that the tile does not have.
pub(super) struct TransformResult<'a, E> {
    pub matmuls: Planes,
    pub tiling: &'a Tiling,
    pub tiles: Range<usize>,
    pub result: Region<E>,
    /// Height, width and channels of the result.
    pub size: [usize; 3],
    /// The channels of the result that correspond to the products' columns.
    pub channels: Range<usize>,
    pub start: Start<E>,
    /// Of the epilogue.
    pub place: usize,
    /// What is done with each tile, at this level.
    pub epilogue: Option<(&'a dyn Epilogue, Isa)>,
}

impl<E: Element> Kernel for TransformResult<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let [height, width, channels] = self.size;
        for (row, tile) in self.tiles.clone().enumerate() {
            let Tile { image, corner: [top, left], size } = self.tiling.tiles[tile];
            let corner = ((image * height + top) * width + left) * channels;
            // SAFETY: tiles lie on the feature map.
            unsafe { each_vector!(S, channel in self.channels.clone() => self, transform(row, corner, size, channel)) }
            let Some((epilogue, isa)) = self.epilogue else { continue };
            let mut pixels = [0; TILE * TILE];
            let mut count = 0;
            for (y, x) in (0..size[0]).flat_map(|y| (0..size[1]).map(move |x| (y, x))) {
                pixels[count] = corner + (y * width + x) * channels;
                count += 1;
            }
            // SAFETY: the tile is complete.
            unsafe { epilogue.run(isa, self.place, &pixels[..count], self.channels.clone()) }
        }
    }
}

impl<E: Element> TransformResult<'_, E> {
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "indices of a known range are what the compiler unrolls")]
    unsafe fn transform<S: Simd>(&self, row: usize, corner: usize, [rows, columns]: [usize; 2], channel: usize) {
        let [_, width, channels] = self.size;
        // SAFETY: the caller's promise.
        unsafe {
            let from = self.matmuls.at(row, channel - self.channels.start, S::LANES).cast_const();
            let mut half = [[S::splat(0.0); 6]; 4];
            for j in 0..6 {
                let mut column = [S::splat(0.0); 6];
                for i in 0..6 {
                    column[i] = S::load(from.add((i * 6 + j) * self.matmuls.layout.plane));
                }
                let column = transform::result::<S>(column);
                for y in 0..4 {
                    half[y][j] = column[y];
                }
            }
            let bias = match self.start {
                Start::Bias(bias) => S::load(bias.at(channel, S::LANES)),
                _ => S::splat(0.0),
            };
            for y in 0..4 {
                if y == rows {
                    break;
                }
                let values = transform::result::<S>(half[y]);
                for x in 0..4 {
                    if x == columns {
                        break;
                    }
                    let at = corner + (y * width + x) * channels + channel;
                    let start = match self.start {
                        Start::Base(base) => E::load::<S>(base.at(at, S::LANES)),
                        _ => bias,
                    };
                    E::store::<S>(self.result.at(at, S::LANES), S::add(values[x], start));
                }
            }
        }
    }
}
