//! The matmul of convolution and linear layers: `C = init + A B` by register tiles.
//!
//! A is read in place or from a packed block, with either its rows or its columns contiguous. B comes in panels of
//! [`panel_width`] columns, padded with zeros. Rows of C may be anywhere, given by a table of offsets. An element of C
//! is one chain of multiply-adds over the depth (with AMX, of the sums of 16 words each), so its bits do not depend on
//! how rows and columns are divided into tiles.
//!
//! A and B consist of words of 32 bits: f32 values, or pairs of bf16 that are neighbours along the depth. Both
//! precisions therefore share one memory order and one loop.

#[cfg(any(target_arch = "x86_64", test))]
mod amx;
mod levels;
mod split;
mod tile;

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::{FLOOD_OPERATIONS, flood_registers};
pub(crate) use split::{SPLIT_PRODUCTS, SPLIT_VALUES, multiply_split, split_panels, split_words, splits};
use tile::{Ahead, Tile};

use crate::element::Element;
use crate::isa::{Isa, prefetch};

/// Words of a cache line.
const LINE_WORDS: usize = 16;

/// Maximum rows of a register tile at any level.
pub(crate) const MAX_TILE_ROWS: usize = 14;

/// One function for each tile height from 1.
type Tiles<C> = &'static [unsafe fn(&Tile<C>)];

/// Tiles of one vector, then of two.
fn tiles<E: Element, C: Element, const TRANSPOSED: bool>(isa: Isa) -> [Tiles<C>; 2] {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512Bf16 if E::BF16 || C::BF16 => levels::avx512_bf16::Level::<E, C, TRANSPOSED>::TILES,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => levels::avx512::Level::<E, C, TRANSPOSED>::TILES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => levels::avx2::Level::<E, C, TRANSPOSED>::TILES,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonBf16 if E::BF16 || C::BF16 => levels::neon_bf16::Level::<E, C, TRANSPOSED>::TILES,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonBf16 | Isa::Neon => levels::neon::Level::<E, C, TRANSPOSED>::TILES,
        // Levels of other architectures do not run here.
        _ => levels::portable::Level::<E, C, TRANSPOSED>::TILES,
    }
}

/// Columns of the widest panel of any level: two vectors of 16.
pub(crate) const MAX_PANEL_WIDTH: usize = 32;

/// Columns of a panel of B: two vectors.
pub(crate) fn panel_width(isa: Isa) -> usize {
    2 * match isa {
        Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => 16,
        Isa::Avx2 => 8,
        Isa::NeonBf16 | Isa::Neon | Isa::Portable => 4,
    }
}

/// Rows of the tallest tile if A is not transposed.
pub(crate) fn tile_rows<E: Element>(isa: Isa) -> usize {
    match isa {
        #[cfg(any(target_arch = "x86_64", test))]
        Isa::Amx if E::PER_WORD > 1 => amx::ROWS,
        _ => tiles::<E, f32, false>(isa)[1].len(),
    }
}

/// One matmul. Strides of A and B, and the depth, are in words.
pub(crate) struct Matmul<C> {
    /// Rows of A and C.
    pub rows: usize,
    /// Columns of B and C.
    pub columns: usize,
    /// Columns of A, rows of B; at least 1.
    pub depth: usize,
    /// A: word (i, p) at `i * stride + p`, or `i + p * stride` if transposed.
    pub a: *const f32,
    /// See `a`.
    pub stride: usize,
    /// Panels of B: element (p, j) at `(j / width) * panel + p * width + j % width`.
    pub b: *const f32,
    /// Distance between panels.
    pub panel: usize,
    /// C: element (i, j) at `c_rows[i] + j`.
    pub c: *mut C,
    /// See `c`.
    pub c_rows: *const usize,
    /// The initial value that the matmul is added to: element (i, j) at `init_rows[i] + j`; null for
    /// nothing. May be C itself.
    pub init: *const f32,
    /// See `init`.
    pub init_rows: *const usize,
    /// Whether C, and A unless transposed, may be in memory rather than in cache: they are then prefetched a tile ahead.
    pub far: bool,
}

