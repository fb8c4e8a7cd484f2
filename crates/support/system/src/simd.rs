//! The vector instructions of this machine, for kernels that give the same bits with any of them.
//!
//! A level that needs instructions is the proof that the processor has them: nothing but [`SimdLevel::all`] makes one.

/// What kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimdLevel {
    /// Plain Rust.
    Plain,
    /// AVX2, and the proof.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 with its permutations of bytes and its sums of products, and the proof.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON, which every processor of this architecture has.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl SimdLevel {
    /// Those of this machine, the fastest last.
    pub fn all() -> impl Iterator<Item = SimdLevel> {
        #[cfg(target_arch = "x86_64")]
        let vectors = [Avx2::detect().map(SimdLevel::Avx2), Avx512::detect().map(SimdLevel::Avx512)];
        #[cfg(target_arch = "aarch64")]
        let vectors = [Some(SimdLevel::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let vectors = [None];
        [SimdLevel::Plain].into_iter().chain(vectors.into_iter().flatten())
    }
}

impl Default for SimdLevel {
    /// The fastest of this machine.
    fn default() -> Self {
        SimdLevel::all().last().unwrap_or(SimdLevel::Plain)
    }
}

/// Exists only where the processor has AVX2 and BMI, which have always come together.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    fn detect() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
        has.then_some(Avx2(()))
    }
}

/// Exists only where the processor has AVX-512 (F, BW, VL, VBMI, VNNI), and all of [`Avx2`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(Avx2);

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
