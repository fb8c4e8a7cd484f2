//! The operations of a plan, one file each: attributes, operands and results, text, gradient, and the builder's layer.
//!
//! An operation is a type of this folder that implements [`Operation`] and stands in the list `operations!`. [`Op`],
//! [`with_op!`](crate::with_op!), autodiff, the passes and the plan's text follow from that. A device implements a trait of its own for each
//! type, and [`with_op!`](crate::with_op!) calls it: a device that lacks one does not compile.
//!
//! Activations are `[batch, height, width, channels]`, linear weights `[inputs, outputs]`. Convolution weights have the order
//! of [`crate::FilterOrder`], with input channels / groups. All are dense and row-major. The documentation of each operation
//! is its contract with every device. In signatures N = batch, C = channels of the named value, K = classes.
//!
//! Element types: operands are f32 unless stated otherwise. In a plan of [`crate::Precision::Bf16`] every activation and its
//! gradient `[N,H,W,C]` or `[N,T,C]` is bf16, and where the target says so ([`crate::Target::narrow_features`]) features `[N,C]` before
//! the logits. All other operands stay f32: weights, biases, statistics, sums per channel, gradients of parameters, and other
//! matrices `[N,K]`. Batch norm, layer norm, linear layers, activations, dropout, addition,
//! multiplication, functions, expressions and [`BiasBackward`] work on matrices as well as on activations. Some operations therefore mix
//! types. Convolutions and linear layers take `bf16 x, f32 w, f32 bias -> bf16 y`, their gradients
//! `bf16 dy, f32 w, bf16 base -> bf16 dx` and `bf16 x, bf16 dy -> f32 dw`. [`Normalize`] writes bf16. [`Flatten`] and its gradient are between
//! bf16 and f32, or bf16 alone. All activations of one operation have the same type, but for those two and linear layers, whose
//! features may be bf16 beside f32 logits. Every operation computes in f32 and rounds once, when it stores its result. Weights, biases
//! and f32 gradients of logits may be rounded to bf16 where they are multiplied with bf16, or added to what is stored as bf16. In a plan of
//! [`crate::Precision::F16`] f16 takes the place of bf16, and the loss is scaled.

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

use std::fmt;
use std::ops::{Range, RangeInclusive};

pub use activation::{Activation, ActivationBackward};
pub use adaptive_avg_pool::{AdaptiveAvgPool, AdaptiveAvgPoolBackward};
pub use add::Add;
pub use all_gather::AllGather;
pub use all_reduce::{AllReduceStart, AllReduceWait, ReduceScatterStart, ReduceScatterWait, ReduceStart, ReduceWait};
pub use attention::{Attention, AttentionBackward};
pub use average::Average;
pub use avg_pool::{AvgPool, AvgPoolBackward};
pub use batch_norm::{
    BatchNorm, BatchNormBackward, BatchNormNormalize, BatchNormReduce, BatchNormStatistics, NormStatistics,
    RunningShare, RunningUpdate,
};
pub use batch_norm_conv2d::{BatchNormConv2d, BatchNormConv2dBackwardWeights};
pub use check_finite::CheckFinite;
pub use conv2d::{Conv, Conv2d, Conv2dBackwardData, Conv2dBackwardWeights};
pub use conv2d_batch_norm::Conv2dBatchNorm;
pub use cross_entropy::{CrossEntropy, CrossEntropyBackward};
pub use custom::{Custom, CustomOperation, Parallel};
pub use dropout::Dropout;
pub use flatten::{Flatten, FlattenBackward};
pub use function::{Function, FunctionBackward};
pub use gradient_norm::GradientNorm;
pub use layer_norm::{LayerNorm, LayerNormBackward, LayerNormReduce};
pub use linear::{BiasBackward, Linear, LinearBackwardData, LinearBackwardWeights, LinearForward};
pub use log_softmax::{LogSoftmax, LogSoftmaxBackward};
pub use lookahead::Lookahead;
pub use loss_scale::{Scale, Unscale, UpdateScale};
pub use mask_samples::MaskSamples;
pub use max_pool::{MaxPool, MaxPoolBackward};
pub use multiply::{Multiply, MultiplyReduce};
pub use normalize::Normalize;
pub use pointwise::Pointwise;
pub use replicate::Replicate;
pub use reshape::Reshape;
pub use sample_sum::{SampleSum, SampleSumBackward};
pub use scale_classes::ScaleClasses;
pub use share_metrics::ShareMetrics;
pub use stages::{ReceiveFrom, SendTo, SumStages, Zeros};
pub use sum_classes::{SumClasses, SumClassesBackward};
pub use sync::{SyncStatistics, SyncSum};
pub use targets::Targets;
pub use tensor_parallel::{CopyToRanks, SumOverRanks, SumRequests};
pub use tokens::{AddTokens, PositionEmbedding, PrependTokens, SelectTokens, SelectTokensBackward, SumTokens};
pub use top_k_correct::TopKCorrect;
pub use update::{Scaling, Update, UpdateOperands, UpdateRange};

