//! All operations of a plan, with their attributes and operands.
//!
//! Activations are `[batch, height, width, channels]`, linear weights `[inputs, outputs]`. Convolution weights have the order
//! of [`crate::FilterOrder`], with input channels / groups. All are dense and row-major. The documentation of each operation
//! is its contract with every device: `(inputs) -> (outputs)`, with optional operands in brackets.
//!
//! Element types: operands are f32 unless stated otherwise. In a plan of [`crate::Precision::Bf16`] every map (an activation
//! or gradient `[N,H,W,C]`) is bf16. All other operands stay f32: weights, biases, statistics, sums per channel, gradients of
//! parameters, and matrices `[N,K]`. Batch norm, activations, dropout, addition, multiplication, functions and
//! [`Op::BiasBackward`] work on matrices as well as on activations. Some operations therefore mix types. Convolutions take
//! `bf16 x, f32 w, f32 bias -> bf16 y`, their gradients `bf16 dy, f32 w, bf16 base -> bf16 dx` and
//! `bf16 x, bf16 dy -> f32 dw`. [`Op::Normalize`] and [`Op::FlattenBackward`] write bf16, [`Op::Flatten`] reads it. All activations
//! of one operation have the same type. Every operation computes in f32 and rounds once, when it stores its result. Weights
//! may be rounded to bf16 where they are multiplied. In a plan of [`crate::Precision::F16`] f16 takes the place of bf16, and
//! the loss is scaled.

mod properties;

use std::fmt;

use crate::{Activation, AdaptiveAvgPool, Conv2d, Function, NormStatistics, Update, Window};
pub(crate) use properties::{Matmuls, Operand};

