//! Moving averages of weights and running statistics, with the same bits at every instruction-set level.

use crate::inlined::inlined;
use crate::isa::Simd;
use crate::region::Region;
use crate::sweep::{self, Pass, Piece};
use crate::workspace::Context;

/// Moves averages towards values, or copies these.
struct Move<const COPY: bool> {
    values: Region<f32>,
    averages: Region<f32>,
    share: f32,
}

impl<const COPY: bool> Pass for Move<COPY> {
    const BF16: bool = false;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            let n = S::LANES;
            let mut moved = S::load(self.values.at(index, n));
            if !COPY {
                let average = S::load(self.averages.at(index, n));
                moved = S::add(average, S::mul(S::splat(self.share), S::sub(moved, average)));
            }
            S::store(self.averages.at(index, n), moved);
        }
    }
}

/// Values and their averages, region by region, divided into tasks.
#[derive(Clone, Debug)]
pub(crate) struct Averages {
    /// Pairs of a region of values and a region of their averages, of the same length.
    regions: Vec<[Region<f32>; 2]>,
    /// The share of the difference that a step adds to the average.
    share: f32,
    pieces: Vec<Piece>,
}

impl Averages {
    pub(crate) fn new(regions: Vec<[Region<f32>; 2]>, decay: f32) -> Self {
        let pieces = Piece::cut(regions.iter().map(|[values, _]| 0..values.len()));
        Averages { regions, share: (1.0 - f64::from(decay)) as f32, pieces }
    }

    /// Moves every average; the first step copies. `step` counts from 1.
    ///
    /// # Safety
    /// Regions are valid, and averages do not overlap values.
    pub(crate) unsafe fn run(&self, context: &mut Context, step: u64) {
        // SAFETY: the caller's promise.
        unsafe { if step == 1 { self.sweep::<true>(context) } else { self.sweep::<false>(context) } }
    }

    unsafe fn sweep<const COPY: bool>(&self, context: &mut Context) {
        let pass = |piece: &Piece| {
            let [values, averages] = self.regions[piece.range];
            Move::<COPY> { values, averages, share: self.share }
        };
        // SAFETY: the caller's promise.
        unsafe { sweep::pieces(context, &self.pieces, pass) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Edge, Guarded};
    use crate::test_support::{assert_near, available, noise};
    use crate::workspace::Workspace;

    #[test]
    fn three_steps_equal_the_formula() {
        let sizes = [5, 20_001];
        let mut bits = Vec::new();
        for isa in available() {
            // The contents before the first step are not read.
            let mut averages = sizes.map(|n| Guarded::filled(Edge::Last, f32::NAN, n));
            let mut expected = sizes.map(|n| vec![0.0; n]);
            let context = &mut Context::new(2, isa, Workspace::default()).unwrap();
            for step in 1..=3 {
                let values = sizes.map(|n| Guarded::new(Edge::Last, &noise(step, n)));
                for (values, expected) in values.iter().zip(&mut expected) {
                    for (value, average) in values.iter().zip(expected) {
                        let share = if step == 1 { 1.0 } else { 0.25 };
                        *average += share * (f64::from(*value) - *average);
                    }
                }
                let regions = values.iter().zip(&mut averages).map(|(a, b)| [Region::of(a), Region::of_mut(b)]);
                // SAFETY: live buffers of the same lengths.
                unsafe { Averages::new(regions.collect(), 0.75).run(context, step) };
            }
            for (found, expected) in averages.iter().zip(&expected) {
                assert_near(isa.name(), found, expected, 1e-6);
            }
            bits.push(averages.iter().flat_map(|found| found.iter().map(|v| v.to_bits())).collect::<Vec<_>>());
        }
        assert!(bits.windows(2).all(|pair| pair[0] == pair[1]), "the bits differ between levels");
    }
}
