//! Inverse cosine transforms of blocks, two at a time: libjpeg's `jidctint.c` for 8×8 samples, `jidctred.c` for fewer.
//!
//! Sums saturate where libjpeg-turbo's vectors do, so damaged data give the same pixels at every level.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod plain;

use crate::level::Level;

/// Coefficients of two blocks: eight rows of eight of the one and eight of the other.
#[derive(Clone, Debug)]
#[repr(align(32))]
pub(crate) struct Pair(pub [i16; 128]);

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

/// Turns blocks into samples. A block waits for a second one.
pub(crate) struct Transforms<'a> {
    level: Level,
    pair: &'a mut Pair,
    samples: &'a mut [u8],
    waiting: Option<Target>,
}

impl<'a> Transforms<'a> {
    /// Writes to `samples`. `pair` must be zero, and is zero at the end.
    pub fn new(level: Level, pair: &'a mut Pair, samples: &'a mut [u8]) -> Self {
        Transforms { level, pair, samples, waiting: None }
    }

    /// Where the coefficients of a block of this edge belong, which are zero: in an array, from an index on. The rows are 16 apart.
    #[inline(always)]
    pub fn room(&mut self, edge: usize) -> (&mut [i16; 128], usize) {
        if self.waiting.is_some_and(|waiting| waiting.edge != edge) {
            self.flush();
        }
        (&mut self.pair.0, if self.waiting.is_some() { 8 } else { 0 })
    }

    /// Transforms the block whose coefficients have been put where [`room`](Self::room) said.
    #[inline(always)]
    pub fn push(&mut self, target: Target) {
        match self.waiting.take() {
            None => self.waiting = Some(target),
            Some(first) => self.transform([first, target]),
        }
    }

    /// The same for a block whose other coefficients are zero, so that all samples are the same.
    #[inline(always)]
    pub fn push_flat(&mut self, target: Target) {
        let offset = if self.waiting.is_some() { 8 } else { 0 };
        let first = std::mem::take(&mut self.pair.0[offset]);
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

    /// Transforms a block that still waits.
    pub fn flush(&mut self) {
        if let Some(alone) = self.waiting.take() {
            // The second one is written first.
            self.transform([alone, alone]);
        }
    }

    fn transform(&mut self, targets: [Target; 2]) {
        match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(has) => avx2::inverse(has, self.pair, targets, self.samples),
            Level::Plain => plain::inverse(self.pair, targets, self.samples),
        }
        self.pair.0.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Small coefficients, as in pictures, and any at all.
        #[test]
        fn levels_agree(
            coefficients in prop::collection::vec(any::<i16>(), 128),
            shift in 0u32..13,
            edge in prop::sample::select(&[8usize, 4, 2, 1]),
            alone: bool,
        ) {
            let run = |level: Level| {
                let mut samples = vec![7; 8 * 21];
                let mut pair = Pair([0; 128]);
                let mut transforms = Transforms::new(level, &mut pair, &mut samples);
                let targets = [0, 9].map(|at| Target { at, stride: 21, edge });
                for target in &targets[..if alone { 1 } else { 2 }] {
                    let (into, offset) = transforms.room(edge);
                    for (at, coefficient) in coefficients.iter().enumerate().filter(|(at, _)| at % 16 / 8 * 8 == offset) {
                        into[at] = coefficient >> shift;
                    }
                    transforms.push(*target);
                }
                transforms.flush();
                prop_assert!(pair.0.iter().all(|&coefficient| coefficient == 0));
                Ok(samples)
            };
            prop_assert_eq!(run(Level::best())?, run(Level::Plain)?);
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
            let mut pair = Pair([0; 128]);
            let mut transforms = Transforms::new(Level::best(), &mut pair, &mut samples);
            let (into, offset) = transforms.room(8);
            for at in 0..64 {
                into[at / 8 * 16 + at % 8 + offset] = coefficient(at) as i16;
            }
            transforms.push(Target { at: 0, stride: 8, edge: 8 });
            transforms.flush();
            for (at, &sample) in samples.iter().enumerate() {
                let (y, x) = ((at / 8) as f64, (at % 8) as f64);
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