/// One operation. N = batch, C = channels of the named value, K = classes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `(images u8 [N,H,W,3]) -> (y)`: `(x / 255 - mean) / std` per channel. With one mean and std the result has
    /// one channel, computed from the images' first channel. In grey images all channels are equal.
    Normalize {
        /// Mean of each of the 1 or 3 channels, on the scale 0 to 1.
        mean: Vec<f32>,
        /// Std of each of these channels, on the scale 0 to 1.
        std: Vec<f32>,
    },
    /// `(x, w, [bias]) -> (y)`.
    Conv2d(Conv2d),
    /// `(dy, w, [base]) -> (dx)`: the gradient of a convolution's input, plus `base` if given; `dx` may lie over `base`.
    Conv2dBackwardData(Conv2d),
    /// `(x, dy) -> (dw)`.
    Conv2dBackwardWeights(Conv2d),
    /// `(x [N,I], w [I,O], [bias]) -> (y [N,O])`.
    Linear,
    /// `(dy [N,O], w [I,O]) -> (dx [N,I])`.
    LinearBackwardData,
    /// `(x [N,I], dy [N,O]) -> (dw [I,O])`.
    LinearBackwardWeights,
    /// `(dy) -> (db [C])`: sum over all but the last dimension.
    BiasBackward,
    /// `(x) -> (mean [C], variance [C])`: over all but the last dimension. The variance is biased, and computed from squared
    /// deviations.
    BatchNormStatistics,
    /// `(x, mean, variance, weight, bias, [residual]) -> (y)`: `(x - mean) / sqrt(variance + epsilon) * weight + bias`, plus the
    /// residual, then the activation.
    BatchNormNormalize {
        /// Added to the variance.
        epsilon: f32,
        /// The kind of statistics among the operands.
        statistics: NormStatistics,
        /// The activation, which is applied last.
        activation: Option<Activation>,
    },
    /// `(dy, x, mean, variance, [gate]) -> (dbias [C], dweight [C])`: sums of `dy` and of
    /// `dy * (x - mean) / sqrt(variance + epsilon)`. With an activation `dy` counts only where the activation passed the
    /// forward's result. The gate is that result, `y`. If there was no residual, the gate is `weight, bias`, from which `y`
    /// follows.
    BatchNormReduce {
        /// Added to the variance.
        epsilon: f32,
        /// The activation of the forward. If there is one, the gate is an operand.
        activation: Option<Activation>,
    },
    /// `(dy, x, mean, variance, weight, dbias, dweight, [gate]) -> (dx, [dresidual])`: with an activation `dy` is first masked
    /// by the gate of [`Op::BatchNormReduce`]. With `residual` the masked `dy` is stored too (over `dy` if the memory pass
    /// chooses so). With running statistics `dx = dy * weight / sqrt(variance + epsilon)`, and the operands lack the sums:
    /// `(dy, x, mean, variance, weight, [gate])`.
    BatchNormBackward {
        /// Added to the variance.
        epsilon: f32,
        /// The kind of statistics among the operands.
        statistics: NormStatistics,
        /// The activation of the forward. If there is one, the gate is an operand.
        activation: Option<Activation>,
        /// Whether the forward had a residual before its activation, whose gradient is an output.
        residual: bool,
    },
    /// `(mean, variance) -> (update [2,C])`: this shard's share of the running statistics. Row 0 is the mean, row 1 the
    /// unbiased variance (times `count / (count - 1)`), both divided by `shards`. [`Op::RunningUpdate`] takes the sum over
    /// shards.
    RunningShare {
        /// Pixels that the statistics cover.
        count: usize,
        /// Number of shards whose shares are summed.
        shards: usize,
    },
    /// `(x) -> (y)`; `y` may lie over `x`.
    Activation(Activation),
    /// `(dy, y) -> (dx)`: dy where the activation passed `y`, else 0; `dx` may lie over `dy`.
    ActivationBackward(Activation),
    /// `(x) -> (y, position u8)`: `position` is the index of the winning element in the window,
    /// `row * kernel width + column`. The first of equal elements wins, and NaN wins over numbers, as in PyTorch.
    MaxPool(Window),
    /// `(dy, position u8) -> (dx)`.
    MaxPoolBackward(Window),
    /// `(x) -> (y)`: the divisor includes padding (PyTorch's `count_include_pad=True`). No dilation.
    AvgPool(Window),
    /// `(dy) -> (dx)`.
    AvgPoolBackward(Window),
    /// `(x) -> (y)`.
    AdaptiveAvgPool(AdaptiveAvgPool),
    /// `(dy) -> (dx)`.
    AdaptiveAvgPoolBackward(AdaptiveAvgPool),
    /// `(x, sample_indices i64 [N]) -> (y)`: element e of sample i is multiplied by `1 / (1 - probability)` if word `e % 4`
    /// of block `e / 4` of the random stream (seed, "dropout LAYER", epoch, i) is at least `probability`. Otherwise it
    /// becomes 0. The operation is its own gradient; `y` may lie over `x`.
    Dropout {
        /// Probability of dropping an element.
        probability: f32,
        /// The user's seed.
        seed: u64,
        /// The layer's name.
        layer: String,
    },
    /// `(a, b) -> (c)`; `c` may lie over `a`.
    Add,
    /// `(a, b) -> (c)`: element by element; `c` may lie over `a`.
    Multiply,
    /// `(x) -> (y)`: the function applied to each element; `y` may lie over `x`.
    Map(Function),
    /// `(dy, x) -> (dx)`: dy times the function's derivative at each element; `dx` may lie over `dy`.
    MapBackward(Function),
    /// `(x [N,H,W,C]) -> (y [N, C*H*W])`, in the order of PyTorch's NCHW flatten.
    Flatten,
    /// `(dy [N, C*H*W]) -> (dx [N,H,W,C])`.
    FlattenBackward,
    /// `(logits [N,K], labels i32 [N], [other_labels i32 [N], lambdas [N]]) -> (probabilities [N,K], loss [1], correct [1])`: the
    /// sum over samples of the cross-entropy times `scale`, and the number of samples whose largest logit (the first of
    /// equals) is at the label. A label below 0 marks a place without a sample, which adds nothing. Label smoothing is as in
    /// PyTorch: the target is `1 - smoothing + smoothing/K` at the label, `smoothing/K` elsewhere. Of a mixture of two samples
    /// the label has the share `share * (1 - smoothing)`, the other label `(1 - share) * (1 - smoothing)`. They may be equal.
    CrossEntropy {
        /// Factor of each sample's loss: 1 / global batch in training, 1 in evaluation.
        scale: f32,
        /// Label smoothing.
        smoothing: f32,
    },
    /// `(probabilities [N,K], labels i32 [N], [other_labels i32 [N], lambdas [N]]) -> (dlogits [N,K])`:
    /// `scale * (probability - target)`, and 0 where there is no sample; `dlogits` may lie over `probabilities`.
    CrossEntropyBackward {
        /// As in the forward.
        scale: f32,
        /// As in the forward.
        smoothing: f32,
    },
    /// `(x [N,K]) -> (y [N,K])`: the logarithm of the softmax over classes.
    LogSoftmax,
    /// `(dy [N,K], y [N,K]) -> (dx [N,K])`: `dy - exp(y) * sum of dy over classes`.
    LogSoftmaxBackward,
    /// `(x [N,K]) -> (y [N,K])`: each class times its factor. The operation is its own gradient.
    ScaleClasses {
        /// The factor of each class.
        factors: Vec<f32>,
    },
    /// `(x [N,K]) -> (y [N])`: the sum over classes.
    SumClasses,
    /// `(dy [N]) -> (dx [N,K])`: dy at every class.
    SumClassesBackward,
    /// `(labels i32 [N], [other_labels i32 [N], lambdas [N]]) -> (targets [N,K])`: 1 at the label, 0 elsewhere; all zeros where
    /// there is no sample. Of a mixture `share` at the label plus `1 - share` at the other one.
    Targets,
    /// `(logits [N,K], labels i32 [N]) -> (top_k_correct [N])`: 1 where the label's logit is one of the `k` largest of its sample,
    /// else 0, and 0 where there is no sample. Of equal logits the first counts as the largest, as in [`Op::CrossEntropy`],
    /// whose correct ones are those with `k` = 1. It is not correct if the label's logit is NaN; other NaN logits are ignored.
    TopKCorrect {
        /// The number of largest logits that count.
        k: usize,
    },
    /// `(values [N], labels i32 [N]) -> (sum [1])`: the sum over samples, times `scale`. Values at places without a sample
    /// are left out, even if they are NaN.
    SampleSum {
        /// Factor of the sum.
        scale: f32,
    },
    /// `(labels i32 [N]) -> (dvalues [N])`: `scale`, and 0 where there is no sample.
    SampleSumBackward {
        /// As in the forward.
        scale: f32,
    },
    /// `(x [N,K], labels i32 [N]) -> (y [N,K])`: x, with zeros where there is no sample. The operation is its own gradient,
    /// which is 0 at those places even if dy is NaN; `y` may lie over `x`.
    MaskSamples,
    /// `(loss [1], correct [1], metrics [1]..) -> (metrics [shards + 1 + n + 2])` for n metrics of samples. The first
    /// `shards` elements are zeros, except for this shard's loss at its own index. Its hits and metrics follow, then 1 if the
    /// step was told to stop, and 1 if it was told to save a checkpoint. The sum over shards holds every shard's loss.
    ShareMetrics {
        /// Number of shards.
        shards: usize,
    },
    /// `(mean, variance) -> (mean, variance)` over the pixels of all shards (`count` on each): Chan's formula on
    /// (count, mean, M2 = variance * count) in the fixed tree over shards.
    SyncStatistics {
        /// Pixels on each shard.
        count: usize,
    },
    /// `(a [C], b [C]) -> (sum of a, sum of b)` over all shards.
    SyncSum,
    /// Starts the sum over all ranks of one bucket of the gradient arena. The operands are the values in the bucket. They
    /// belong to the collective until [`Op::AllReduceWait`].
    AllReduceStart {
        /// Index in [`crate::Plan::buckets`].
        bucket: usize,
    },
    /// Waits for the sum of a bucket.
    AllReduceWait {
        /// Index in [`crate::Plan::buckets`].
        bucket: usize,
    },
    /// The same for the first rank alone. On the other ranks the values of the bucket are undefined afterwards. They belong to the
    /// collective until [`Op::ReduceWait`].
    ReduceStart {
        /// Index in [`crate::Plan::buckets`].
        bucket: usize,
    },
    /// Waits for the end of [`Op::ReduceStart`].
    ReduceWait {
        /// Index in [`crate::Plan::buckets`].
        bucket: usize,
    },
    /// `(values..) -> ()`: copies the values of the first rank to all others, in place; of a program that hosts several shards
    /// with values of their own, those of its first shard.
    Replicate,
    /// `(metrics [shards..]) -> ()`: fails the step if a loss is not finite, naming the shard. No later instruction runs.
    CheckFinite,
    /// `(gradients.., [scale [1]]) -> (norm [1])`: the root of the sum of all squares. With a scale the gradients are first
    /// divided by it.
    GradientNorm {
        /// Whether there is a scale.
        scaled: bool,
    },
    /// `(x, factor [1]) -> (y)`: every element times the factor; `y` may lie over `x`. Backward of a scaled or weighted loss begins
    /// with it.
    Scale,
    /// `(values.., scale [1]) -> (unscale [2])`: the factor that undoes the scale, and the scale. The factor is `1 / scale`, or
    /// 0 if an element of the values is not finite or `1 / scale` is not: then the step is skipped. The values are all
    /// gradients, or their norm, which is not finite if one of them is not.
    Unscale,
    /// `(unscale [2], scale [1], good_steps [1], skipped_steps [1]) -> ()`: the end of a step of a scaled loss, as PyTorch's
    /// `GradScaler.update`. A skipped step multiplies the scale by `backoff` and counts as skipped. Any other one is good, and
    /// every `interval`-th good one in a row multiplies the scale by `growth`, unless the result is infinite.
    UpdateScale {
        /// Factor after enough good steps.
        growth: f32,
        /// Factor after a skipped step.
        backoff: f32,
        /// Good steps in a row until the scale grows.
        interval: u32,
    },
    /// `(gradients.., parameters.., state.. of each name, [norm], [unscale, skipped_steps]) -> ()`: an optimiser's step over
    /// ranges of the arenas, in place; see [`Update::operands`].
    Update(Update),
    /// `(values.., averages.., [unscale, skipped_steps]) -> ()`: the first update copies the values. Later ones compute
    /// `average += (1 - decay) * (value - average)` in place, as PyTorch's `AveragedModel` does with
    /// `get_ema_multi_avg_fn(decay)` and `use_buffers=True`. Skipped steps are no updates, as in [`Update::scaled`].
    Average {
        /// The share of the old average that each update keeps.
        decay: f32,
        /// Whether the loss is scaled.
        scaled: bool,
    },
    /// `(update [2,C], running_mean [C], running_var [C]) -> ()`: `running = (1 - momentum) * running + momentum * update`,
    /// in place. A skipped step updates them too, as in PyTorch, where forward does it: forward has not overflowed.
    RunningUpdate {
        /// PyTorch's batch norm momentum.
        momentum: f32,
    },
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Op::Normalize { mean, std } => write!(f, " {{mean {mean:?} std {std:?}}}"),
            Op::Conv2d(conv) | Op::Conv2dBackwardData(conv) | Op::Conv2dBackwardWeights(conv) => {
                write!(f, " {{{conv}}}")
            }
            Op::BatchNormNormalize { epsilon, statistics, activation } => {
                write!(f, " {{epsilon {epsilon} {statistics}{}}}", suffix(*activation))
            }
            Op::BatchNormReduce { epsilon, activation } => write!(f, " {{epsilon {epsilon}{}}}", suffix(*activation)),
            Op::BatchNormBackward { epsilon, statistics, activation, residual } => {
                let residual = if *residual { " residual" } else { "" };
                write!(f, " {{epsilon {epsilon} {statistics}{}{residual}}}", suffix(*activation))
            }
            Op::RunningShare { count, shards } => write!(f, " {{count {count} shards {shards}}}"),
            Op::MaxPool(window) | Op::MaxPoolBackward(window) | Op::AvgPool(window) | Op::AvgPoolBackward(window) => {
                write!(f, " {{{window}}}")
            }
            Op::AdaptiveAvgPool(pool) | Op::AdaptiveAvgPoolBackward(pool) => {
                write!(f, " {{output {}x{}}}", pool.output[0], pool.output[1])
            }
            Op::Dropout { probability, seed, layer } => {
                write!(f, " {{probability {probability} seed {seed} layer {layer}}}")
            }
            Op::CrossEntropy { scale, smoothing } | Op::CrossEntropyBackward { scale, smoothing } => {
                write!(f, " {{scale {scale} smoothing {smoothing}}}")
            }
            Op::TopKCorrect { k } => write!(f, " {{k {k}}}"),
            Op::Map(function) | Op::MapBackward(function) => write!(f, "{function}"),
            Op::ScaleClasses { factors } => write!(f, " {{factors {factors:?}}}"),
            Op::SampleSum { scale } | Op::SampleSumBackward { scale } => write!(f, " {{scale {scale}}}"),
            Op::ShareMetrics { shards } => write!(f, " {{shards {shards}}}"),
            Op::SyncStatistics { count } => write!(f, " {{count {count}}}"),
            Op::AllReduceStart { bucket }
            | Op::AllReduceWait { bucket }
            | Op::ReduceStart { bucket }
            | Op::ReduceWait { bucket } => write!(f, " {{bucket {bucket}}}"),
            Op::Update(update) => write!(f, " {{{update}}}"),
            Op::RunningUpdate { momentum } => write!(f, " {{momentum {momentum}}}"),
            Op::Average { decay, scaled } => write!(f, " {{decay {decay}{}}}", if *scaled { " scaled" } else { "" }),
            Op::GradientNorm { scaled: true } => f.write_str(" {scaled}"),
            Op::UpdateScale { growth, backoff, interval } => {
                write!(f, " {{growth {growth} backoff {backoff} interval {interval}}}")
            }
            // These have no attributes beyond those in the name.
            Op::Linear
            | Op::LinearBackwardData
            | Op::LinearBackwardWeights
            | Op::BiasBackward
            | Op::GradientNorm { scaled: false }
            | Op::Scale
            | Op::Unscale
            | Op::BatchNormStatistics
            | Op::Activation(_)
            | Op::ActivationBackward(_)
            | Op::Add
            | Op::Multiply
            | Op::Flatten
            | Op::FlattenBackward
            | Op::LogSoftmax
            | Op::LogSoftmaxBackward
            | Op::SumClasses
            | Op::SumClassesBackward
            | Op::Targets
            | Op::MaskSamples
            | Op::SyncSum
            | Op::Replicate
            | Op::CheckFinite => Ok(()),
        }
    }
}

/// A fused activation in the text of an operation.
fn suffix(activation: Option<Activation>) -> &'static str {
    match activation {
        None => "",
        Some(Activation::Relu) => " relu",
        Some(Activation::Relu6) => " relu6",
    }
}
