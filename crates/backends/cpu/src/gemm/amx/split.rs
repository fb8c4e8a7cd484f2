//! Products of f32 by tile registers: each value is the sum of three of bf16, exactly, and of the nine products of the
//! parts of two values the six greatest are added. What is left out is at most 2^-23 of the product and has either sign, so results
//! are as near to the exact sum as those of multiply-adds in f32, with fewer roundings on the way.
//!
//! Source: G. Henry, P. T. P. Tang, A. Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
//! computations", 2019 (arXiv:1904.06376), "bfloat16x3". Tile registers take numbers below 2^-126 as 0, so values below 2^-110 lose
//! their last bits; infinite values give NaN.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::{A, B, COLUMNS, ROWS, SIDE, TileRegisters, store_sums};
use crate::gemm::Matmul;
use crate::gemm::split::{PARTS, SPLIT_VALUES as VALUES, SPLIT_WORDS, split_words};
use crate::gemm::tile::{Tile, finish};

/// Registers of the depth that are split at a time: a block of A and a panel of B stay in the second-level cache.
const STEPS: usize = 12;

/// The image of a register.
type Image = [[f32; SIDE]; SIDE];
/// The parts of the values of a register pair: of rows of A, or of columns of B. Word `w` of a row of A, and row `w` of B, has values
/// `w` and `SIDE + w` of the depth.
type Split = [[Image; 2]; PARTS];

/// Memory for a block's rows, split, and for its sums.
#[repr(C, align(64))]
struct Scratch {
    a: [Split; STEPS],
    sums: [[f32; COLUMNS]; ROWS],
    /// Split words of a transposed A.
    words: Split,
}

/// As [`crate::gemm::multiply`], for a matmul of f32 whose B is split.
///
/// # Safety
/// The registers and the level of their vectors are available; the matmul is valid.
#[inline(always)]
pub(in crate::gemm) unsafe fn multiply<T: TileRegisters, const TRANSPOSED: bool>(
    matmuls: impl IntoIterator<Item = Matmul<f32>>,
) {
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr();
    // SAFETY: the caller's promise; blocks and panels lie inside the matmul, and a block's copy in the scratch.
    unsafe {
        T::configure();
        for matmul in matmuls {
            let all = matmul.depth.div_ceil(VALUES);
            let pieces = all.div_ceil(STEPS);
            for piece in 0..pieces {
                let steps = all * piece / pieces..all * (piece + 1) / pieces;
                for row in (0..matmul.rows).step_by(ROWS) {
                    let rows = row..(row + ROWS).min(matmul.rows);
                    if TRANSPOSED {
                        split_columns::<T>(&matmul, rows.clone(), steps.clone(), scratch);
                    } else {
                        split_rows::<T>(&matmul, rows.clone(), steps.clone(), scratch);
                    }
                    for column in (0..matmul.columns).step_by(COLUMNS) {
                        let mut tile = matmul.tile::<TRANSPOSED>(row, column, COLUMNS);
                        (tile.b, tile.depth) = (tile.b.add(steps.start * SPLIT_WORDS), steps.len());
                        // Sums of the pieces before are in C.
                        if piece > 0 {
                            (tile.init, tile.init_rows) = (tile.c.cast_const(), tile.c_rows);
                        }
                        match (rows.len() > SIDE, tile.columns > SIDE) {
                            (true, true) => block::<T, 2, 2>(&tile, rows.len(), scratch),
                            (true, false) => block::<T, 2, 1>(&tile, rows.len(), scratch),
                            (false, true) => block::<T, 1, 2>(&tile, rows.len(), scratch),
                            (false, false) => block::<T, 1, 1>(&tile, rows.len(), scratch),
                        }
                    }
                }
            }
        }
        T::release();
    }
}

