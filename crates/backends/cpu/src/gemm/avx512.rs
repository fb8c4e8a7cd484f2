//! AVX-512: tiles of up to 14 rows x 32 columns: 28 accumulators, two vectors of B and one broadcast of A in 32
//! registers. Pairs of bf16 are split for two multiply-adds here, which takes registers from the accumulators.
#![cfg(target_arch = "x86_64")]

super::tile::tiles!(
    crate::isa::Avx512,
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
