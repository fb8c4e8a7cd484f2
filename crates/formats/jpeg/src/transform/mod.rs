//! Inverse cosine transforms of blocks, up to four at a time: libjpeg's `jidctint.c` for 8×8 samples, `jidctred.c` for fewer.
//!
//! Sums saturate where libjpeg-turbo's vectors do, so damaged data give the same pixels at every level.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod order;
mod plain;

pub(crate) use order::{PLACES, is_first_row};

use enmasse_system::simd::SimdLevel;

/// Blocks of a group.
const GROUP: usize = 4;

/// Coefficients of a block, in the order of [`PLACES`].
pub(crate) type Block = [i16; 64];

/// Blocks that are transformed at once. With fewer of them the processor would wait more often for the coefficients written last.
#[derive(Clone, Debug)]
#[repr(align(32))]
pub(crate) struct Group([Block; GROUP]);

impl Group {
    /// Blocks of zeros.
    pub const ZERO: Group = Group([[0; 64]; GROUP]);
}

/// Where a block's samples go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Index of the first sample.
    pub at: usize,
    /// Distance of rows.
    pub stride: usize,
    /// Samples along the edge: 8, 4, 2 or 1.
    pub edge: usize,
}

impl Target {
    /// The index after the last sample.
    fn end(&self) -> usize {
        self.at + (self.edge - 1) * self.stride + self.edge
    }
}

/// Turns blocks into samples. A block waits until there are four.
pub(crate) struct Transforms<'a> {
    level: SimdLevel,
    group: &'a mut Group,
    samples: &'a mut [u8],
    /// The first `waiting` blocks wait. Their edges are the same.
    targets: [Target; GROUP],
    waiting: usize,
}

impl<'a> Transforms<'a> {
    /// Writes to `samples`. `group` must be zero, and is zero at the end.
    pub fn new(level: SimdLevel, group: &'a mut Group, samples: &'a mut [u8]) -> Self {
        let nowhere = Target { at: 0, stride: 0, edge: 0 };
        Transforms { level, group, samples, targets: [nowhere; GROUP], waiting: 0 }
    }

    /// A block of zeros for the coefficients of a block of this edge.
    #[inline(always)]
    pub fn room(&mut self, edge: usize) -> &mut Block {
        if self.waiting > 0 && self.targets[0].edge != edge {
            self.flush();
        }
        &mut self.group.0[self.waiting % GROUP]
    }

    /// Transforms the block whose coefficients have been put into its [`room`](Self::room).
    #[inline(always)]
    pub fn push(&mut self, target: Target) {
        self.targets[self.waiting % GROUP] = target;
        self.waiting += 1;
        if self.waiting == GROUP {
            self.flush();
        }
    }

    /// The same for a block whose other coefficients are zero, so that all samples are the same.
    #[inline(always)]
    pub fn push_flat(&mut self, target: Target) {
        let first = std::mem::take(&mut self.group.0[self.waiting % GROUP][0]);
        self.fill(first, target);
    }

    /// Fills a block of which only the first coefficient matters.
    #[inline(always)]
    pub fn fill(&mut self, first: i16, target: Target) {
        let sample = plain::flat(first);
        let rows = self.samples[target.at..target.end()].chunks_mut(target.stride);
        if target.edge == 8 {
            rows.for_each(|row| *row.first_chunk_mut().expect("a row of eight") = [sample; 8]);
        } else {
            rows.for_each(|row| row[..target.edge].fill(sample));
        }
    }

    /// Transforms the blocks that still wait.
    pub fn flush(&mut self) {
        let targets = &self.targets[..std::mem::take(&mut self.waiting)];
        if targets.is_empty() {
            return;
        }
        match self.level {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(has) => avx2::inverse(has.avx2(), self.group, targets, self.samples),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(has) => avx2::inverse(has, self.group, targets, self.samples),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon => neon::inverse(self.group, targets, self.samples),
            SimdLevel::Plain => plain::inverse(self.group, targets, self.samples),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Small coefficients, as in images, and any at all.
        #[test]
        fn levels_agree(
            coefficients in prop::collection::vec(any::<i16>(), 6 * 64),
            shift in 0u32..13,
            edge in prop::sample::select(&[8usize, 4, 2, 1]),
            blocks in 1..=6usize,
        ) {
            let run = |level: SimdLevel| {
                let mut samples = vec![7; 8 * 60];
                let mut group = Group::ZERO;
                let mut transforms = Transforms::new(level, &mut group, &mut samples);
                for (number, coefficients) in coefficients.as_chunks::<64>().0.iter().take(blocks).enumerate() {
                    *transforms.room(edge) = coefficients.map(|coefficient| coefficient >> shift);
                    transforms.push(Target { at: 9 * number, stride: 60, edge });
                }
                transforms.flush();
                prop_assert!(group.0 == Group::ZERO.0);
                Ok(samples)
            };
            prop_assert_eq!(run(SimdLevel::default())?, run(SimdLevel::Plain)?);
        }
    }

    /// The definition of the transform (ITU-T T.81, A.3.3), to within the rounding that it allows.
    #[test]
    fn samples_are_near_those_of_the_definition() {
        use std::f64::consts::PI;
        for seed in 0..200usize {
            let coefficient = |at: usize| match (at * 31 + seed * 17) % 5 {
                _ if at == 0 => (seed * 37 % 1600) as f64 - 800.0,
                0 => (at * 7919 + seed * 104_729) as f64 % 120.0 - 60.0,
                _ => 0.0,
            };
            let mut samples = vec![0; 64];
            let mut group = Group::ZERO;
            let mut transforms = Transforms::new(SimdLevel::default(), &mut group, &mut samples);
            let into = transforms.room(8);
            for at in 0..64 {
                into[order::place(at / 8, at % 8)] = coefficient(at) as i16;
            }
            transforms.push(Target { at: 0, stride: 8, edge: 8 });
            transforms.flush();
            for (at, &sample) in samples.iter().enumerate() {
                let y = (at / 8) as f64;
                let x = (at % 8) as f64;
                let wave = |frequency: usize, place: f64| {
                    let norm = if frequency == 0 { 0.5f64.sqrt() } else { 1.0 };
                    norm * ((2.0 * place + 1.0) * frequency as f64 * PI / 16.0).cos()
                };
                let sum: f64 =
                    (0..64).map(|at| coefficient(at) as i16 as f64 * wave(at / 8, y) * wave(at % 8, x)).sum();
                let expected = (sum / 4.0 + 128.0).clamp(0.0, 255.0);
                assert!((f64::from(sample) - expected).abs() < 0.6, "{seed} {at}: {sample} for {expected}");
            }
        }
    }
}