/// The parts of 16 pairs of values, which lie in two rows, to row `row` of images.
///
/// # Safety
/// Rows have 16 values.
#[inline(always)]
unsafe fn split<T: TileRegisters>(rows: [*const f32; 2], to: *mut Split, register: usize, row: usize) {
    // SAFETY: the caller's promise; images have 16 rows.
    unsafe {
        let to = [0, 1, 2].map(|part| (&raw mut (*to)[part][register][row]).cast::<f32>());
        T::split(rows, to);
    }
}

/// As [`crate::gemm::split_panels`].
///
/// # Safety
/// The level of the vectors is available; addresses are valid.
#[inline(always)]
pub(in crate::gemm) unsafe fn split_panels<T: TileRegisters>(
    from: *const f32,
    [stride, depth, columns]: [usize; 3],
    to: *mut f32,
) {
    let panel = split_words(depth);
    let mut filled = [[0.0; COLUMNS]; 2];
    for (step, first) in (0..depth).step_by(VALUES).enumerate() {
        for (index, column) in (0..columns).step_by(COLUMNS).enumerate() {
            let to = to.wrapping_add(index * panel + step * SPLIT_WORDS).cast::<Split>();
            let count = (columns - column).min(COLUMNS);
            for word in 0..SIDE {
                // SAFETY: the caller's promise; what is beyond depth and columns are zeros.
                unsafe {
                    let mut pair =
                        [word, SIDE + word].map(|value| from.wrapping_add((first + value) * stride + column));
                    if count < COLUMNS || first + SIDE + word >= depth {
                        for (half, row) in pair.iter_mut().enumerate() {
                            let count = if first + half * SIDE + word < depth { count } else { 0 };
                            filled[half] = [0.0; COLUMNS];
                            std::ptr::copy_nonoverlapping(*row, filled[half].as_mut_ptr(), count);
                            *row = filled[half].as_ptr();
                        }
                    }
                    split::<T>(pair, to, 0, word);
                    split::<T>(pair.map(|row| row.wrapping_add(SIDE)), to, 1, word);
                }
            }
        }
    }
}

/// Splits some registers of the depth of a block's rows.
///
/// # Safety
/// The block and the depth lie inside the matmul.
#[inline(always)]
unsafe fn split_rows<T: TileRegisters>(
    matmul: &Matmul<f32>,
    rows: Range<usize>,
    steps: Range<usize>,
    scratch: *mut Scratch,
) {
    let depth = steps.start * VALUES..matmul.depth.min(steps.end * VALUES);
    let mut filled = [0.0; VALUES];
    for row in rows.clone() {
        let register = (row - rows.start) / SIDE;
        let line = (row - rows.start) % SIDE;
        // SAFETY: the caller's promise.
        unsafe {
            let from = matmul.a.add(row * matmul.stride);
            for (step, first) in depth.clone().step_by(VALUES).enumerate() {
                let mut from = from.add(first);
                let values = (depth.end - first).min(VALUES);
                if values < VALUES {
                    filled[..values].copy_from_slice(std::slice::from_raw_parts(from, values));
                    filled[values..].fill(0.0);
                    from = filled.as_ptr();
                }
                split::<T>([from, from.add(SIDE)], &raw mut (*scratch).a[step], register, line);
            }
        }
    }
    let after = rows.len() % SIDE;
    if after == 0 {
        return;
    }
    // Nothing reads these rows of the result, but emulated registers should not read memory that was never written.
    for (step, part) in (0..steps.len()).flat_map(|step| (0..PARTS).map(move |part| (step, part))) {
        // SAFETY: images have 16 rows.
        unsafe {
            let image = &raw mut (*scratch).a[step][part][rows.len() / SIDE];
            image.cast::<[f32; SIDE]>().add(after).write_bytes(0, SIDE - after);
        }
    }
}

