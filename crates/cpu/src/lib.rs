//! The CPU device: SIMD kernels, a thread pool, and the program that runs a plan on them.
