//! The instruction sets for which there are kernels. All give the same bits.

/// What the kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Plain Rust.
    Plain,
    /// AVX2, and the proof that the processor has it.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Level {
    /// The fastest of this machine.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(has) = Avx2::detect() {
            return Level::Avx2(has);
        }
        Level::Plain
    }

    /// Runs code that shifts by many numbers: AVX2 comes with instructions for that.
    #[inline(always)]
    pub fn with_bits<T>(self, run: impl FnOnce() -> T) -> T {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "bmi1,bmi2")]
        fn compiled<T>(run: impl FnOnce() -> T) -> T {
            run()
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the proof of AVX2 is that of these too.
            Level::Avx2(_) => unsafe { compiled(run) },
            Level::Plain => run(),
        }
    }
}

/// Exists only where the processor has AVX2 and BMI, which have always come together.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    fn detect() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
        has.then_some(Avx2(()))
    }
}