use crate::autodiff::Backward;
use crate::{GraphError, Node, ValueId};

/// What the passes, autodiff and the plan's text ask of an operation.
pub trait Operation {
    /// The name in plans, profiles and error messages, unless it depends on the attributes ([`Operation::name`]).
    const NAME: &'static str;
    /// Operands and results with their types and dimensions, such as `(x, w [I,O], bias? [O]) -> (y)`. A name with `?` may be
    /// absent, and one with `..` stands for any number of values.
    const SIGNATURE: &'static str;
    /// The module or function of PyTorch that computes the same, if there is one.
    const PYTORCH: Option<&'static str> = None;

    /// The name in plans, profiles and error messages.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// The attributes as they follow the name in a plan, in braces; nothing if the name says it all.
    fn attributes(&self) -> String {
        String::new()
    }

    /// The `(output, input)` pair that every device supports at the same address, if any.
    fn in_place(&self) -> Option<(usize, usize)> {
        None
    }

    /// The matmul that it computes, if any.
    fn matmuls(&self) -> Option<Matmuls> {
        None
    }

    /// Whether it uses statistics of the batch, so that SyncBatchNorm needs a rule for it.
    fn is_of_batch(&self) -> bool {
        false
    }

    /// Whether one instruction computes it for all shards of all ranks together, instead of once for each shard.
    fn is_joint(&self) -> bool {
        false
    }

    /// The operands, out of `inputs`, that it changes in place: state that outlives the step, or what the first rank alone
    /// knows.
    fn changes(&self, inputs: usize) -> Range<usize> {
        inputs..inputs
    }

    /// Emits the first gradient of backward, if `node` is the loss.
    fn loss_gradient(&self, _backward: &mut Backward, _node: &Node) {}

    /// Turns `dy`, the gradient of the node's first result, into gradients of its operands.
    ///
    /// # Errors
    /// [`GraphError::NotDifferentiable`] if the operation has no gradient.
    fn gradient(&self, _backward: &mut Backward, node: &Node, _dy: ValueId) -> Result<(), GraphError> {
        Err(GraphError::NotDifferentiable { layer: node.layer.clone(), operation: self.name() })
    }
}

/// The positions of a matmul's result and weights in terms of the forward pass. Every element of the result is a
/// sum of products, one for each weight of an output channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matmuls {
    /// The forward's result, or its gradient.
    pub result: Operand,
    /// The weights, or their gradient.
    pub weights: Operand,
}

/// An operand or a result of a node, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// One of [`crate::Node::inputs`].
    Input(usize),
    /// One of [`crate::Node::outputs`].
    Output(usize),
}

/// Makes [`Op`] and [`with_op!`](crate::with_op!) from the list of all operations. The first token is a dollar sign, for the inner macro.
macro_rules! operations {
    ($d:tt $($operation:ident)*) => {
        /// One operation of a plan, with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $(#[doc = concat!("See [`", stringify!($operation), "`].")] $operation($operation),)*
        }

        $(impl From<$operation> for Op {
            fn from(operation: $operation) -> Op {
                Op::$operation(operation)
            }
        })*

        /// Evaluates an expression with the attributes of an [`Op`], whichever it is: `with_op!(&node.op, op => op.name())`.
        #[macro_export]
        macro_rules! with_op {
            ($d op:expr, $d attributes:ident => $d result:expr) => {
                match $d op {
                    $($crate::Op::$operation($d attributes) => $d result,)*
                }
            };
        }
    };
}

operations! { $
    Normalize
    Conv2d Conv2dBackwardData Conv2dBackwardWeights Conv2dBatchNorm
    LinearForward LinearBackwardData LinearBackwardWeights BiasBackward
    BatchNormStatistics BatchNormNormalize BatchNormReduce BatchNormBackward RunningShare
    BatchNormConv2d BatchNormConv2dBackwardWeights
    Activation ActivationBackward
    LayerNorm LayerNormBackward LayerNormReduce
    MaxPool MaxPoolBackward
    AvgPool AvgPoolBackward
    AdaptiveAvgPool AdaptiveAvgPoolBackward
    Dropout
    Add
    Multiply MultiplyReduce
    Function FunctionBackward
    Pointwise
    Flatten FlattenBackward
    Reshape
    Attention AttentionBackward
    AddTokens PrependTokens SumTokens
    SelectTokens SelectTokensBackward
    CrossEntropy CrossEntropyBackward
    LogSoftmax LogSoftmaxBackward
    ScaleClasses
    SumClasses SumClassesBackward
    Targets
    TopKCorrect
    SampleSum SampleSumBackward
    MaskSamples
    ShareMetrics
    SyncStatistics SyncSum
    AllReduceStart AllReduceWait ReduceStart ReduceWait Replicate
    SendTo ReceiveFrom Zeros SumStages
    CopyToRanks SumOverRanks SumRequests
    ReduceScatterStart ReduceScatterWait AllGather
    CheckFinite
    GradientNorm
    Scale Unscale UpdateScale
    Update
    Average Lookahead
    RunningUpdate
    Custom
}

