//! AMX: products of bf16 pairs by tile registers, in blocks of up to 32 rows x 32 columns, which
//! are four accumulators.
//!
//! A register is 16 rows of 64 bytes. Words of A are loaded from their rows, and words of B from
//! their panel, in memory order. One instruction multiplies 16 rows by 16 words by 16 columns.
//! Smaller operands are copied and filled up with zeros, except for rows: the second register of a
//! block ends at its last row and may share some rows with the first. If A's columns are
//! contiguous, the rows of a block are copied in the order of registers first.
//!
//! The loops are generic over the registers, a trait of eight operations. They are tested on
//! emulated registers on any machine, and on the hardware's where it has them. Matmuls of f32 use
//! the code of the level below, or are [`split`].

#[cfg(test)]
mod emulated;
#[cfg(target_arch = "x86_64")]
mod registers;
pub(super) mod split;

use std::mem::MaybeUninit;
use std::ops::Range;

use super::Matmul;
use super::tile::{Tile, finish};
use crate::element::Element;
use crate::isa::{Lanes, Simd};

#[cfg(test)]
pub(super) use emulated::Emulated;
#[cfg(target_arch = "x86_64")]
pub(crate) use registers::flood_registers;
#[cfg(target_arch = "x86_64")]
pub(super) use registers::{multiply_in_registers, multiply_split_in_registers, split_panels_in_registers};

/// Rows of a register, and words or f32 values per row.
pub(super) const SIDE: usize = 16;
/// Rows of a block.
pub(super) const ROWS: usize = 2 * SIDE;
/// Columns of a block, and of a panel of B.
const COLUMNS: usize = 2 * SIDE;

/// The registers that hold A and B; the accumulators are 0 to 3.
const A: [usize; 2] = [4, 5];
const B: [usize; 2] = [6, 7];

/// Eight tile registers of 16 rows of 16 words. They belong to the thread, and may be used only while configured.
pub(super) trait TileRegisters {
    /// Vectors of 16 values, for the code that follows the matmuls.
    type Vectors: Simd;
    /// Acquires all registers, at full size.
    unsafe fn configure();
    /// Releases them.
    unsafe fn release();
    /// Sets a register to zero.
    unsafe fn zero<const T: usize>();
    /// Loads 16 rows, `stride` words apart.
    unsafe fn load<const T: usize>(from: *const f32, stride: usize);
    /// Stores 16 rows, `stride` words apart.
    unsafe fn store<const T: usize>(to: *mut f32, stride: usize);
    /// Adds the product of words of bf16 to f32: rows of `A` by columns of `B`.
    unsafe fn multiply_add<const C: usize, const A: usize, const B: usize>();
    /// Transposes 16 rows of 16 words, in memory; no register is involved.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
    /// Writes the three parts of 16 pairs of values, whose sum is the value, as words: in the lower half those of the first row.
    unsafe fn split(rows: [*const f32; 2], to: [*mut f32; 3]);
}

/// Words of the depth for which rows of a transposed A are copied at a time: with a panel of B they stay in the second-level
/// cache, and are read from the first.
const COPIED_WORDS: usize = 256;
/// Words between these rows; see `row_values` of Winograd's algorithm for why not a power of two.
const COPY_STRIDE: usize = COPIED_WORDS + SIDE;

/// A block's memory apart from its operands.
#[repr(C, align(64))]
struct Scratch {
    sums: [[f32; COLUMNS]; ROWS],
    /// Copies of operands that do not fill registers.
    a: [[[f32; SIDE]; SIDE]; 2],
    b: [[[f32; SIDE]; SIDE]; 2],
    /// The rows of a block of a transposed A.
    rows: [[f32; COPY_STRIDE]; ROWS],
}

/// As [`super::multiply`], for bf16.
///
/// # Safety
/// The registers and the level of their vectors are available; matmuls are valid.
#[inline(always)]
pub(super) unsafe fn multiply<T: TileRegisters, C: Element, const TRANSPOSED: bool>(
    matmuls: impl IntoIterator<Item = Matmul<C>>,
) {
    // With A transposed, sums over a great depth are kept in C.
    const { assert!(!TRANSPOSED || C::PER_WORD == 1) };
    let mut scratch = MaybeUninit::uninit();
    // SAFETY: the caller's promise; blocks lie inside their matmul.
    unsafe {
        T::configure();
        for matmul in matmuls {
            if TRANSPOSED {
                for rows in blocks(matmul.rows) {
                    transposed::<T, C>(&matmul, rows, &mut scratch);
                }
                continue;
            }
            for rows in blocks(matmul.rows) {
                for column in (0..matmul.columns).step_by(COLUMNS) {
                    let tile = matmul.tile::<false>(rows.start, column, COLUMNS);
                    sized_block::<T, C>(&tile, rows.len(), &mut scratch);
                }
            }
        }
        T::release();
    }
}

