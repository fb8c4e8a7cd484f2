//! The instruction sets for which there are kernels. All give the same bits.

/// What the kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Plain Rust.
    Plain,
    /// AVX2, and the proof that the processor has it.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 with its instructions for bytes, and the proof.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// Those of this machine, the fastest last.
    pub fn all() -> impl Iterator<Item = Level> {
        #[cfg(target_arch = "x86_64")]
        let vectors = [Avx2::detect().map(Level::Avx2), Avx512::detect().map(Level::Avx512)];
        #[cfg(not(target_arch = "x86_64"))]
        let vectors = [None];
        [Level::Plain].into_iter().chain(vectors.into_iter().flatten())
    }

    /// The fastest of this machine.
    pub fn best() -> Self {
        Level::all().last().unwrap_or(Level::Plain)
    }

    /// Runs code that counts bits, and shifts by many numbers: AVX2 comes with instructions for that.
    #[inline(always)]
    pub fn with_bits<T>(self, run: impl FnOnce() -> T) -> T {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "bmi1,bmi2,popcnt")]
        fn compiled<T>(run: impl FnOnce() -> T) -> T {
            run()
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the proof of AVX2 is that of these too.
            Level::Avx2(_) | Level::Avx512(_) => unsafe { compiled(run) },
            Level::Plain => run(),
        }
    }
}

/// Exists only where the processor has AVX2, BMI and POPCNT, which have always come together.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt");
        has.then_some(Avx2(()))
    }
}

/// Exists only where the processor has AVX-512 (F, BW, VL, VBMI, VBMI2), and all of [`Avx2`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx512(Avx2);

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2");
        Avx2::detect().filter(|_| has).map(Avx512)
    }

    /// The lesser proof.
    pub fn avx2(self) -> Avx2 {
        self.0
    }
}
