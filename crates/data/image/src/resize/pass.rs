//! One pass of a resize.

use super::taps::Taps;

/// One pass over the rows of an image.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    /// The rows, which begin `stride` bytes apart, from the first position on that the taps read.
    pub from: &'a [u8],
    pub stride: usize,
    pub taps: &'a Taps,
    /// Bytes of a row of the result, which has no gaps.
    pub row_bytes: usize,
}

impl Pass<'_> {
    /// The result of taps that change nothing.
    pub fn copy(&self, out: &mut [u8]) {
        let rows = self.from.chunks(self.stride).zip(out.chunks_exact_mut(self.row_bytes));
        rows.for_each(|(row, out)| out.copy_from_slice(&row[..self.row_bytes]));
    }
}
