//! Batch norm: statistics of the batch, normalisation with what is fused into it, their gradients, and running statistics.

use std::fmt;
use std::ops::Range;

use enmasse_tensor::DType;

use super::{Activation, Operation};
use crate::autodiff::Backward;
use crate::{GraphError, Init, Layout, Mode, Node, Phase, Role, Tensor, ValueId};

/// The statistics that a batch norm normalises by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormStatistics {
    /// Mean and biased variance of the batch, over `count` pixels. The gradient of the input includes the path through
    /// them.
    Batch {
        /// Pixels (batch x height x width) that the statistics cover; over all shards with SyncBatchNorm.
        count: usize,
    },
    /// The running statistics, which are constants within a step. Used in evaluation and by frozen layers.
    Running,
}

impl fmt::Display for NormStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NormStatistics::Batch { count } => write!(f, "batch of {count}"),
            NormStatistics::Running => f.write_str("running"),
        }
    }
}

/// Mean and variance over all but the last dimension. The variance is biased, and computed from squared deviations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormStatistics;

impl Operation for BatchNormStatistics {
    const NAME: &'static str = "batch_norm_statistics";
    const SIGNATURE: &'static str = "(x) -> (mean [C], variance [C])";
    const PYTORCH: Option<&'static str> = Some("torch.var_mean(x, correction=0)");

