//! The CPU device: SIMD kernels, a thread pool, and the program that runs a plan on them.

mod batch_norm;
mod conv;
mod elementwise;
mod gemm;
mod isa;
mod loss;
mod optimizer;
mod pack;
mod pool;
mod pooling;
mod region;
mod scratch;
mod sweep;
#[cfg(test)]
mod test_support;

pub use isa::Isa;
