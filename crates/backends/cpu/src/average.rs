//! Averages of weights and running statistics over the steps, with the same bits at every instruction-set level.

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

/// Brings values and slow weights together, somewhere between them.
struct Join {
    values: Region<f32>,
    slow: Region<f32>,
    share: f32,
}

impl Pass for Join {
    const BF16: bool = false;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            let n = S::LANES;
            let value = S::load(self.values.at(index, n));
            let distance = S::sub(S::load(self.slow.at(index, n)), value);
            let joined = S::add(value, S::mul(S::splat(self.share), distance));
            S::store(self.values.at(index, n), joined);
            S::store(self.slow.at(index, n), joined);
        }
    }
}

/// Values and their averages, region by region, divided into tasks.
#[derive(Clone, Debug)]
pub(crate) struct Averages {
    /// Pairs of a region of values and a region of their averages, of the same length.
    regions: Vec<[Region<f32>; 2]>,
    pieces: Vec<Piece>,
}

impl Averages {
    pub(crate) fn new(regions: Vec<[Region<f32>; 2]>) -> Self {
        let pieces = Piece::cut(regions.iter().map(|[values, _]| 0..values.len()));
        Averages { regions, pieces }
    }

    /// Moves every average towards its value; the first step copies. `step` counts from 1.
    ///
    /// # Safety
    /// Regions are valid, and averages do not overlap values.
    pub(crate) unsafe fn follow(&self, context: &mut Context, decay: f32, step: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            if step == 1 { self.follow_by::<true>(context, decay) } else { self.follow_by::<false>(context, decay) }
        }
    }

    unsafe fn follow_by<const COPY: bool>(&self, context: &mut Context, decay: f32) {
        let share = remainder(decay);
        let pass = |piece: &Piece| {
            let [values, averages] = self.regions[piece.range];
            Move::<COPY> { values, averages, share }
        };
        // SAFETY: the caller's promise.
        unsafe { sweep::pieces(context, &self.pieces, pass) }
    }

    /// Moves averages by a share of the distance to their values, and sets both to what this gives.
    ///
    /// # Safety
    /// As [`Averages::follow`].
    pub(crate) unsafe fn join(&self, context: &mut Context, alpha: f32) {
        let share = remainder(alpha);
        let pass = |piece: &Piece| {
            let [values, slow] = self.regions[piece.range];
            Join { values, slow, share }
        };
        // SAFETY: the caller's promise.
        unsafe { sweep::pieces(context, &self.pieces, pass) }
    }
}

/// What a share leaves of one.
fn remainder(share: f32) -> f32 {
    (1.0 - f64::from(share)) as f32
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
                unsafe { Averages::new(regions.collect()).follow(context, 0.75, step) };
            }
            for (found, expected) in averages.iter().zip(&expected) {
                assert_near(isa.name(), found, expected, 1e-6);
            }
            bits.push(averages.iter().flat_map(|found| found.iter().map(|v| v.to_bits())).collect::<Vec<_>>());
        }
        assert!(bits.windows(2).all(|pair| pair[0] == pair[1]), "the bits differ between levels");
    }

    #[test]
    fn slow_weights_join_values_between_them() {
        for (n, alpha) in [(1, 0.5), (5, 1.0), (37, 0.25), (20_001, 0.875)] {
            let [values, slow] = [1, 2].map(|key| noise(key, n));
            let mut bits = Vec::new();
            let between = |(value, slow): (&f32, &f32)| {
                let (value, slow) = (f64::from(*value), f64::from(*slow));
                slow + f64::from(alpha) * (value - slow)
            };
            let expected: Vec<f64> = values.iter().zip(&slow).map(between).collect();
            for isa in available() {
                let mut found = [&values, &slow].map(|of| Guarded::new(Edge::Last, of));
                let context = &mut Context::new(2, isa, Workspace::default()).unwrap();
                let regions = found.each_mut().map(|of| Region::of_mut(of));
                // SAFETY: live buffers of the same lengths.
                unsafe { Averages::new(vec![regions]).join(context, alpha) };
                let [values, slow] = found.each_ref().map(|of| of.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
                assert!(values == slow, "{n} values differ from slow weights");
                assert_near(isa.name(), &found[0], &expected, 1e-6);
                bits.push(values);
            }
            assert!(bits.windows(2).all(|pair| pair[0] == pair[1]), "the bits differ between levels");
        }
    }
}