impl<C> Matmul<C> {
    /// Prefetches rows of C in the panel of `column`.
    ///
    /// # Safety
    /// The table contains the rows.
    #[inline(always)]
    unsafe fn prefetch_results(&self, rows: Range<usize>, column: usize, width: usize) {
        let columns = (self.columns - column).min(width);
        for row in rows {
            // SAFETY: the caller's promise.
            let to = self.c.wrapping_add(unsafe { *self.c_rows.add(row) } + column);
            prefetch(to, columns * size_of::<C>());
        }
    }

    /// Prefetches the initial values of rows of C in the panel of `column`, if there are any.
    ///
    /// # Safety
    /// The table contains the rows.
    #[inline(always)]
    unsafe fn prefetch_initial(&self, rows: Range<usize>, column: usize, width: usize) {
        if self.init.is_null() || self.init == self.c.cast_const().cast() {
            return;
        }
        let columns = (self.columns - column).min(width);
        for row in rows {
            // SAFETY: the caller's promise.
            let from = self.init.wrapping_add(unsafe { *self.init_rows.add(row) } + column);
            prefetch(from, columns * size_of::<f32>());
        }
    }

    /// The lines of some rows of A, which is not transposed.
    fn ahead(&self, first: usize, end: usize) -> Ahead {
        let from = self.a.wrapping_add(first * self.stride);
        // Rows without gaps are prefetched as one piece, others a line of each row at a time.
        let step = ((end - first) * self.stride).div_ceil(self.depth);
        match step <= LINE_WORDS {
            true => Ahead { from, step, turn: 0 },
            false => Ahead { from, step: self.stride, turn: LINE_WORDS.wrapping_sub(LINE_WORDS * self.stride) },
        }
    }

    /// The tile that begins at a row and at the first column of a panel; panels are `width` wide.
    ///
    /// # Safety
    /// The tile begins inside the matmul, whose addresses are valid.
    #[inline(always)]
    unsafe fn tile<const TRANSPOSED: bool>(&self, row: usize, column: usize, width: usize) -> Tile<C> {
        // SAFETY: the caller's promise.
        unsafe {
            Tile {
                depth: self.depth,
                a: self.a.add(if TRANSPOSED { row } else { row * self.stride }),
                stride: self.stride,
                b: self.b.add(column / width * self.panel),
                columns: (self.columns - column).min(width),
                c: self.c.add(column),
                c_rows: self.c_rows.add(row),
                init: if self.init.is_null() { self.init } else { self.init.add(column) },
                init_rows: self.init_rows.add(row),
                ahead: Ahead { from: self.a, step: 0, turn: 0 },
                far_rows: 0,
            }
        }
    }
}

