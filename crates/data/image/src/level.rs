//! The instruction sets for which there are kernels. All give the same bits.

/// What the kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Plain Rust.
    Plain,
    /// AVX2, and the proof that the processor has it.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 with its permutations of bytes and its sums of products, and the proof.
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
}

impl Default for Level {
    /// The fastest of this machine.
    fn default() -> Self {
        Level::all().last().unwrap_or(Level::Plain)
    }
}

/// Exists only where the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Avx2(()))
    }
}

/// Exists only where the processor has AVX-512 (F, BW, VL, VBMI, VNNI), and AVX2.
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
            && is_x86_feature_detected!("avx512vnni");
        Avx2::detect().filter(|_| has).map(Avx512)
    }

    /// The lesser proof.
    pub fn avx2(self) -> Avx2 {
        self.0
    }
}
