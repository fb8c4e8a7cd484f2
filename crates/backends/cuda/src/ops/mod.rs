//! What the GPU does for each operation, in files of the names that [`enmasse_graph::ops`] has: from an instruction to calls, and
//! the kernels that no other operation has.

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
pub(crate) mod conv2d;
mod conv2d_batch_norm;
mod cross_entropy;
mod custom;
mod dropout;
mod flatten;
mod function;
mod gradient_norm;
mod layer_norm;
pub(crate) mod linear;
mod log_softmax;
mod lookahead;
mod loss_scale;
mod mask_samples;
mod max_pool;
mod multiply;
pub(crate) mod normalize;
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

use crate::lower::{Lowered, Lowering, Operands, Placed, computed};

/// An operation on the GPU. Every operation is one, or the device does not compile.
pub(crate) trait OnCuda {
    /// The work of an instruction, for one local shard, or for all if the operation is joint. The instruction has as many operands
    /// and results as the operation's signature.
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered;
}
