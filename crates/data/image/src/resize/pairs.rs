//! Taps in pairs, for instructions that add two products of numbers of 16 bits.
//!
//! A weight has too many bits for such a number: 23 and a sign. So it is split into a high part with the sign and 15 low bits, whose
//! sums are put together at the end.

use super::pass::Pass;
use super::taps::Taps;

/// Bits of the lower part of a weight.
pub(super) const LOW: u32 = 15;
const LOW_BITS: i32 = (1 << LOW) - 1;

/// The low parts of two weights as one word, and their high parts.
pub(super) type Pair = [i32; 2];

/// The rows that make one row of the result.
pub(super) struct Rows {
    /// Where row 0 begins. The others follow `stride` bytes apart.
    from: *const u8,
    stride: usize,
    /// The first one that counts, and the last one there is, which stands for those after it.
    start: usize,
    last: usize,
}

impl Rows {
    /// Where a row begins, counted from the first one that counts.
    #[inline(always)]
    pub fn at(&self, row: usize) -> *const u8 {
        self.from.wrapping_add((self.start + row).min(self.last) * self.stride)
    }
}

/// The weights of a pass in pairs, the same number for each output. Missing positions have no weight.
#[derive(Default)]
pub(super) struct Pairs {
    weights: Vec<Pair>,
    /// Pairs of an output.
    pub each: usize,
}

impl Pairs {
    /// Makes them from `taps`, a multiple of `unit` for each output.
    pub fn compute(&mut self, taps: &Taps, unit: usize) {
        let outputs = || (0..taps.outputs.len()).map(|output| taps.of(output).1);
        let most = outputs().map(<[i32]>::len).max().unwrap_or(0);
        self.each = most.div_ceil(2).next_multiple_of(unit);
        self.weights.clear();
        for weights in outputs() {
            let weight = |at: usize| weights.get(at).copied().unwrap_or(0);
            let word = |first: i32, second: i32| first & 0xFFFF | second << 16;
            self.weights.extend((0..self.each).map(|pair| {
                let first = weight(2 * pair);
                let second = weight(2 * pair + 1);
                [word(first & LOW_BITS, second & LOW_BITS), word(first >> LOW, second >> LOW)]
            }));
        }
    }

    /// The pass across rows: calls `mix` for each row of `out`.
    ///
    /// # Safety
    /// `mix` reads of each of its rows only as many bytes as `out` has in one.
    pub unsafe fn across(&mut self, pass: &Pass, out: &mut [u8], mix: unsafe fn(&Rows, &[Pair], &mut [u8])) {
        let &Pass { from, stride, taps, row_bytes } = pass;
        self.compute(taps, 1);
        let (first, end) = taps.span();
        let last = end - first - 1;
        assert!(from.len() >= last * stride + row_bytes);
        for (y, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let rows = Rows { from: from.as_ptr(), stride, start: taps.outputs[y].0 - first, last };
            // SAFETY: all rows up to `last` are in `from`; the rest is the caller's promise.
            unsafe { mix(&rows, self.of(y), out) };
        }
    }

    /// Those of output `i`.
    pub fn of(&self, i: usize) -> &[Pair] {
        &self.weights[i * self.each..][..self.each]
    }
}
