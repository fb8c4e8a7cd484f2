//! AVX2: tiles of up to 6 rows x 16 columns: 12 accumulators, two vectors of B and one broadcast of A in 16 registers.
//! Pairs of bf16 are split for two multiply-adds, which takes registers from the accumulators.
#![cfg(target_arch = "x86_64")]

super::tile::tiles!(crate::isa::Avx2, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4], "avx2,fma");
