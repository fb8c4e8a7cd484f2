//! Norms of gradients and weights. The division of sums depends only on the tensors, so bits depend neither on threads
//! nor on the level.

use std::ops::Range;

use crate::inlined::inlined;
use crate::isa::{Isa, Simd, values_ahead};
use crate::region::Region;
use crate::sweep::{self, Piece, Terms};
use crate::workspace::{Context, Workspace};

/// Number of sums that are accumulated side by side, at every level: the number of lanes of the widest vector.
const LANES: usize = 16;

/// Workspace per thread for [`squares`].
pub(crate) const SQUARES: Workspace = Workspace { shared: 0, private: LANES };

#[derive(Clone, Copy)]
struct Squares {
    x: Region<f32>,
}

impl Terms<1> for Squares {
    const BF16: bool = false;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) -> [S::V; 1] {
            let x = S::load(self.x.at(index, S::LANES));
            [S::mul(x, x)]
        }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize, count: usize) {
        self.x.prefetch(index, values_ahead::<f32>(), count);
    }
}

/// The sum of the squares of a piece's elements. The piece begins at a multiple of 16. `lanes` is the calling thread's
/// workspace.
///
/// # Safety
/// The piece lies in `x`, which is valid; no other code uses `lanes`.
pub(crate) unsafe fn squares(isa: Isa, x: Region<f32>, piece: &Piece, lanes: Region<f32>) -> f64 {
    debug_assert!(piece.start.is_multiple_of(LANES), "{piece:?}");
    let rows = piece.start / LANES..(piece.start + piece.len) / LANES;
    let rest = piece.start + piece.len - rows.end * LANES;
    // SAFETY: the caller's promise.
    let (sums, rest) = unsafe {
        sweep::sum_block(isa, rows.clone(), LANES, &Squares { x }, lanes.part(0, LANES));
        (lanes.slice(0, LANES), x.slice(rows.end * LANES, rest))
    };
    let whole: f64 = sums.iter().map(|&sum| f64::from(sum)).sum();
    whole + rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
}

/// The norm of tensors in a region, divided into tasks. The squares of each tensor are divided alike wherever it lies, so that it does not
/// matter which rank adds them up.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    x: Region<f32>,
    pieces: Vec<Piece>,
    /// Whether this rank adds up the squares of each tensor.
    is_own: Vec<bool>,
}

impl Norm {
    /// `tensors` begin at multiples of 16 elements of `x`.
    pub(crate) fn new(x: Region<f32>, tensors: impl IntoIterator<Item = (Range<usize>, bool)>) -> Self {
        let (tensors, is_own): (Vec<_>, _) = tensors.into_iter().unzip();
        Norm { x, pieces: Piece::cut(tensors), is_own }
    }

    /// Workspace for the partial sums of all pieces, in f64.
    pub(crate) fn workspace(&self) -> Workspace {
        SQUARES.max(Workspace { shared: 2 * self.pieces.len(), private: 0 })
    }

    /// The sums of [`Norm::add_squares`] in the workspace.
    pub(crate) fn sums(&self, context: &Context) -> Region<f64> {
        context.shared.cast::<f64>().part(0, self.pieces.len())
    }

    /// Adds up the squares of each piece; 0 for those of other ranks.
    ///
    /// # Safety
    /// Regions are valid; the context has [`Norm::workspace`].
    pub(crate) unsafe fn add_squares(&self, context: &mut Context) {
        let isa = context.isa;
        let sums = self.sums(context);
        let private = &context.private;
        context.pool.run(self.pieces.len(), |task, thread| {
            let piece = &self.pieces[task];
            // SAFETY: the caller's promise; each task has its own sum, and each thread its own workspace.
            unsafe {
                let own = self.is_own[piece.range].then(|| squares(isa, self.x, piece, private[thread]));
                *sums.at(task, 1) = own.unwrap_or(0.0);
            }
        });
    }

    /// Writes the norm to the single value of `norm`.
    ///
    /// # Safety
    /// As for [`Norm::add_squares`], which has run.
    pub(crate) unsafe fn finish(&self, context: &Context, norm: Region<f32>) {
        // SAFETY: the sums are complete.
        let total: f64 = unsafe { self.sums(context).slice(0, self.pieces.len()) }.iter().sum();
        // SAFETY: the caller's promise.
        unsafe { *norm.at(0, 1) = total.sqrt() as f32 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Edge, Guarded};
    use crate::test_support::{available, noise};

    #[test]
    fn norms_have_the_same_bits_at_any_level_and_number_of_threads() {
        for n in [1, 15, 16, 1000, 16_384, 50_001] {
            let x = Guarded::new(Edge::Last, &noise(7, n));
            let expected = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let mut bits = Vec::new();
            for isa in available() {
                for threads in [1, 3] {
                    let norm = Norm::new(Region::of(&x), [(0..n, true)]);
                    let mut found = [f32::NAN];
                    let context = &mut Context::new(threads, isa, norm.workspace()).unwrap();
                    // SAFETY: live buffers.
                    unsafe {
                        norm.add_squares(context);
                        norm.finish(context, Region::of_mut(&mut found));
                    }
                    let error = (f64::from(found[0]) - expected).abs() / expected;
                    assert!(error < 1e-6, "{n} {isa}: {found:?} is not {expected}");
                    bits.push(found[0].to_bits());
                }
            }
            assert!(bits.iter().all(|found| *found == bits[0]), "{n}: {bits:?}");
        }
    }
}