/// Computes the rows of a block of a matmul with A transposed, over all columns.
///
/// # Safety
/// As for [`multiply`]; registers are configured.
#[inline(always)]
unsafe fn transposed<T, C>(matmul: &Matmul<C>, rows: Range<usize>, scratch: &mut MaybeUninit<Scratch>)
where
    T: TileRegisters,
    C: Element,
{
    let copy = scratch.as_mut_ptr();
    // SAFETY: the caller's promise; the copy lies in the scratch, and has the words that the tiles read.
    unsafe {
        let to = (&raw mut (*copy).rows).cast::<f32>();
        for first in (0..matmul.depth).step_by(COPIED_WORDS) {
            let depth = (matmul.depth - first).min(COPIED_WORDS);
            for word in (0..depth).step_by(SIDE) {
                let words = (depth - word).min(SIDE);
                for row in (0..rows.len()).step_by(SIDE) {
                    // The second register's rows, as in `block`.
                    let row = row.min(rows.len().saturating_sub(SIDE));
                    let mut from = matmul.a.add((first + word) * matmul.stride + rows.start + row);
                    let mut stride = matmul.stride;
                    if words < SIDE || rows.len() < SIDE {
                        from = fill_up(from, stride, words, rows.len().min(SIDE), &mut (*copy).a[0]);
                        stride = SIDE;
                    }
                    T::transpose(from, stride, to.add(row * COPY_STRIDE + word), COPY_STRIDE);
                }
            }
            for column in (0..matmul.columns).step_by(COLUMNS) {
                let mut tile = matmul.tile::<true>(rows.start, column, COLUMNS);
                (tile.a, tile.stride, tile.depth) = (to, COPY_STRIDE, depth);
                tile.b = tile.b.add(first * COLUMNS);
                if first > 0 {
                    (tile.init, tile.init_rows) = (tile.c.cast_const().cast(), tile.c_rows);
                }
                sized_block::<T, C>(&tile, rows.len(), scratch);
            }
        }
    }
}

/// Computes a block with the registers that it needs.
///
/// # Safety
/// As for [`block`].
#[inline(always)]
unsafe fn sized_block<T: TileRegisters, C: Element>(tile: &Tile<C>, rows: usize, scratch: &mut MaybeUninit<Scratch>) {
    // SAFETY: the caller's promise.
    unsafe {
        match (rows > SIDE, tile.columns > SIDE) {
            (true, true) => block::<T, C, 2, 2>(tile, rows, scratch),
            (true, false) => block::<T, C, 2, 1>(tile, rows, scratch),
            (false, true) => block::<T, C, 1, 2>(tile, rows, scratch),
            (false, false) => block::<T, C, 1, 1>(tile, rows, scratch),
        }
    }
}

/// Divides rows among the fewest registers that hold them, two per block. An odd register comes last, and is full if any is.
fn blocks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let registers = rows.div_ceil(SIDE);
    let pairs = registers / 2;
    let alone = if registers % 2 == 1 { rows.min(SIDE) } else { 0 };
    let paired = rows - alone;
    let last = (alone > 0).then_some(paired..rows);
    (0..pairs).map(move |i| paired * i / pairs..paired * (i + 1) / pairs).chain(last)
}

/// Computes a block of `R` by `L` registers.
///
/// # Safety
/// As for [`multiply`]; registers are configured.
#[inline(always)]
unsafe fn block<T, C, const R: usize, const L: usize>(tile: &Tile<C>, rows: usize, scratch: &mut MaybeUninit<Scratch>)
where
    T: TileRegisters,
    C: Element,
{
    const { assert!(R <= 2 && L <= 2 && <T::Vectors as Lanes>::LANES == SIDE) };
    let scratch = scratch.as_mut_ptr();
    // SAFETY: the caller's promise; copies and sums lie in the scratch.
    unsafe {
        let second = if R == 2 { rows - SIDE } else { 0 };
        T::zero::<0>();
        T::zero::<1>();
        T::zero::<2>();
        T::zero::<3>();
        for first in (0..tile.depth).step_by(SIDE) {
            let words = (tile.depth - first).min(SIDE);
            let mut a = [0, second].map(|row| tile.a.add(row * tile.stride + first));
            let mut b = [0, SIDE].map(|column| tile.b.add(first * COLUMNS + column));
            let (mut a_stride, mut b_stride) = (tile.stride, COLUMNS);
            if rows < SIDE || words < SIDE {
                for (from, to) in a.iter_mut().zip(&mut (*scratch).a).take(R) {
                    *from = fill_up(*from, a_stride, rows.min(SIDE), words, to);
                }
                a_stride = SIDE;
            }
            if words < SIDE {
                for (from, to) in b.iter_mut().zip(&mut (*scratch).b).take(L) {
                    *from = fill_up(*from, b_stride, words, SIDE, to);
                }
                b_stride = SIDE;
            }
            // A matmul takes as long as two loads, which run in parallel with it.
            T::load::<{ A[0] }>(a[0], a_stride);
            T::load::<{ B[0] }>(b[0], b_stride);
            T::multiply_add::<0, { A[0] }, { B[0] }>();
            if L == 2 {
                T::load::<{ B[1] }>(b[1], b_stride);
                T::multiply_add::<1, { A[0] }, { B[1] }>();
            }
            if R == 2 {
                T::load::<{ A[1] }>(a[1], a_stride);
                T::multiply_add::<2, { A[1] }, { B[0] }>();
            }
            if R == 2 && L == 2 {
                T::multiply_add::<3, { A[1] }, { B[1] }>();
            }
        }
        let sums = (&raw mut (*scratch).sums).cast::<f32>();
        store_sums::<T, R, L>(sums, second);
        finish::<T::Vectors, C>(tile, rows, sums, COLUMNS);
    }
}