impl Op {
    /// The name in plans, profiles and error messages.
    pub fn name(&self) -> &'static str {
        with_op!(self, op => op.name())
    }

    /// Whether it is a convolution that may give the mean and variance of its result, as further results.
    pub fn may_give_statistics(&self) -> bool {
        matches!(self, Op::Conv2d(_) | Op::BatchNormConv2d(_))
    }

    /// The `(output, input)` pair that every device supports at the same address, if any, for a node with `inputs` operands.
    /// The memory pass uses it if the input is not needed afterwards.
    pub fn in_place(&self, inputs: usize) -> Option<(usize, usize)> {
        with_op!(self, op => op.in_place()).filter(|&(_, input)| input < inputs)
    }

    /// See [`Operation::SIGNATURE`].
    pub fn signature(&self) -> &'static str {
        /// The signature of the operation whose attributes these are.
        fn of<T: Operation>(_: &T) -> &'static str {
            T::SIGNATURE
        }
        with_op!(self, op => of(op))
    }

    /// Whether its signature has this number of operands and of results.
    pub fn takes(&self, inputs: usize, outputs: usize) -> bool {
        let (operands, results) = self.signature().split_once(" -> ").unwrap_or_default();
        arity(operands).contains(&inputs) && arity(results).contains(&outputs)
    }

    /// See [`Operation::matmuls`].
    pub(crate) fn matmuls(&self) -> Option<Matmuls> {
        with_op!(self, op => op.matmuls())
    }

    /// See [`Operation::is_of_batch`].
    pub(crate) fn is_of_batch(&self) -> bool {
        with_op!(self, op => op.is_of_batch())
    }

    /// See [`Operation::is_joint`].
    pub fn is_joint(&self) -> bool {
        with_op!(self, op => op.is_joint())
    }

    /// See [`Operation::changes`].
    pub fn changes(&self, inputs: usize) -> Range<usize> {
        with_op!(self, op => op.changes(inputs))
    }

    /// See [`Operation::loss_gradient`].
    pub(crate) fn loss_gradient(&self, backward: &mut Backward, node: &Node) {
        with_op!(self, op => op.loss_gradient(backward, node));
    }

    /// See [`Operation::gradient`].
    pub(crate) fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        with_op!(self, op => op.gradient(backward, node, dy))
    }
}

/// Writes the name and the attributes.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match with_op!(self, op => op.attributes()) {
            attributes if attributes.is_empty() => Ok(()),
            attributes => write!(f, " {{{attributes}}}"),
        }
    }
}

/// How many values one side of a signature names, such as `(x, w [I,O], bias? [O])`.
fn arity(side: &str) -> RangeInclusive<usize> {
    let names: Vec<&str> = side.trim_matches(['(', ')']).split(", ").filter(|name| !name.is_empty()).collect();
    let is_list = |name: &&&str| name.contains("..");
    let least = names.iter().filter(|name| !name.contains('?') && !is_list(name)).count();
    let most = if names.iter().any(|name| is_list(&name)) { usize::MAX } else { names.len() };
    least..=most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_count_operands_and_results() {
        let check = |op: &Op, right: &[[usize; 2]], wrong: &[[usize; 2]]| {
            for &[inputs, outputs] in right {
                assert!(op.takes(inputs, outputs), "{op} {inputs} {outputs}");
            }
            for &[inputs, outputs] in wrong {
                assert!(!op.takes(inputs, outputs), "{op} {inputs} {outputs}");
            }
        };
        check(&Add.into(), &[[2, 1]], &[[1, 1], [3, 1], [2, 0], [2, 2]]);
        check(&LinearForward.into(), &[[2, 1], [3, 1]], &[[1, 1], [4, 1]]);
        check(&Targets.into(), &[[1, 1], [3, 1]], &[[0, 1], [4, 1]]);
        check(&SyncSum.into(), &[[2, 2]], &[[2, 1]]);
        check(&Replicate.into(), &[[0, 0], [9, 0]], &[[1, 1]]);
        check(&GradientNorm { scaled: true }.into(), &[[2, 1], [40, 1]], &[[2, 0]]);
        check(&CheckFinite.into(), &[[1, 0]], &[[0, 0], [2, 0]]);
    }
}
