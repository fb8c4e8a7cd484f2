//! What the passes and the text of a plan need to know of each operation: a row for each.

use std::ops::Range;

use super::Op;
use crate::Activation;

/// The properties of an operation that the passes and its text need. [`Op::traits`] has a row for each operation.
#[derive(Clone, Copy, Debug)]
struct Traits {
    name: &'static str,
    in_place: Option<(usize, usize)>,
    matmuls: Option<Matmuls>,
    /// Whether it uses statistics of the batch, so that SyncBatchNorm needs a rule for it.
    of_batch: bool,
    /// Whether one instruction computes it for all shards of all ranks together.
    joint: bool,
    /// The operands consist of this number of equal parts. The first part is only read; the others are state that is changed
    /// in place.
    parts: usize,
    /// The number of operands after these parts, which are only read.
    others: usize,
}

/// The positions of a matmul's result and weights in terms of the forward pass. Every element of the result is a
/// sum of matmuls, one for each weight of an output channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matmuls {
    /// The forward's result, or its gradient.
    pub result: Operand,
    /// The weights, or their gradient.
    pub weights: Operand,
}

/// An operand or a result of a node, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// One of [`crate::Node::inputs`].
    Input(usize),
    /// One of [`crate::Node::outputs`].
    Output(usize),
}

impl Traits {
    /// A pass over memory, whose results do not overlap its operands.
    const fn named(name: &'static str) -> Self {
        Traits { name, in_place: None, matmuls: None, of_batch: false, joint: false, parts: 1, others: 0 }
    }

    const fn in_place(self, output: usize, input: usize) -> Self {
        Traits { in_place: Some((output, input)), ..self }
    }

    const fn of_batch(self) -> Self {
        Traits { of_batch: true, ..self }
    }

    const fn joint(self) -> Self {
        Traits { joint: true, ..self }
    }

    const fn changes(self, parts: usize, others: usize) -> Self {
        Traits { parts, others, ..self }
    }

    const fn matmuls(self, result: Operand, weights: Operand) -> Self {
        Traits { matmuls: Some(Matmuls { result, weights }), ..self }
    }
}

