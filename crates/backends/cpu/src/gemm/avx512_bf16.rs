//! AVX-512 with the dot product of bf16 pairs: tiles of up to 14 rows x 32 columns in both precisions.
#![cfg(target_arch = "x86_64")]

super::tile::tiles!(
    crate::isa::Avx512Bf16,
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