/// As [`split_rows`], with A transposed.
///
/// # Safety
/// The block and the depth lie inside the matmul.
#[inline(always)]
unsafe fn split_columns<T: TileRegisters>(
    matmul: &Matmul<f32>,
    rows: Range<usize>,
    steps: Range<usize>,
    scratch: *mut Scratch,
) {
    for (step, at) in steps.enumerate() {
        let first = at * VALUES;
        let values = (matmul.depth - first).min(VALUES);
        for (register, start) in rows.clone().step_by(SIDE).enumerate() {
            let count = (rows.end - start).min(SIDE);
            // SAFETY: the caller's promise; what is beyond rows and depth are zeros.
            unsafe {
                let mut from = matmul.a.add(first * matmul.stride + start);
                let mut stride = matmul.stride;
                let mut filled;
                if values < VALUES || count < SIDE {
                    filled = [[0.0; SIDE]; VALUES];
                    for (value, to) in filled.iter_mut().enumerate().take(values) {
                        std::ptr::copy_nonoverlapping(from.add(value * stride), to.as_mut_ptr(), count);
                    }
                    (from, stride) = (filled.as_ptr().cast(), SIDE);
                }
                let words = &raw mut (*scratch).words;
                for word in 0..SIDE {
                    let pair = [word, SIDE + word].map(|value| from.add(value * stride));
                    split::<T>(pair, words, 0, word);
                }
                for part in 0..PARTS {
                    let to = (&raw mut (*scratch).a[step][part][register]).cast();
                    T::transpose((&raw const (*words)[part][0]).cast(), SIDE, to, SIDE);
                }
            }
        }
    }
}

/// Computes a block of `R` by `L` registers from split operands; the tile's depth is in registers.
///
/// # Safety
/// As for [`multiply`]; registers are configured, and operands split.
#[inline(always)]
unsafe fn block<T: TileRegisters, const R: usize, const L: usize>(
    tile: &Tile<f32>,
    rows: usize,
    scratch: *mut Scratch,
) {
    // SAFETY: the caller's promise.
    unsafe {
        T::zero::<0>();
        T::zero::<1>();
        T::zero::<2>();
        T::zero::<3>();
        for step in 0..tile.depth {
            let a = |part: usize| (&raw const (*scratch).a[step][part]).cast::<f32>();
            let b = |part: usize| tile.b.add(step * SPLIT_WORDS + part * 2 * SIDE * SIDE);
            // The smallest products first. From one to the next, one operand stays in its registers.
            products::<T, R, L, true, true>(a(2), b(0));
            products::<T, R, L, true, false>(a(1), b(0));
            products::<T, R, L, false, true>(a(1), b(1));
            products::<T, R, L, true, false>(a(0), b(1));
            products::<T, R, L, false, true>(a(0), b(2));
            products::<T, R, L, false, true>(a(0), b(0));
        }
        let sums = (&raw mut (*scratch).sums).cast::<f32>();
        store_sums::<T, R, L>(sums, SIDE);
        finish::<T::Vectors, f32>(tile, rows, sums, COLUMNS);
    }
}

/// Adds the products of one part of A and one of B, loading those that are not in registers yet.
///
/// # Safety
/// Registers are configured; operands are images of registers.
#[inline(always)]
unsafe fn products<T: TileRegisters, const R: usize, const L: usize, const LOAD_A: bool, const LOAD_B: bool>(
    a: *const f32,
    b: *const f32,
) {
    let next = SIDE * SIDE;
    // SAFETY: the caller's promise.
    unsafe {
        if LOAD_A {
            T::load::<{ A[0] }>(a, SIDE);
        }
        if LOAD_B {
            T::load::<{ B[0] }>(b, SIDE);
        }
        T::multiply_add::<0, { A[0] }, { B[0] }>();
        if L == 2 {
            if LOAD_B {
                T::load::<{ B[1] }>(b.add(next), SIDE);
            }
            T::multiply_add::<1, { A[0] }, { B[1] }>();
        }
        if R == 2 {
            if LOAD_A {
                T::load::<{ A[1] }>(a.add(next), SIDE);
            }
            T::multiply_add::<2, { A[1] }, { B[0] }>();
        }
        if R == 2 && L == 2 {
            T::multiply_add::<3, { A[1] }, { B[1] }>();
        }
    }
}
