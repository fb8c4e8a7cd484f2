//! The two passes of a resize, by the kernels of a level. All levels give the same bits.

use enmasse_system::simd::SimdLevel;

use super::pass::Pass;
use super::plain;

/// Runs passes. Keeps what it prepares for vectors between calls.
#[derive(Default)]
pub(super) struct Passes {
    level: SimdLevel,
    #[cfg(target_arch = "x86_64")]
    pairs: super::pairs::Pairs,
    #[cfg(target_arch = "x86_64")]
    groups: super::avx512::Groups,
    #[cfg(target_arch = "aarch64")]
    fours: super::neon::Fours,
}

impl Passes {
    #[cfg(any(test, fuzzing))]
    pub fn at(level: SimdLevel) -> Self {
        Passes { level, ..Passes::default() }
    }

    /// The pass along rows. The taps are those of columns.
    pub fn horizontal(&mut self, pass: &Pass, out: &mut [u8]) {
        if pass.taps.copies {
            return pass.copy(out);
        }
        match self.level {
            SimdLevel::Plain => plain::horizontal(pass, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(has) => super::avx2::horizontal(has, pass, &mut self.pairs, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(has) => {
                if !super::avx512::horizontal(has, pass, &mut self.pairs, &mut self.groups, out) {
                    super::avx2::horizontal(has.avx2(), pass, &mut self.pairs, out);
                }
            }
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon => super::neon::horizontal(pass, &mut self.fours, out),
        }
    }

    /// The pass across rows. The taps are those of rows.
    pub fn vertical(&mut self, pass: &Pass, out: &mut [u8]) {
        if pass.taps.copies {
            return pass.copy(out);
        }
        match self.level {
            SimdLevel::Plain => plain::vertical(pass, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(has) => super::avx2::vertical(has, pass, &mut self.pairs, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(has) => super::avx512::vertical(has, pass, &mut self.pairs, out),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon => super::neon::vertical(pass, out),
        }
    }
}