    fn is_of_batch(&self) -> bool {
        true
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias`, plus the residual, then the activation.
///
/// `passed` has a byte for each group of channels. Its bit i is set where the activation passed the group's i-th channel, by the
/// result as it is stored. Only the plans of devices that ask for it have it ([`crate::Target::gate_bytes`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormNormalize {
    /// Added to the variance.
    pub epsilon: f32,
    /// The kind of statistics among the operands.
    pub statistics: NormStatistics,
    /// The activation, which is applied last. With a residual it is a ReLU.
    pub activation: Option<Activation>,
}

impl Operation for BatchNormNormalize {
    const NAME: &'static str = "batch_norm_normalize";
    const SIGNATURE: &'static str = "(x, mean [C], variance [C], weight [C], bias [C], residual?) -> (y, passed? u8)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.BatchNorm2d, torch.nn.BatchNorm1d");

    fn attributes(&self) -> String {
        format!("epsilon {} {}{}", self.epsilon, self.statistics, suffix(self.activation))
    }

    fn is_of_batch(&self) -> bool {
        true
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let BatchNormNormalize { epsilon, statistics, activation } = *self;
        let [x, mean, variance, weight, bias] = [0, 1, 2, 3, 4].map(|i| node.inputs[i]);
        let residual = node.inputs.get(5).copied();
        // Without a residual, y follows from x, which is an operand already, so y need not be read.
        let gate = match (activation, node.outputs.get(1), residual) {
            (None, ..) => vec![],
            (Some(_), Some(&passed), _) => vec![passed],
            (Some(_), None, Some(_)) => vec![node.outputs[0]],
            (Some(_), None, None) => vec![weight, bias],
        };
        let batch = matches!(statistics, NormStatistics::Batch { .. });
        let through_x = backward.wants(x);
        let mut sums = Vec::new();
        if backward.wants(weight) || backward.wants(bias) || (batch && through_x) {
            let inputs = [dy, x, mean, variance].iter().chain(&gate).copied().collect();
            let outputs = backward.emit(BatchNormReduce { epsilon, activation }, inputs, &[bias, weight]);
            backward.add_gradient(bias, outputs[0]);
            backward.add_gradient(weight, outputs[1]);
            sums = if batch { outputs } else { Vec::new() };
        }
        let masked_residual = activation.is_some() && residual.is_some_and(|residual| backward.wants(residual));
        if through_x || masked_residual {
            let inputs = [dy, x, mean, variance, weight].into_iter().chain(sums).chain(gate).collect();
            let op = BatchNormBackward { epsilon, statistics, activation, residual: masked_residual };
            let outputs = backward.emit(op, inputs, &[x, x][..1 + usize::from(masked_residual)]);
            backward.add_gradient(x, outputs[0]);
            if let (Some(residual), Some(&gradient)) = (residual, outputs.get(1)) {
                backward.add_gradient(residual, gradient);
            }
        }
        if let (Some(residual), None) = (residual, activation) {
            backward.add_gradient(residual, dy);
        }
        Ok(())
    }
}

/// The sums of `dy` and of `dy * (x - mean) / sqrt(variance + epsilon)`.
///
/// With an activation `dy` is first multiplied by its derivative. That of a ReLU follows from the gate `passed` of
/// [`BatchNormNormalize`], if the plan has it, and otherwise after a residual from the gate `y`, the forward's result. In all other
/// cases the gate is `weight, bias`, from which the activation's operand follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormReduce {
    /// Added to the variance.
    pub epsilon: f32,
    /// The activation of the forward. If there is one, the gate is an operand.
    pub activation: Option<Activation>,
}

impl Operation for BatchNormReduce {
    const NAME: &'static str = "batch_norm_reduce";
    const SIGNATURE: &'static str = "(dy, x, mean [C], variance [C], gate..) -> (dbias [C], dweight [C])";

    fn attributes(&self) -> String {
        format!("epsilon {}{}", self.epsilon, suffix(self.activation))
    }

    fn is_of_batch(&self) -> bool {
        true
    }
}

/// The gradient of a batch norm's input. With an activation `dy` is first multiplied by its derivative, as in [`BatchNormReduce`].
///
/// With `residual` that product is stored too (over `dy` if the memory pass chooses so). With running statistics
/// `dx = dy * weight / sqrt(variance + epsilon)`, and the operands lack the sums `dbias, dweight`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormBackward {
    /// Added to the variance.
    pub epsilon: f32,
    /// The kind of statistics among the operands.
    pub statistics: NormStatistics,
    /// The activation of the forward. If there is one, the gate is an operand.
    pub activation: Option<Activation>,
    /// Whether the forward had a residual before its activation, whose gradient is an output.
    pub residual: bool,
}

impl Operation for BatchNormBackward {
    const NAME: &'static str = "batch_norm_backward";
    const SIGNATURE: &'static str =
        "(dy, x, mean [C], variance [C], weight [C], dbias? [C], dweight? [C], gate..) -> (dx, dresidual?)";

    fn attributes(&self) -> String {
        let residual = if self.residual { " residual" } else { "" };
        format!("epsilon {} {}{}{residual}", self.epsilon, self.statistics, suffix(self.activation))
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        self.residual.then_some((1, 0))
    }

    fn is_of_batch(&self) -> bool {
        true
    }
}

/// This shard's share of the running statistics. Row 0 is the mean, row 1 the unbiased variance (times
/// `count / (count - 1)`), both divided by `shards`. [`RunningUpdate`] takes the sum over shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunningShare {
    /// Pixels that the statistics cover.
    pub count: usize,
    /// Number of shards whose shares are summed.
    pub shards: usize,
}

impl Operation for RunningShare {
    const NAME: &'static str = "running_share";
    const SIGNATURE: &'static str = "(mean [C], variance [C]) -> (update [2,C])";

    fn attributes(&self) -> String {
        format!("count {} shards {}", self.count, self.shards)
    }

    fn is_of_batch(&self) -> bool {
        true
    }
}

/// `running = (1 - momentum) * running + momentum * update`, in place.
///
/// A skipped step updates them too, as in PyTorch, where forward does it: forward has not overflowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningUpdate {
    /// PyTorch's batch norm momentum.
    pub momentum: f32,
}

impl Operation for RunningUpdate {
    const NAME: &'static str = "running_update";
    const SIGNATURE: &'static str = "(update [2,C], running_mean [C], running_var [C]) -> ()";

    fn attributes(&self) -> String {
        format!("momentum {}", self.momentum)
    }

    fn changes(&self, inputs: usize) -> Range<usize> {
        1.min(inputs)..inputs
    }
}

/// A fused activation in the text of an operation.
fn suffix(activation: Option<Activation>) -> String {
    activation.map_or_else(String::new, |activation| format!(" {}", activation.name()))
}

/// Describes a batch norm. Defaults are PyTorch's: epsilon 1e-5, momentum 0.1.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    epsilon: f32,
    momentum: f32,
    fixed_weight: bool,
}

impl BatchNorm {
    /// PyTorch's defaults.
    pub fn new() -> Self {
        BatchNorm { epsilon: 1e-5, momentum: 0.1, fixed_weight: false }
    }

    /// What is added to the variance.
    pub fn epsilon(self, epsilon: f32) -> Self {
        BatchNorm { epsilon, ..self }
    }

    /// The share of the new batch in the running statistics (PyTorch's `momentum`).
    pub fn momentum(self, momentum: f32) -> Self {
        BatchNorm { momentum, ..self }
    }

    /// Leaves the weight at 1, which is not trained.
    pub fn fixed_weight(self) -> Self {
        BatchNorm { fixed_weight: true, ..self }
    }
}

impl Default for BatchNorm {
    fn default() -> Self {
        BatchNorm::new()
    }
}

impl Tensor {
    /// [`Tensor::batch_norm_with`] PyTorch's epsilon 1e-5 and momentum 0.1.
    pub fn batch_norm(self, name: &str) -> Tensor {
        self.batch_norm_with(name, BatchNorm::new())
    }

    /// `(x - mean) / sqrt(variance + epsilon) * weight + bias` per channel: by the statistics of the batch in training, by the
    /// running ones in evaluation. Parameters are `NAME.weight` and `NAME.bias`, buffers `NAME.running_mean` and
    /// `NAME.running_var`.
    ///
    /// # Shapes
    /// `[N,H,W,C]`, `[N,T,C]` or `[N,C]`, and the same.
    pub fn batch_norm_with(self, name: &str, norm: BatchNorm) -> Tensor {
        self.enter(name);
        let shape = self.shape();
        if shape.len() < 2 {
            let reason = "it needs [batch,height,width,channels] or [batch,features]".into();
            return self.fail(GraphError::Shape { place: self.layer("batch_norm"), shape, reason });
        }
        let BatchNorm { epsilon, momentum, fixed_weight } = norm;
        if !(0.0..f32::INFINITY).contains(&epsilon) || !(0.0..=1.0).contains(&momentum) {
            let reason = format!("has epsilon {epsilon} (at least 0) and momentum {momentum} (0 to 1)");
            return self.fail(GraphError::Attribute { place: self.layer("batch_norm"), reason });
        }
        let channels = shape.last();
        let count = shape.elements() / channels.max(1);
        let plain =
            |suffix: &str, init| self.parameter(format!("{name}.{suffix}"), [channels].into(), Layout::Plain, init);
        let weight = plain("weight", Init::Constant(1.0));
        let bias = plain("bias", Init::Constant(0.0));
        if fixed_weight {
            self.fix(weight);
        }
        let running_mean = self.buffer(format!("{name}.running_mean"), channels, 0.0);
        let running_var = self.buffer(format!("{name}.running_var"), channels, 1.0);
        if self.mode() == Mode::Evaluate {
            let op = BatchNormNormalize { epsilon, statistics: NormStatistics::Running, activation: None };
            return self.record(op, &[running_mean, running_var, weight, bias], shape);
        }
        let [mean, variance] = self.change_graph(|graph| {
            let mean = graph.add_activation(format!("{name}.mean"), [channels].into());
            let variance = graph.add_activation(format!("{name}.variance"), [channels].into());
            let share = graph.add_value(format!("{name}.share"), [2, channels].into(), DType::F32, Role::Carried);
            graph.nodes.extend([
                Node::new(BatchNormStatistics, [self.id], [mean, variance], Phase::Forward, name),
                Node::new(RunningShare { count, shards: 1 }, [mean, variance], [share], Phase::Forward, name),
                Node::new(RunningUpdate { momentum }, [share, running_mean, running_var], [], Phase::Update, name),
            ]);
            [mean, variance]
        });
        let op = BatchNormNormalize { epsilon, statistics: NormStatistics::Batch { count }, activation: None };
        self.record(op, &[mean, variance, weight, bias], shape)
    }
}