impl Op {
    fn traits(&self) -> Traits {
        use Operand::{Input, Output};
        let named = Traits::named;
        match self {
            Op::Normalize { .. } => named("normalize"),
            Op::Conv2d(_) => named("conv2d").matmuls(Output(0), Input(1)),
            Op::Conv2dBackwardData(_) => named("conv2d_backward_data").in_place(0, 2).matmuls(Input(0), Input(1)),
            Op::Conv2dBackwardWeights(_) => named("conv2d_backward_weights").matmuls(Input(1), Output(0)),
            Op::Linear => named("linear").matmuls(Output(0), Input(1)),
            Op::LinearBackwardData => named("linear_backward_data").matmuls(Input(0), Input(1)),
            Op::LinearBackwardWeights => named("linear_backward_weights").matmuls(Input(1), Output(0)),
            Op::BiasBackward => named("bias_backward"),
            Op::BatchNormStatistics => named("batch_norm_statistics").of_batch(),
            Op::BatchNormNormalize { .. } => named("batch_norm_normalize").of_batch(),
            Op::BatchNormReduce { .. } => named("batch_norm_reduce").of_batch(),
            Op::BatchNormBackward { residual: true, .. } => named("batch_norm_backward").of_batch().in_place(1, 0),
            Op::BatchNormBackward { residual: false, .. } => named("batch_norm_backward").of_batch(),
            Op::RunningShare { .. } => named("running_share").of_batch(),
            Op::Activation(Activation::Relu) => named("relu").in_place(0, 0),
            Op::Activation(Activation::Relu6) => named("relu6").in_place(0, 0),
            Op::ActivationBackward(Activation::Relu) => named("relu_backward").in_place(0, 0),
            Op::ActivationBackward(Activation::Relu6) => named("relu6_backward").in_place(0, 0),
            Op::MaxPool(_) => named("max_pool"),
            Op::MaxPoolBackward(_) => named("max_pool_backward"),
            Op::AvgPool(_) => named("avg_pool"),
            Op::AvgPoolBackward(_) => named("avg_pool_backward"),
            Op::AdaptiveAvgPool(_) => named("adaptive_avg_pool"),
            Op::AdaptiveAvgPoolBackward(_) => named("adaptive_avg_pool_backward"),
            Op::Dropout { .. } => named("dropout").in_place(0, 0),
            Op::Add => named("add").in_place(0, 0),
            Op::Multiply => named("multiply").in_place(0, 0),
            Op::Map(function) => named(function.name()).in_place(0, 0),
            Op::MapBackward(function) => named(function.backward_name()).in_place(0, 0),
            Op::Flatten => named("flatten"),
            Op::FlattenBackward => named("flatten_backward"),
            Op::CrossEntropy { .. } => named("cross_entropy"),
            Op::CrossEntropyBackward { .. } => named("cross_entropy_backward").in_place(0, 0),
            Op::LogSoftmax => named("log_softmax"),
            Op::LogSoftmaxBackward => named("log_softmax_backward"),
            Op::ScaleClasses { .. } => named("scale_classes"),
            Op::SumClasses => named("sum_classes"),
            Op::SumClassesBackward => named("sum_classes_backward"),
            Op::Targets => named("targets"),
            Op::TopKCorrect { .. } => named("top_k_correct"),
            Op::SampleSum { .. } => named("sample_sum"),
            Op::SampleSumBackward { .. } => named("sample_sum_backward"),
            Op::MaskSamples => named("mask_samples").in_place(0, 0),
            Op::ShareMetrics { .. } => named("share_metrics"),
            Op::SyncStatistics { .. } => named("sync_statistics").joint(),
            Op::SyncSum => named("sync_sum").joint(),
            Op::AllReduceStart { .. } => named("all_reduce_start"),
            Op::AllReduceWait { .. } => named("all_reduce_wait"),
            Op::ReduceStart { .. } => named("reduce_start"),
            Op::ReduceWait { .. } => named("reduce_wait"),
            Op::Replicate => named("replicate"),
            Op::CheckFinite => named("check_finite"),
            Op::GradientNorm { .. } => named("gradient_norm"),
            Op::Scale => named("scale").in_place(0, 0),
            Op::Unscale => named("unscale"),
            Op::UpdateScale { .. } => named("update_scale").changes(4, 0),
            Op::Update(update) => named("update").changes(2 + update.optimizer.state_names().len(), update.others()),
            Op::RunningUpdate { .. } => named("running_update").changes(3, 0),
            Op::Average { scaled, .. } => named("average").changes(2, if *scaled { 2 } else { 0 }),
        }
    }

    /// The name in plans, profiles and error messages.
    pub fn name(&self) -> &'static str {
        self.traits().name
    }

    /// The `(output, input)` pair that every device supports at the same address, if any. The memory pass uses it if the
    /// input is not needed afterwards.
    pub fn in_place(&self, inputs: usize) -> Option<(usize, usize)> {
        self.traits().in_place.filter(|&(_, input)| input < inputs)
    }

    /// The matmul that the operation computes, if any.
    pub(crate) fn matmuls(&self) -> Option<Matmuls> {
        self.traits().matmuls
    }

    /// Whether it uses statistics of the batch.
    pub(crate) fn is_of_batch(&self) -> bool {
        self.traits().of_batch
    }

    /// Whether one instruction computes it for all shards of all ranks together, instead of once for each shard.
    pub fn is_joint(&self) -> bool {
        self.traits().joint
    }

    /// The operands, out of `inputs`, that it changes in place: state that outlives the step, or what the first rank alone knows.
    pub fn changes(&self, inputs: usize) -> Range<usize> {
        if *self == Op::Replicate {
            return 0..inputs;
        }
        let Traits { parts, others, .. } = self.traits();
        let part = inputs.saturating_sub(others) / parts;
        part..part * parts
    }
}
