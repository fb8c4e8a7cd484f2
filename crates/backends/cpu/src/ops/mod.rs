//! The operations of a plan as the CPU runs them, in files of the same names as graph's.
//!
//! Each takes its operands' addresses and returns an [`Instruction`]. All activations of a node are stored as one element type,
//! f32 or bf16, and its kernel is generic over that type. All other values (per-channel values, weights, matrices of a bf16
//! plan) are f32. Kernels that several operations share lie beside this folder.

mod activation;
mod adaptive_avg_pool;
mod add;
mod all_gather;
mod all_reduce;
mod attention;
mod average;
mod avg_pool;
mod batch_norm;
mod batch_norm_conv2d;
mod check_finite;
mod conv2d;
mod conv2d_batch_norm;
mod cross_entropy;
mod custom;
mod dropout;
mod flatten;
mod function;
mod gradient_norm;
mod layer_norm;
mod linear;
mod log_softmax;
mod lookahead;
mod loss_scale;
mod mask_samples;
mod max_pool;
mod multiply;
mod normalize;
mod pointwise;
mod replicate;
mod reshape;
mod sample_sum;
mod scale_classes;
mod share_metrics;
mod stages;
mod sum_classes;
mod sync;
mod targets;
mod tensor_parallel;
mod tokens;
mod top_k_correct;
mod update;

use enmasse_device::DeviceError;

use crate::element::Element;
use crate::instruction::{Instruction, fallible, kernel};
use crate::prepare::{Operand, Side};
use crate::workspace::Workspace;
pub(crate) use stages::sends;

/// An operation as the CPU runs it. All types of graph's `ops` have it, or the crate does not compile.
pub(crate) trait OnCpu {
    /// The instruction of a node whose activations are stored as `E`.
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError>;
}
