//! The CPU device: SIMD kernels, a thread pool, and the program that runs a plan on them.

mod conv;
mod gemm;
mod isa;
mod pack;
mod pool;
mod region;
mod scratch;
#[cfg(test)]
mod test_support;

pub use isa::Isa;