/// Stores the accumulators of a block of `R` by `L` registers as rows of `COLUMNS` sums. The second register's rows begin at `second`.
///
/// # Safety
/// Registers are configured; `sums` has the rows.
#[inline(always)]
unsafe fn store_sums<T: TileRegisters, const R: usize, const L: usize>(sums: *mut f32, second: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let below = sums.add(second * COLUMNS);
        T::store::<0>(sums, COLUMNS);
        if L == 2 {
            T::store::<1>(sums.add(SIDE), COLUMNS);
        }
        if R == 2 {
            T::store::<2>(below, COLUMNS);
        }
        if R == 2 && L == 2 {
            T::store::<3>(below.add(SIDE), COLUMNS);
        }
    }
}

/// Copies rows of words, which begin `stride` words apart, to the first rows of a register's image. The rest is zero.
///
/// # Safety
/// The rows are valid.
#[inline(always)]
unsafe fn fill_up(
    from: *const f32,
    stride: usize,
    rows: usize,
    words: usize,
    to: &mut [[f32; SIDE]; SIDE],
) -> *const f32 {
    *to = [[0.0; SIDE]; SIDE];
    for (i, to) in to.iter_mut().enumerate().take(rows) {
        // SAFETY: the caller's promise; no row has more than `SIDE` words.
        unsafe { std::ptr::copy_nonoverlapping(from.add(i * stride), to.as_mut_ptr(), words) };
    }
    to.as_ptr().cast()
}

/// Operations of one round of [`flood`]; a multiplication and its addition count as two.
pub(crate) const FLOOD_OPERATIONS: usize = 4 * 2 * SIDE * SIDE * 2 * SIDE;

/// Adds products of ones to each of four accumulators, and returns the sum at one position.
///
/// # Safety
/// The registers are available.
#[inline(always)]
pub(super) unsafe fn flood<T: TileRegisters>(rounds: usize) -> f32 {
    let mut values = [[f32::from_bits(0x3f80_3f80); SIDE]; SIDE];
    // SAFETY: the caller's promise; a register's image has its size.
    unsafe {
        T::configure();
        T::zero::<0>();
        T::zero::<1>();
        T::zero::<2>();
        T::zero::<3>();
        T::load::<{ A[0] }>(values.as_ptr().cast(), SIDE);
        T::load::<{ B[0] }>(values.as_ptr().cast(), SIDE);
        for _ in 0..rounds {
            T::multiply_add::<0, { A[0] }, { B[0] }>();
            T::multiply_add::<1, { A[0] }, { B[0] }>();
            T::multiply_add::<2, { A[0] }, { B[0] }>();
            T::multiply_add::<3, { A[0] }, { B[0] }>();
        }
        T::store::<3>(values.as_mut_ptr().cast(), SIDE);
        T::release();
    }
    values[SIDE - 1][SIDE - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_full_registers() {
        let check = |rows, ends: &[usize]| {
            assert_eq!(blocks(rows).map(|block| block.end).collect::<Vec<_>>(), ends, "{rows}");
        };
        check(1, &[1]);
        check(16, &[16]);
        check(17, &[17]);
        check(32, &[32]);
        check(33, &[17, 33]);
        check(84, &[28, 56, 84]);
        check(100, &[28, 56, 84, 100]);
        for rows in 1..500 {
            let (mut next, mut registers) = (0, 0);
            for block in blocks(rows) {
                assert_eq!(block.start, next);
                assert!(block.len() <= ROWS && (block.len() >= SIDE || rows < SIDE), "{rows}: {block:?}");
                (next, registers) = (block.end, registers + block.len().div_ceil(SIDE));
            }
            assert_eq!((next, registers), (rows, rows.div_ceil(SIDE)));
        }
    }

    #[test]
    fn a_round_does_the_operations_that_it_counts() {
        for rounds in [0, 1, 5] {
            // SAFETY: emulated registers are available on any machine.
            let sum = unsafe { flood::<Emulated>(rounds) };
            // The sum at each position of four accumulators.
            let operations = 2.0 * sum * (4 * SIDE * SIDE) as f32;
            assert_eq!(if rounds == 0 { 0 } else { operations as usize }, rounds * FLOOD_OPERATIONS);
        }
    }
}
