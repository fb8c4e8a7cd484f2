//! The register tile, generic over the elements, the vector, the tile's height and its width in vectors.

use std::mem::MaybeUninit;

use super::{LINE_WORDS, MAX_PANEL_WIDTH, MAX_TILE_ROWS};
use crate::element::Element;
use crate::isa::{Simd, prefetch};

/// One tile of a [`super::Matmul`], with the same field names.
pub(super) struct Tile<C> {
    pub depth: usize,
    pub a: *const f32,
    pub stride: usize,
    pub b: *const f32,
    pub columns: usize,
    pub c: *mut C,
    pub c_rows: *const usize,
    pub init: *const f32,
    pub init_rows: *const usize,
    /// For the next tile. Nothing if A is transposed.
    pub ahead: Ahead,
    /// Rows of C of which each is prefetched in a step of the depth, unless A is transposed.
    pub far_rows: usize,
}

/// The words of A that are prefetched along with a tile, a cache line in each step of its depth: as many at once as there are would wait
/// for each other.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub from: *const f32,
    /// Words from line to line.
    pub step: usize,
    /// Words to add after as many steps as a line has words; wraps.
    pub turn: usize,
}

/// Runs a block for each row of a tile, whose number is a constant: a loop of so many instructions would not be unrolled.
macro_rules! each_row {
    ($row:ident < $rows:ident => $block:block) => {
        each_row!($row < $rows => $block, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    ($row:ident < $rows:ident => $block:block, $($number:literal)*) => {
        $(if $number < $rows {
            const $row: usize = $number;
            $block
        })*
    };
}

/// Computes a tile of `M` rows and `W` vectors; panels of B are two vectors wide for any `W`.
///
/// Accumulators stay in registers only while every use of them is unrolled. Therefore whole rows are finished without a
/// loop, and for others a minimal loop copies the accumulators out, and `narrow`, which is [`finish`], works on the copy.
///
/// # Safety
/// As for [`super::multiply`]; `M <= MAX_TILE_ROWS`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "indices of a known range are what the compiler unrolls")]
pub(super) unsafe fn compute<S, E, C, const M: usize, const W: usize, const TRANSPOSED: bool>(
    tile: &Tile<C>,
    narrow: unsafe fn(&Tile<C>, usize, *const f32, usize),
) where
    S: Simd,
    E: Element,
    C: Element,
{
    let mut sums = [MaybeUninit::<f32>::uninit(); MAX_TILE_ROWS * MAX_PANEL_WIDTH];
    let (row, column) = if TRANSPOSED { (1, tile.stride) } else { (tile.stride, 1) };
    let sums: *mut f32 = sums.as_mut_ptr().cast();
    // SAFETY: the caller's promise about A and B; `sums` holds M rows of W vectors.
    unsafe {
        let (mut a, mut b) = (tile.a, tile.b);
        let Ahead { from: mut ahead, step, turn } = tile.ahead;
        let far_rows = tile.far_rows;
        let mut acc = [[S::splat(0.0); W]; M];
        for p in 0..tile.depth {
            if !TRANSPOSED {
                if p < far_rows {
                    prefetch(tile.c.wrapping_add(*tile.c_rows.add(p)), W * S::LANES * size_of::<C>());
                }
                prefetch(ahead, 1);
                ahead = ahead.wrapping_add(step);
                if p % LINE_WORDS == LINE_WORDS - 1 {
                    ahead = ahead.wrapping_add(turn);
                }
            }
            let mut weights = [S::splat(0.0); W];
            for j in 0..W {
                weights[j] = S::load(b.add(j * S::LANES));
            }
            for i in 0..M {
                let value = S::splat(*a.add(i * row));
                for j in 0..W {
                    acc[i][j] = E::multiply_add::<S>(value, weights[j], acc[i][j]);
                }
            }
            b = b.add(2 * S::LANES);
            a = a.add(column);
        }
        if tile.columns == W * S::LANES {
            each_row!(I < M => {
                let to = tile.c.add(*tile.c_rows.add(I));
                for j in 0..W {
                    let mut sum = acc[I][j];
                    if !tile.init.is_null() {
                        sum = S::add(sum, S::load(tile.init.add(*tile.init_rows.add(I) + j * S::LANES)));
                    }
                    C::store::<S>(to.add(j * S::LANES), sum);
                }
            });
            return;
        }
        for i in 0..M {
            for j in 0..W {
                S::store(sums.add((i * W + j) * S::LANES), acc[i][j]);
            }
        }
    }
    // SAFETY: the caller's promise about C and init; the sums were just stored.
    unsafe { narrow(tile, M, sums, W * S::LANES) }
}

/// Adds sums to the tile's initial values, and stores them: `rows` rows, `stride` values apart.
///
/// # Safety
/// As for [`super::multiply`]; the sums contain the rows.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd, C: Element>(tile: &Tile<C>, rows: usize, sums: *const f32, stride: usize) {
    let vectors = tile.columns / S::LANES * S::LANES;
    for i in 0..rows {
        // SAFETY: row `i` of the tile, of C and of init.
        unsafe {
            let from = sums.add(i * stride);
            let to = tile.c.add(*tile.c_rows.add(i));
            let init = if tile.init.is_null() { tile.init } else { tile.init.add(*tile.init_rows.add(i)) };
            for j in (0..vectors).step_by(S::LANES) {
                let mut v = S::load(from.add(j));
                if !init.is_null() {
                    v = S::add(v, S::load(init.add(j)));
                }
                C::store::<S>(to.add(j), v);
            }
            for j in vectors..tile.columns {
                *to.add(j) = C::of(*from.add(j) + if init.is_null() { 0.0 } else { *init.add(j) });
            }
        }
    }
}

/// The tables of tiles of one level: `tiles!(Vector, heights in f32, heights in bf16, function attributes)`.
macro_rules! tiles {
    ($simd:ty, [$($m:literal),*], [$($n:literal),*] $(, $feature:literal)?) => {
        use std::marker::PhantomData;

        use crate::element::Element;
        use crate::gemm::Tiles;
        use crate::gemm::tile::{Tile, compute, finish};

        // Apart from the tiles, which would each have it.
        #[inline(never)]
        $(#[target_feature(enable = $feature)])?
        unsafe fn narrow<C: Element>(tile: &Tile<C>, rows: usize, sums: *const f32, stride: usize) {
            // SAFETY: the caller's promise; the level is available.
            unsafe { finish::<$simd, C>(tile, rows, sums, stride) }
        }

        // Never inlined: a function per tile keeps the register allocator's work separate.
        #[inline(never)]
        $(#[target_feature(enable = $feature)])?
        unsafe fn tile<E: Element, C: Element, const M: usize, const W: usize, const TRANSPOSED: bool>(tile: &Tile<C>) {
            // SAFETY: the caller's promise; the level is available.
            unsafe { compute::<$simd, E, C, M, W, TRANSPOSED>(tile, narrow::<C>) }
        }

        /// The tiles of this level.
        pub(in crate::gemm) struct Level<E, C, const TRANSPOSED: bool>(PhantomData<(E, C)>);

        impl<E: Element, C: Element, const TRANSPOSED: bool> Level<E, C, TRANSPOSED> {
            /// Tiles of one vector, then of two.
            pub(in crate::gemm) const TILES: [Tiles<C>; 2] = match E::PER_WORD {
                1 => [&[$(tile::<E, C, $m, 1, TRANSPOSED>),*], &[$(tile::<E, C, $m, 2, TRANSPOSED>),*]],
                _ => [&[$(tile::<E, C, $n, 1, TRANSPOSED>),*], &[$(tile::<E, C, $n, 2, TRANSPOSED>),*]],
            };
        }
    };
}
pub(super) use tiles;