/// Computes matmuls of words of `E`, one after the other, and stores them as `C`. `TRANSPOSED`: A's columns are contiguous
/// instead of its rows. Small matmuls should be passed together: tile registers are set up once for all of them.
///
/// # Safety
/// `isa` runs here; every address in the matmuls is valid, and no other code writes C or reads it in the meantime.
pub(crate) unsafe fn multiply<E: Element, C: Element, const TRANSPOSED: bool>(
    isa: Isa,
    matmuls: impl IntoIterator<Item = Matmul<C>>,
) {
    if isa == Isa::Amx && E::PER_WORD > 1 {
        #[cfg(test)]
        if !isa.available() {
            // SAFETY: the caller's promise.
            return unsafe { amx::multiply::<amx::Emulated, C, TRANSPOSED>(matmuls) };
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        return unsafe { amx::multiply_in_registers::<C, TRANSPOSED>(matmuls) };
    }
    let tiles = tiles::<E, C, TRANSPOSED>(isa);
    let height = tiles[1].len();
    let width = panel_width(isa);
    for matmul in matmuls {
        let rows = matmul.rows;
        // Tiles of nearly equal height: 16 rows are divided into 8 + 8, not 14 + 2.
        let count = rows.div_ceil(height);
        for column in (0..matmul.columns).step_by(width) {
            for i in 0..count {
                let first = rows * i / count;
                let end = rows * (i + 1) / count;
                // SAFETY: the caller's promise; the tile lies inside the matmul.
                unsafe {
                    let mut tile = matmul.tile::<TRANSPOSED>(first, column, width);
                    if matmul.far {
                        tile.far_rows = if TRANSPOSED { 0 } else { (end - first).min(matmul.depth) };
                        matmul.prefetch_results(first + tile.far_rows..end, column, width);
                        matmul.prefetch_initial(first..end, column, width);
                    }
                    if matmul.far && !TRANSPOSED && column == 0 && i + 1 < count {
                        // Tiles of later panels find the rows in cache.
                        tile.ahead = matmul.ahead(end, rows * (i + 2) / count);
                    }
                    let tiles = tiles[usize::from(2 * tile.columns > width)];
                    tiles[end - first - 1](&tile);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::Bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::guard::{Edge, Guarded};
    use crate::test_support::{available, noise};

    /// Words as f32 values, and the product of two of them in f64.
    trait Words: Element {
        fn next_word(values: &mut impl Iterator<Item = f32>) -> f32;
        fn matmul(a: f32, b: f32) -> f64;
    }

    impl Words for f32 {
        fn next_word(values: &mut impl Iterator<Item = f32>) -> f32 {
            values.next().unwrap()
        }
        fn matmul(a: f32, b: f32) -> f64 {
            f64::from(a) * f64::from(b)
        }
    }

    impl Words for Bf16 {
        fn next_word(values: &mut impl Iterator<Item = f32>) -> f32 {
            let mut half = || u32::from(Bf16::from_f32(values.next().unwrap()).to_bits());
            f32::from_bits(half() | half() << 16)
        }
        fn matmul(a: f32, b: f32) -> f64 {
            let halves = |word: f32| [word.to_bits() << 16, word.to_bits() & 0xffff_0000].map(f32::from_bits);
            let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
            f64::from(a0) * f64::from(b0) + f64::from(a1) * f64::from(b1)
        }
    }

    fn words<E: Words>(seed: u64, count: usize) -> Vec<f32> {
        let mut values = noise(seed, E::PER_WORD * count).into_iter();
        (0..count).map(|_| E::next_word(&mut values)).collect()
    }

    fn check<E: Words, C: Element, const T: bool>(isa: Isa, rows: usize, columns: usize, depth: usize, init: bool) {
        Edge::BOTH.into_iter().for_each(|edge| check_at::<E, C, T>(edge, isa, [rows, columns, depth], init));
    }

    fn check_at<E: Words, C: Element, const T: bool>(edge: Edge, isa: Isa, size: [usize; 3], init: bool) {
        let [rows, columns, depth] = size;
        let width = panel_width(isa);
        let stride = if T { rows + 3 } else { depth + 5 };
        // Nothing follows the last row.
        let (lines, used) = if T { (depth, rows) } else { (rows, depth) };
        let a = Guarded::new(edge, &words::<E>(1, (lines - 1) * stride + used));
        let panels = columns.div_ceil(width);
        let b = Guarded::new(edge, &words::<E>(2, panels * depth * width));
        let ldc = columns + 2;
        let base = Guarded::new(edge, &noise(3, (rows - 1) * ldc + columns));
        let before: Vec<C> = base.iter().map(|&v| C::of(v)).collect();
        let mut c = Guarded::new(edge, &before);
        let c_rows: Vec<usize> = (0..rows).map(|i| (rows - 1 - i) * ldc).collect();
        let matmul = Matmul {
            rows,
            columns,
            depth,
            a: a.as_ptr(),
            stride,
            b: b.as_ptr(),
            panel: depth * width,
            c: c.as_mut_ptr(),
            c_rows: c_rows.as_ptr(),
            init: if init { base.as_ptr() } else { std::ptr::null() },
            init_rows: c_rows.as_ptr(),
            far: init,
        };
        // SAFETY: the buffers above have the sizes that the matmul describes.
        unsafe { multiply::<E, C, T>(isa, [matmul]) };
        // A bf16 result is off by up to half a unit in its last place.
        let rounding = if C::PER_WORD == 2 { 1.0 / 256.0 } else { 0.0 };
        for i in 0..rows {
            for j in 0..ldc {
                let at = c_rows[i] + j;
                let Some(found) = c.get(at).map(|value| value.get()) else { continue };
                if j >= columns {
                    assert_eq!(found.to_bits(), before[at].get().to_bits(), "write past the columns");
                    continue;
                }
                let element = |p: usize| a[if T { i + p * stride } else { i * stride + p }];
                let weight = |p: usize| b[j / width * depth * width + p * width + j % width];
                let sum: f64 = (0..depth).map(|p| E::matmul(element(p), weight(p))).sum();
                let expected = sum + if init { f64::from(base[at]) } else { 0.0 };
                let allowed = 2e-5 * (depth as f64).sqrt() + rounding * expected.abs();
                assert!((f64::from(found) - expected).abs() < allowed, "{isa} row {i} column {j}");
            }
        }
    }

    /// The bits of a matmul that is added to initial values in C, with its rows divided among several matmuls.
    fn in_place<E: Words, const T: bool>(isa: Isa, [rows, columns, depth]: [usize; 3], cuts: &[usize]) -> Vec<u32> {
        let width = panel_width(isa);
        let a = words::<E>(1, rows * depth);
        let b = words::<E>(2, columns.div_ceil(width) * depth * width);
        let mut c = noise(3, rows * columns);
        let c_rows: Vec<usize> = (0..rows).map(|i| i * columns).collect();
        let to = c.as_mut_ptr();
        let part = |ends: &[usize]| {
            let first = ends[0];
            let rows_of = c_rows[ends[0]..ends[1]].as_ptr();
            Matmul {
                rows: ends[1] - first,
                columns,
                depth,
                a: a[if T { first } else { first * depth }..].as_ptr(),
                stride: if T { rows } else { depth },
                b: b.as_ptr(),
                panel: depth * width,
                c: to,
                c_rows: rows_of,
                init: to,
                init_rows: rows_of,
                far: true,
            }
        };
        // SAFETY: the buffers above have the sizes that the matmuls describe.
        unsafe { multiply::<E, f32, T>(isa, cuts.windows(2).filter(|ends| ends[0] < ends[1]).map(part)) };
        c.into_iter().map(f32::to_bits).collect()
    }

    fn check_cuts<E: Words, const T: bool>(isa: Isa, size: [usize; 3], cut: usize) {
        let whole = in_place::<E, T>(isa, size, &[0, size[0]]);
        assert_eq!(in_place::<E, T>(isa, size, &[0, cut, size[0]]), whole, "{isa} {size:?} cut at {cut}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_the_plain_matmul(
            rows in 1usize..40,
            columns in 1usize..80,
            depth in 1usize..30,
            init: bool,
        ) {
            for isa in available() {
                check::<f32, f32, false>(isa, rows, columns, depth, init);
                check::<f32, f32, true>(isa, rows, columns, depth, init);
                check::<f32, Bf16, false>(isa, rows, columns, depth, init);
                check::<Bf16, f32, false>(isa, rows, columns, depth, init);
                check::<Bf16, f32, true>(isa, rows, columns, depth, init);
                check::<Bf16, Bf16, false>(isa, rows, columns, depth, init);
            }
        }

        /// Runs on any machine.
        #[test]
        fn equals_the_plain_matmul_on_emulated_tiles(
            rows in 1usize..110,
            columns in 1usize..80,
            depth in 1usize..70,
            init: bool,
        ) {
            check::<Bf16, f32, false>(Isa::Amx, rows, columns, depth, init);
            check::<Bf16, f32, true>(Isa::Amx, rows, columns, depth, init);
            // Deeper than the copied rows.
            check::<Bf16, f32, true>(Isa::Amx, rows, columns, 480 + depth, init);
            check::<Bf16, Bf16, false>(Isa::Amx, rows, columns, depth, init);
        }

        #[test]
        fn bits_do_not_depend_on_cuts(rows in 1usize..80, columns in 1usize..70, depth in 1usize..50, cut in 0usize..80) {
            for isa in available() {
                check_cuts::<f32, false>(isa, [rows, columns, depth], cut.min(rows));
                check_cuts::<f32, true>(isa, [rows, columns, depth], cut.min(rows));
                check_cuts::<Bf16, false>(isa, [rows, columns, depth], cut.min(rows));
                check_cuts::<Bf16, true>(isa, [rows, columns, depth], cut.min(rows));
            }
        }

        #[test]
        fn f32_is_the_same_at_levels_that_add_bf16(rows in 1usize..40, columns in 1usize..70, depth in 1usize..30) {
            let levels = [(Isa::Avx512Bf16, Isa::Avx512), (Isa::Amx, Isa::Avx512), (Isa::NeonBf16, Isa::Neon)];
            for (isa, lower) in levels.into_iter().filter(|(isa, _)| isa.runs()) {
                let matmul = |isa| in_place::<f32, false>(isa, [rows, columns, depth], &[0, rows]);
                assert_eq!(tile_rows::<f32>(isa), tile_rows::<f32>(lower));
                assert_eq!(matmul(isa), matmul(lower), "{isa}");
            }
        }
    }
}
