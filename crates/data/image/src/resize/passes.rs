//! The two passes of a resize, by the kernels of a level. All levels give the same bits.

use super::pass::Pass;
use super::plain;
use crate::level::Level;

/// Runs passes. Keeps what it prepares for vectors between calls.
#[derive(Default)]
pub(super) struct Passes {
    level: Level,
    #[cfg(target_arch = "x86_64")]
    pairs: super::pairs::Pairs,
    #[cfg(target_arch = "x86_64")]
    groups: super::avx512::Groups,
}

impl Passes {
    #[cfg(any(test, fuzzing))]
    pub fn at(level: Level) -> Self {
        Passes {
            level,
            #[cfg(target_arch = "x86_64")]
            pairs: Default::default(),
            #[cfg(target_arch = "x86_64")]
            groups: Default::default(),
        }
    }

    /// The pass along rows. The taps are those of columns.
    pub fn horizontal(&mut self, pass: &Pass, out: &mut [u8]) {
        if pass.taps.copies {
            return pass.copy(out);
        }
        match self.level {
            Level::Plain => plain::horizontal(pass, out),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(has) => super::avx2::horizontal(has, pass, &mut self.pairs, out),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(has) => {
                if !super::avx512::horizontal(has, pass, &mut self.pairs, &mut self.groups, out) {
                    super::avx2::horizontal(has.avx2(), pass, &mut self.pairs, out);
                }
            }
        }
    }

    /// The pass across rows. The taps are those of rows.
    pub fn vertical(&mut self, pass: &Pass, out: &mut [u8]) {
        if pass.taps.copies {
            return pass.copy(out);
        }
        match self.level {
            Level::Plain => plain::vertical(pass, out),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(has) => super::avx2::vertical(has, pass, &mut self.pairs, out),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(has) => super::avx512::vertical(has, pass, &mut self.pairs, out),
        }
    }
}
