//! Every operation a plan can hold, with its attributes and the operands it takes.
//!
//! Activations are `[batch, height, width, channels]`, convolution weights `[kernel height, kernel width, input channels /
//! groups, output channels]`, linear weights `[inputs, outputs]`, all dense and row-major. The documentation of each operation
//! is its contract with every device: `(inputs) -> (outputs)`, optional operands in brackets.
//!
//! Element types: operands are f32 where nothing else is said. In a plan of [`crate::Precision::Bf16`] every map, an activation
//! or gradient `[N,H,W,C]`, is bf16, and no other operand is: weights, biases, statistics, sums per channel and gradients of
//! parameters stay f32, and so do matrices `[N,K]`, on which batch norm, rectifiers, dropout, addition and
//! [`Op::BiasBackward`] work too. So maps meet f32 in one operation: convolutions take `bf16 x, f32 w, f32 bias -> bf16 y`,
//! their gradients `bf16 dy, f32 w, bf16 base -> bf16 dx` and `bf16 x, bf16 dy -> f32 dw`; [`Op::Normalize`] writes bf16,
//! [`Op::Flatten`] reads it and [`Op::FlattenBackward`] writes it. All maps of one operation have one type. An operation computes
//! in f32 whatever it reads, and rounds once, when it stores; weights may be rounded to bf16 where they are multiplied.

use std::fmt;

/// Kernel, stride, padding and dilation of a sliding window, each `[vertical, horizontal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Window size.
    pub kernel: [usize; 2],
    /// Step between neighbouring outputs.
    pub stride: [usize; 2],
    /// Padding on each side: zeros for convolution, minus infinity for max pooling.
    pub padding: [usize; 2],
    /// Distance between neighbouring elements of the window.
    pub dilation: [usize; 2],
}

impl Window {
    /// Output size along `axis` (0 vertical, 1 horizontal) for an input of `size`, rounding down as PyTorch does by default;
    /// `None` where the window does not fit.
    pub fn output(&self, axis: usize, size: usize) -> Option<usize> {
        let span = self.dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)?.checked_add(1)?;
        let room = size.checked_add(2 * self.padding[axis])?.checked_sub(span)?;
        Some(room.checked_div(self.stride[axis])? + 1)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}x{}", self.kernel[0], self.kernel[1])?;
        for (name, value, usual) in
            [("stride", self.stride, 1), ("padding", self.padding, 0), ("dilation", self.dilation, 1)]
        {
            if value != [usual; 2] {
                write!(f, " {name} {}x{}", value[0], value[1])?;
            }
        }
        Ok(())
    }
}

/// Attributes of a convolution (PyTorch's `Conv2d`, cross-correlation, zero padding).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// The window.
    pub window: Window,
    /// Number of groups; divides both input and output channels.
    pub groups: usize,
}

impl fmt::Display for Conv2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.window)?;
        if self.groups > 1 {
            write!(f, " groups {}", self.groups)?;
        }
        Ok(())
    }
}

/// Output size of an adaptive average pooling. Output `i` of `n` averages inputs `floor(i*size/n) .. ceil((i+1)*size/n)`,
/// as PyTorch's `AdaptiveAvgPool2d` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveAvgPool {
    /// Output `[height, width]`.
    pub output: [usize; 2],
}

/// Which statistics a batch norm normalises by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormStatistics {
    /// Mean and biased variance of the batch, over `count` pixels: the gradient of the input includes the path through them.
    Batch {
        /// Pixels (batch x height x width) behind the statistics; over all shards with SyncBatchNorm.
        count: usize,
    },
    /// The running statistics, which are constants of the step: evaluation, and frozen layers.
    Running,
}

/// An activation whose gradient is known from its result: it lets pass where `0 < y`, with a ceiling of 6 where `0 < y < 6`
/// (as PyTorch's `ReLU` and `ReLU6` do; NaN stays NaN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rectifier {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
}

/// The optimiser of a plan. Learning rate and step number are inputs of each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// PyTorch's `SGD` with dampening 0: `g += weight_decay * w; m = momentum * m + g; w -= lr * (g + momentum * m if nesterov else m)`.
    /// Without momentum there is no state and `w -= lr * g`.
    Sgd {
        /// Momentum factor.
        momentum: f32,
        /// L2 penalty added to the gradient.
        weight_decay: f32,
        /// Nesterov's look-ahead.
        nesterov: bool,
    },
    /// PyTorch's `AdamW`: `w *= 1 - lr * weight_decay`, then Adam with bias correction by the step number, which starts at 1.
    AdamW {
        /// Decay of the first and second moments.
        betas: [f32; 2],
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Decoupled weight decay.
        weight_decay: f32,
    },
}

