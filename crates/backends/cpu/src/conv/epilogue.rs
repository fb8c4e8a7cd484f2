//! What is done with each piece of a convolution's result while it is in cache.

use std::ops::Range;

use crate::inlined::each_vector;
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::sweep::Pass;

/// An operation on elements of a result that are complete. Every [`Pass`] is one.
pub(crate) trait Epilogue: Sync {
    /// Processes some channels of rows, which are given by the indices of their first elements. A place is a number that many rows have
    /// in common, whose pieces come in the same order however many threads there are. Those of the same channels never come at once.
    ///
    /// # Safety
    /// As for [`Pass::at`], for each of the elements; the level is available.
    unsafe fn run(&self, isa: Isa, place: usize, rows: &[usize], channels: Range<usize>);
}

impl<P: Pass> Epilogue for P {
    unsafe fn run(&self, isa: Isa, _: usize, rows: &[usize], channels: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { dispatch(isa, Piece { pass: self, rows, channels }) }
    }
}

struct Piece<'a, P> {
    pass: &'a P,
    rows: &'a [usize],
    channels: Range<usize>,
}

impl<P: Pass> Kernel for Piece<'_, P> {
    const BF16: bool = P::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for &row in self.rows {
            // SAFETY: the caller's promise, for every element of the piece once.
            unsafe { each_vector!(S, channel in self.channels.clone() => self.pass, at(row + channel, channel)) }
        }
    }
}
