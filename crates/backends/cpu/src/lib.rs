//! The CPU device: SIMD kernels, a thread pool, and the program that runs a plan on them.
//!
//! Use it through `enmasse_device::Device`, or its kernels' oracle, the reference, in its place.
//!
//! ```
//! use enmasse_cpu::{Cpu, CpuOptions};
//! use enmasse_device::{Device, HostBatch, StepInputs};
//! use enmasse_graph::{CompileOptions, Mode, Phase, Tensor, compile};
//!
//! let model = |x: Tensor| x.flatten().linear("fc", 10);
//! let plans = compile(&model, &CompileOptions::new("softmax", 2, 4, 10))?;
//! let mut program = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() })?.compile(plans, None)?;
//! let (images, sample_indices) = (vec![7; 2 * 4 * 4 * 3], vec![0, 1]);
//! let batch = HostBatch { images, labels: vec![3, -1], sample_indices, ..HostBatch::default() };
//! let inputs = StepInputs { learning_rate: 0.1, ..StepInputs::evaluation(batch.into()) };
//! let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs)?;
//! // Parameters are zero, so the loss of the one sample is ln(10). The mean is over both places of the batch.
//! assert!((program.metrics(ticket)?.loss - 10f64.ln() / 2.0).abs() < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Kernels are loop nests generic over an instruction-set level, chosen at run time. The division of work into tasks
//! depends only on the problem's size, and every sum has one order, so **bits do not depend on the number of threads**.
//! A step allocates nothing: arenas and workspace are sized when the plans are compiled.

mod activation;
mod affinity;
mod algorithm;
mod attention;
mod average;
mod batch_norm;
mod channels;
mod collectives;
mod conv;
mod curve;
mod device;
mod element;
mod elementwise;
mod function;
mod gemm;
#[cfg(test)]
mod guard;
mod inlined;
mod instruction;
mod isa;
mod labels;
mod layer_norm;
mod loss;
mod norm;
mod open;
mod ops;
mod optimizers;
mod pack;
mod peak;
mod pointwise;
mod pool;
mod pooling;
mod prepare;
mod program;
mod region;
mod roofline;
mod samples;
mod statistics;
mod sweep;
#[cfg(test)]
mod test_support;
mod tokens;
mod tune;
mod workspace;

pub use affinity::{Cores, Pinned};
pub use device::{Cpu, CpuOptions};
pub use isa::Isa;
pub use open::open;
pub use peak::{Bandwidth, Matmul, Peaks, Rate, measure_peaks, peak_gflops};