impl Optimizer {
    /// Names of the state tensors kept per parameter, as PyTorch calls them.
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Optimizer::Sgd { .. } => &["momentum_buffer"],
            Optimizer::AdamW { .. } => &["exp_avg", "exp_avg_sq"],
        }
    }
}

/// One operation. N = batch, C = channels of the value named, K = classes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `(images u8 [N,H,W,3]) -> (y)`: `(x / 255 - mean) / deviation` per channel. With one mean and deviation the result has
    /// one channel, made of the first one of the pictures, which for grey pictures equals the others.
    Normalize {
        /// Mean of each of the 1 or 3 channels, on the scale 0 to 1.
        mean: Vec<f32>,
        /// As many deviations, on the scale 0 to 1.
        deviation: Vec<f32>,
    },
    /// `(x, w, [bias]) -> (y)`.
    Conv2d(Conv2d),
    /// `(dy, w, [base]) -> (dx)`: the gradient of a convolution's input, plus `base` where given; `dx` may lie over `base`.
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
    /// `(x) -> (mean [C], variance [C])`: over all but the last dimension; the biased variance, from squared deviations.
    BatchNormStatistics,
    /// `(x, mean, variance, weight, bias, [residual]) -> (y)`: `(x - mean) / sqrt(variance + epsilon) * weight + bias`, plus the
    /// residual, then the rectifier.
    BatchNormNormalize {
        /// Added to the variance.
        epsilon: f32,
        /// Which statistics the operands are.
        statistics: NormStatistics,
        /// What is applied last.
        rectifier: Option<Rectifier>,
    },
    /// `(dy, x, mean, variance, [gate]) -> (dbias [C], dweight [C])`: sums of `dy` and of `dy * (x - mean) / sqrt(variance + epsilon)`,
    /// where with a rectifier `dy` counts only where it let the forward's result pass. The gate is that result, `y`, or where
    /// there was no residual `weight, bias`, from which it follows.
    BatchNormReduce {
        /// Added to the variance.
        epsilon: f32,
        /// What the forward applied last: a gate is given.
        rectifier: Option<Rectifier>,
    },
    /// `(dy, x, mean, variance, weight, dbias, dweight, [gate]) -> (dx, [dresidual])`: with a rectifier dy is masked by it first, and
    /// with `residual` the masked dy is stored too (over `dy` if the memory pass says so). Over running statistics
    /// `dx = dy * weight / sqrt(variance + epsilon)` and there are no sums among the operands: `(dy, x, mean, variance, weight, [gate])`.
    BatchNormBackward {
        /// Added to the variance.
        epsilon: f32,
        /// Which statistics the operands are.
        statistics: NormStatistics,
        /// What the forward applied last: `y` is given.
        rectifier: Option<Rectifier>,
        /// The forward had a residual before its rectifier: its gradient is an output.
        residual: bool,
    },
    /// `(mean, variance) -> (update [2,C])`: this shard's share of the running statistics: row 0 the mean, row 1 the unbiased
    /// variance (times `count / (count - 1)`), both divided by `shards`. The sum over shards enters [`Op::RunningUpdate`].
    RunningShare {
        /// Pixels behind the statistics.
        count: usize,
        /// Shards whose shares are summed.
        shards: usize,
    },
    /// `(x) -> (y)`; `y` may lie over `x`.
    Rectify(Rectifier),
    /// `(dy, y) -> (dx)`: dy where the rectifier let `y` pass, else 0; `dx` may lie over `dy`.
    RectifyBackward(Rectifier),
    /// `(x) -> (y, position u8)`: `position` is the winning element of the window, `row * kernel width + column`; the first
    /// of equals wins, and NaN wins over numbers, as in PyTorch.
    MaxPool(Window),
    /// `(dy, position u8) -> (dx)`.
    MaxPoolBackward(Window),
    /// `(x) -> (y)`: the divisor counts padding (PyTorch's `count_include_pad=True`). No dilation.
    AvgPool(Window),
    /// `(dy) -> (dx)`.
    AvgPoolBackward(Window),
    /// `(x) -> (y)`.
    AdaptiveAvgPool(AdaptiveAvgPool),
    /// `(dy) -> (dx)`.
    AdaptiveAvgPoolBackward(AdaptiveAvgPool),
    /// `(x, sample_indices i64 [N]) -> (y)`: element e of sample i stays, times `1 / (1 - probability)`, where word `e % 4` of
    /// block `e / 4` of the random stream (seed, "dropout LAYER", epoch, i) is at least `probability`; else it becomes 0.
    /// Its own gradient; `y` may lie over `x`.
    Dropout {
        /// Probability to drop.
        probability: f32,
        /// The user's seed.
        seed: u64,
        /// The layer's name.
        layer: String,
    },
    /// `(a, b) -> (c)`; `c` may lie over `a`.
    Add,
    /// `(x [N,H,W,C]) -> (y [N, C*H*W])` in the order of PyTorch's NCHW flatten.
    Flatten,
    /// `(dy [N, C*H*W]) -> (dx [N,H,W,C])`.
    FlattenBackward,
    /// `(logits [N,K], labels i32 [N]) -> (probabilities [N,K], loss [1], correct [1])`: the sum over samples of the cross-entropy times
    /// `scale`, and how many samples have their largest logit (the first of equals) at the label. A label below 0 marks
    /// no sample: it adds nothing. Label smoothing as in PyTorch: the target is `1 - smoothing + smoothing/K` at the label,
    /// `smoothing/K` elsewhere.
    CrossEntropy {
        /// Factor of each sample's loss: 1 / global batch in training, 1 in evaluation.
        scale: f32,
        /// Label smoothing.
        smoothing: f32,
    },
    /// `(probabilities [N,K], labels i32 [N]) -> (dlogits [N,K])`: `scale * (probability - target)`, 0 where there is no sample;
    /// `dlogits` may lie over `probabilities`.
    CrossEntropyBackward {
        /// As in the forward.
        scale: f32,
        /// As in the forward.
        smoothing: f32,
    },
    /// `(loss [1], correct [1]) -> (metrics [shards + 2])`: zeros, but the shard's loss at its own place, behind the losses its
    /// hits, and 1 at the end where the step was told to stop. The sum over shards holds every shard's loss.
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
    /// Starts the sum over all ranks of one bucket of the gradient arena. Operands: the values that lie in it, which until
    /// [`Op::AllReduceWait`] belong to the collective.
    AllReduceStart {
        /// Index in [`crate::Plan::buckets`].
        bucket: usize,
    },
    /// Waits for it.
    AllReduceWait {
        /// Index in [`crate::Plan::buckets`].
        bucket: usize,
    },
    /// `(metrics [shards + 2]) -> ()`: fails the step, naming the shard, where a loss is not finite. No later instruction runs.
    CheckFinite,
    /// Updates all trainable parameters, which lie at the same offsets in the parameter, gradient and optimiser arenas.
    Update(Optimizer),
    /// `(update [2,C], running_mean [C], running_var [C]) -> ()`: `running = (1 - momentum) * running + momentum * update`, in place.
    RunningUpdate {
        /// PyTorch's batch norm momentum.
        momentum: f32,
    },
}

