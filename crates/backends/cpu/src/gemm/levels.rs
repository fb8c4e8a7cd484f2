//! The tables of tiles of each level: their height depends on the number of registers.

/// Any machine: tiles of up to 4 rows x 8 columns, small enough for the 16 short vector registers that
/// every 64-bit machine has.
pub(super) mod portable {
    crate::gemm::tile::tiles!(crate::isa::Portable, [1, 2, 3, 4], [1, 2, 3]);
}

/// AVX2: tiles of up to 6 rows x 16 columns: 12 accumulators, two vectors of B and one broadcast of A in 16 registers.
/// Pairs of bf16 are split for two multiply-adds, which takes registers from the accumulators.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    crate::gemm::tile::tiles!(crate::isa::Avx2, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4], "avx2,fma");
}

/// AVX-512: tiles of up to 14 rows x 32 columns: 28 accumulators, two vectors of B and one broadcast of A in 32
/// registers. Pairs of bf16 are split for two multiply-adds here, which takes registers from the accumulators.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    crate::gemm::tile::tiles!(
        crate::isa::Avx512,
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
    );
}

/// AVX-512 with the dot product of bf16 pairs: tiles of up to 14 rows x 32 columns in both precisions.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_bf16 {
    crate::gemm::tile::tiles!(
        crate::isa::Avx512Bf16,
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
        "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
    );
}

/// NEON: tiles of up to 12 rows x 8 columns: 24 accumulators, two vectors of B and one broadcast of A in 32 registers. Pairs of
/// bf16 are split for two multiply-adds here, which takes registers from the accumulators.
#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    crate::gemm::tile::tiles!(crate::isa::Neon, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// NEON with the dot product of bf16 pairs, an instruction without intrinsic: the compiler unrolls only 9 rows of them.
#[cfg(target_arch = "aarch64")]
pub(super) mod neon_bf16 {
    crate::gemm::tile::tiles!(
        crate::isa::NeonBf16,
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        [1, 2, 3, 4, 5, 6, 7, 8, 9],
        "bf16"
    );
}