impl Op {
    /// The name in plans, profiles and error messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Normalize { .. } => "normalize",
            Op::Conv2d(_) => "conv2d",
            Op::Conv2dBackwardData(_) => "conv2d_backward_data",
            Op::Conv2dBackwardWeights(_) => "conv2d_backward_weights",
            Op::Linear => "linear",
            Op::LinearBackwardData => "linear_backward_data",
            Op::LinearBackwardWeights => "linear_backward_weights",
            Op::BiasBackward => "bias_backward",
            Op::BatchNormStatistics => "batch_norm_statistics",
            Op::BatchNormNormalize { .. } => "batch_norm_normalize",
            Op::BatchNormReduce { .. } => "batch_norm_reduce",
            Op::BatchNormBackward { .. } => "batch_norm_backward",
            Op::RunningShare { .. } => "running_share",
            Op::Rectify(Rectifier::Relu) => "relu",
            Op::Rectify(Rectifier::Relu6) => "relu6",
            Op::RectifyBackward(Rectifier::Relu) => "relu_backward",
            Op::RectifyBackward(Rectifier::Relu6) => "relu6_backward",
            Op::MaxPool(_) => "max_pool",
            Op::MaxPoolBackward(_) => "max_pool_backward",
            Op::AvgPool(_) => "avg_pool",
            Op::AvgPoolBackward(_) => "avg_pool_backward",
            Op::AdaptiveAvgPool(_) => "adaptive_avg_pool",
            Op::AdaptiveAvgPoolBackward(_) => "adaptive_avg_pool_backward",
            Op::Dropout { .. } => "dropout",
            Op::Add => "add",
            Op::Flatten => "flatten",
            Op::FlattenBackward => "flatten_backward",
            Op::CrossEntropy { .. } => "cross_entropy",
            Op::CrossEntropyBackward { .. } => "cross_entropy_backward",
            Op::ShareMetrics { .. } => "share_metrics",
            Op::SyncStatistics { .. } => "sync_statistics",
            Op::SyncSum => "sync_sum",
            Op::AllReduceStart { .. } => "all_reduce_start",
            Op::AllReduceWait { .. } => "all_reduce_wait",
            Op::CheckFinite => "check_finite",
            Op::Update(_) => "update",
            Op::RunningUpdate { .. } => "running_update",
        }
    }

    /// The `(output, input)` pair that a device must be able to keep at one address, if any: the memory pass uses it where
    /// the input is not needed afterwards.
    pub fn in_place(&self, inputs: usize) -> Option<(usize, usize)> {
        match self {
            Op::Conv2dBackwardData(_) if inputs == 3 => Some((0, 2)),
            Op::Rectify(_)
            | Op::RectifyBackward(_)
            | Op::Dropout { .. }
            | Op::Add
            | Op::CrossEntropyBackward { .. } => Some((0, 0)),
            Op::BatchNormBackward { residual: true, .. } => Some((1, 0)),
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Op::Normalize { mean, deviation } => write!(f, " {{mean {mean:?} deviation {deviation:?}}}"),
            Op::Conv2d(conv) | Op::Conv2dBackwardData(conv) | Op::Conv2dBackwardWeights(conv) => {
                write!(f, " {{{conv}}}")
            }
            Op::BatchNormNormalize { epsilon, statistics, rectifier } => {
                write!(f, " {{epsilon {epsilon} {statistics}{}}}", suffix(*rectifier))
            }
            Op::BatchNormReduce { epsilon, rectifier } => write!(f, " {{epsilon {epsilon}{}}}", suffix(*rectifier)),
            Op::BatchNormBackward { epsilon, statistics, rectifier, residual } => {
                let residual = if *residual { " residual" } else { "" };
                write!(f, " {{epsilon {epsilon} {statistics}{}{residual}}}", suffix(*rectifier))
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
            Op::ShareMetrics { shards } => write!(f, " {{shards {shards}}}"),
            Op::SyncStatistics { count } => write!(f, " {{count {count}}}"),
            Op::AllReduceStart { bucket } | Op::AllReduceWait { bucket } => write!(f, " {{bucket {bucket}}}"),
            Op::Update(Optimizer::Sgd { momentum, weight_decay, nesterov }) => {
                write!(
                    f,
                    " {{sgd momentum {momentum} weight_decay {weight_decay}{}}}",
                    if *nesterov { " nesterov" } else { "" }
                )
            }
            Op::Update(Optimizer::AdamW { betas, epsilon, weight_decay }) => {
                write!(f, " {{adamw betas {betas:?} epsilon {epsilon} weight_decay {weight_decay}}}")
            }
            Op::RunningUpdate { momentum } => write!(f, " {{momentum {momentum}}}"),
            _ => Ok(()),
        }
    }
}

/// A fused rectifier in the text of an operation.
fn suffix(rectifier: Option<Rectifier>) -> &'static str {
    match rectifier {
        None => "",
        Some(Rectifier::Relu) => " relu",
        Some(Rectifier::Relu6) => " relu6",
    }
}

impl fmt::Display for NormStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NormStatistics::Batch { count } => write!(f, "batch of {count}"),
            NormStatistics::Running => f.write_str("running"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_output_rounds_down_and_refuses_what_does_not_fit() {
        let check = |kernel, stride, padding, dilation, size, expected| {
            let window =
                Window { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2] };
            assert_eq!(window.output(0, size), expected);
        };
        check(7, 2, 3, 1, 224, Some(112));
        check(3, 2, 1, 1, 112, Some(56));
        check(3, 2, 1, 1, 7, Some(4));
        check(3, 1, 2, 2, 5, Some(5));
        check(3, 1, 0, 1, 2, None);
        check(1, 0, 0, 1, 2, None);
    }
}
