//! Records a model as a graph while its function runs, and checks every shape.
//!
//! A model is a function from a [`Tensor`] to a [`Tensor`]. It is recorded once for training and once for evaluation, because
//! dropout and batch norm differ between the two modes. [`Builder::finish`] reports the first error. Layers after it record
//! nothing, so model code needs no error handling.
//!
//! ```
//! use enmasse_graph::{Builder, Conv, Mode, Pool, Tensor};
//! fn lenet(x: Tensor) -> Tensor {
//!     let x = x.conv2d("conv1", Conv::new(6, 5)).relu().max_pool(Pool::new(2));
//!     let x = x.conv2d("conv2", Conv::new(16, 5)).relu().max_pool(Pool::new(2));
//!     x.flatten().linear("fc1", 120).relu().linear("fc2", 10)
//! }
//! let builder = Builder::new(4, [32, 32], Mode::Train, 0);
//! let logits = lenet(builder.pixels(&[0.5; 3], &[0.25; 3]));
//! assert_eq!(*logits.shape(), [4, 10]);
//! builder.finish(&logits, 10).unwrap();
//! ```

mod checks;
mod forward;
mod functions;

use std::cell::RefCell;
use std::rc::Rc;

use enmasse_tensor::{DType, Shape};

use crate::layer::{Conv, Linear, Pool};
use crate::{
    Activation, AdaptiveAvgPool, Conv2d, FilterOrder, Graph, GraphError, Init, Layout, Node, NormStatistics, Op,
    Parameter, Phase, Role, ValueId,
};
pub use forward::{Forward, MixtureInputs, PerSample};

/// What a model is recorded for, which is the purpose of its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A training step.
    Train,
    /// Loss and accuracy of a batch, with running statistics. Changes no state.
    Evaluate,
}

#[derive(Debug)]
struct BuilderState {
    graph: Graph,
    mode: Mode,
    seed: u64,
    filters: FilterOrder,
    /// The phase of new operations.
    phase: Phase,
    /// The latest named layer. Operations without a name are recorded under it.
    layer: String,
    /// The function of logits and targets that is being recorded, if it is one: `the loss`, `metric NAME`.
    function: Option<String>,
    error: Option<GraphError>,
}

/// Records one graph.
#[derive(Debug)]
pub struct Builder {
    state: Rc<RefCell<BuilderState>>,
    batch: usize,
    size: [usize; 2],
}

/// A value of the graph being recorded.
#[derive(Clone, Debug)]
pub struct Tensor {
    state: Rc<RefCell<BuilderState>>,
    id: ValueId,
}

const IMAGES: ValueId = ValueId(0);
const LABELS: ValueId = ValueId(1);
const SAMPLE_INDICES: ValueId = ValueId(2);

impl Builder {
    /// Starts a graph for `batch` images of `[height, width]`. The seed is that of dropout.
    pub fn new(batch: usize, size: [usize; 2], mode: Mode, seed: u64) -> Self {
        let mut graph = Graph::default();
        graph.add_value("images", [batch, size[0], size[1], 3].into(), DType::U8, Role::Input);
        graph.add_value("labels", [batch].into(), DType::I32, Role::Input);
        graph.add_value("sample_indices", [batch].into(), DType::I64, Role::Input);
        let filters = FilterOrder::default();
        let (phase, layer) = (Phase::Forward, "input".into());
        let state = BuilderState { graph, mode, seed, filters, phase, layer, function: None, error: None };
        Builder { state: Rc::new(RefCell::new(state)), batch, size }
    }

    /// Sets the order of filters that the device chose.
    pub(crate) fn filters(self, filters: FilterOrder) -> Self {
        self.state.borrow_mut().filters = filters;
        self
    }

    /// The images, normalised per channel by mean and std on the scale 0 to 1. With one mean and std instead
    /// of three, the result has one channel, for grey images.
    pub fn pixels(&self, mean: &[f32], std: &[f32]) -> Tensor {
        let images = Tensor { state: self.state.clone(), id: IMAGES };
        let (channels, stds) = (mean.len(), std.len());
        if ![1, 3].contains(&channels) || stds != channels {
            let reason = format!("images have 3 channels or 1, got {channels} means and {stds} stds");
            return images.fail(GraphError::Option(reason));
        }
        if let Some(mean) = mean.iter().find(|mean| !mean.is_finite()) {
            return images.fail(GraphError::Option(format!("mean {mean} is not finite")));
        }
        if let Some(std) = std.iter().find(|&&std| !(std.is_finite() && std > 0.0)) {
            return images.fail(GraphError::Option(format!("std {std} must be above 0")));
        }
        let shape = Shape::from([self.batch, self.size[0], self.size[1], channels]);
        let op = Op::Normalize { mean: mean.into(), std: std.into() };
        images.record_as(true, op, &[], shape)
    }

    /// The recorded graph. Returns the first error of a layer, or an error if `logits` are not `[batch, classes]`.
    pub fn finish(self, logits: &Tensor, classes: usize) -> Result<Forward, GraphError> {
        let state = self.state.borrow();
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let shape = state.graph.shape(logits.id);
        if **shape != [self.batch, classes] {
            let (place, shape) = (logits.place("the loss"), shape.clone());
            let reason = format!("the model must end in [{},{classes}], one logit per class", self.batch);
            return Err(GraphError::Shape { place, shape, reason });
        }
        Ok(Forward {
            graph: state.graph.clone(),
            images: IMAGES,
            labels: LABELS,
            sample_indices: SAMPLE_INDICES,
            mixture: None,
            logits: logits.id,
        })
    }
}

impl Tensor {
    /// The shape, in memory order: `[batch, height, width, channels]`, or `[batch, features]`.
    pub fn shape(&self) -> Shape {
        self.state.borrow().graph.shape(self.id).clone()
    }

    /// Convolution, with parameters `NAME.weight` and, if it has a bias, `NAME.bias`.
    pub fn conv2d(self, name: &str, conv: Conv) -> Tensor {
        self.enter(name);
        let (shape, window) = (self.shape(), conv.window);
        let Some([n, h, w, c]) = self.image_dims(self.layer("conv2d"), &shape) else { return self };
        if conv.groups == 0 || c % conv.groups != 0 || conv.channels == 0 || !conv.channels.is_multiple_of(conv.groups)
        {
            let (groups, outputs) = (conv.groups, conv.channels);
            let reason = format!("its groups ({groups}) must divide {c} input and {outputs} output channels");
            return self.fail(GraphError::Shape { place: self.layer("conv2d"), shape, reason });
        }
        let Some([oh, ow]) = self.window_dims(self.layer("conv2d"), &shape, &window, [h, w]) else { return self };
        let taps = window.kernel[0] * window.kernel[1];
        let bound = 1.0 / ((c / conv.groups * taps) as f32).sqrt();
        let init = match conv.kaiming {
            true => Init::Normal { std: (2.0 / (conv.channels * taps) as f32).sqrt() },
            false => Init::Uniform { bound },
        };
        let filters = self.state.borrow().filters;
        let (dims, layout) =
            (filters.shape(window.kernel, c / conv.groups, conv.channels), Layout::Convolution(filters));
        let mut operands = vec![self.parameter(format!("{name}.weight"), dims, layout, init)];
        if conv.bias {
            let init = if conv.kaiming { Init::Constant(0.0) } else { Init::Uniform { bound } };
            operands.push(self.parameter(format!("{name}.bias"), [conv.channels].into(), Layout::Plain, init));
        }
        let op = Op::Conv2d(Conv2d { window, groups: conv.groups });
        self.record(op, &operands, [n, oh, ow, conv.channels].into())
    }

    /// Batch norm with PyTorch's epsilon 1e-5 and momentum 0.1. Parameters are `NAME.weight` and `NAME.bias`, buffers
    /// `NAME.running_mean` and `NAME.running_var`.
    pub fn batch_norm(self, name: &str) -> Tensor {
        const EPSILON: f32 = 1e-5;
        const MOMENTUM: f32 = 0.1;
        self.enter(name);
        let shape = self.shape();
        if shape.len() < 2 {
            let reason = "it needs [batch,height,width,channels] or [batch,features]".into();
            return self.fail(GraphError::Shape { place: self.layer("batch_norm"), shape, reason });
        }
        let (channels, training) = (shape.last(), self.state.borrow().mode == Mode::Train);
        let count = shape.elements() / channels.max(1);
        let plain =
            |suffix: &str, init| self.parameter(format!("{name}.{suffix}"), [channels].into(), Layout::Plain, init);
        let (weight, bias) = (plain("weight", Init::Constant(1.0)), plain("bias", Init::Constant(0.0)));
        let running_mean = self.buffer(format!("{name}.running_mean"), channels, 0.0);
        let running_var = self.buffer(format!("{name}.running_var"), channels, 1.0);
        if !training {
            let statistics = NormStatistics::Running;
            let op = Op::BatchNormNormalize { epsilon: EPSILON, statistics, activation: None };
            return self.record(op, &[running_mean, running_var, weight, bias], shape);
        }
        let (mean, variance) = {
            let mut state = self.state.borrow_mut();
            let graph = &mut state.graph;
            let mean = graph.add_activation(format!("{name}.mean"), [channels].into());
            let variance = graph.add_activation(format!("{name}.variance"), [channels].into());
            let share = graph.add_value(format!("{name}.share"), [2, channels].into(), DType::F32, Role::Carried);
            let running_share = Op::RunningShare { count, shards: 1 };
            let update = Op::RunningUpdate { momentum: MOMENTUM };
            graph.nodes.extend([
                Node::new(Op::BatchNormStatistics, [self.id], [mean, variance], Phase::Forward, name),
                Node::new(running_share, [mean, variance], [share], Phase::Forward, name),
                Node::new(update, [share, running_mean, running_var], [], Phase::Update, name),
            ]);
            (mean, variance)
        };
        let statistics = NormStatistics::Batch { count };
        let op = Op::BatchNormNormalize { epsilon: EPSILON, statistics, activation: None };
        self.record(op, &[mean, variance, weight, bias], shape)
    }

    /// `max(x, 0)`.
    pub fn relu(self) -> Tensor {
        let shape = self.shape();
        self.record(Op::Activation(Activation::Relu), &[], shape)
    }

    /// `min(max(x, 0), 6)`.
    pub fn relu6(self) -> Tensor {
        let shape = self.shape();
        self.record(Op::Activation(Activation::Relu6), &[], shape)
    }

    /// Max pooling.
    pub fn max_pool(self, pool: Pool) -> Tensor {
        if pool.0.kernel[0] * pool.0.kernel[1] > 256 {
            let reason = format!("has a window of {}; at most 256 elements fit", pool.0);
            return self.fail(GraphError::Attribute { place: self.place("max_pool"), reason });
        }
        let Some(shape) = self.pooled("max_pool", pool.0) else { return self };
        let y = self.record(Op::MaxPool(pool.0), &[], shape.clone());
        if y.failed() {
            return y;
        }
        let mut state = y.state.borrow_mut();
        let name = format!("{}.position", state.layer);
        let position = state.graph.add_value(name, shape, DType::U8, Role::Activation);
        if let Some(node) = state.graph.nodes.last_mut() {
            node.outputs.push(position);
        }
        drop(state);
        y
    }

    /// Average pooling; the divisor includes padding.
    pub fn avg_pool(self, pool: Pool) -> Tensor {
        match self.pooled("avg_pool", pool.0) {
            Some(shape) => self.record(Op::AvgPool(pool.0), &[], shape),
            None => self,
        }
    }

    /// Average pooling to a fixed `[height, width]`, independent of the input's size.
    pub fn adaptive_avg_pool(self, output: [usize; 2]) -> Tensor {
        let shape = self.shape();
        let Some([n, _, _, c]) = self.image_dims(self.place("adaptive_avg_pool"), &shape) else { return self };
        if output.contains(&0) {
            let reason = format!("needs an output of at least 1x1, got {}x{}", output[0], output[1]);
            return self.fail(GraphError::Attribute { place: self.place("adaptive_avg_pool"), reason });
        }
        self.record(Op::AdaptiveAvgPool(AdaptiveAvgPool { output }), &[], [n, output[0], output[1], c].into())
    }

    /// Dropout in training; evaluation leaves it out. The name keys its random numbers.
    pub fn dropout(self, name: &str, probability: f32) -> Tensor {
        self.enter(name);
        if !(0.0..1.0).contains(&probability) {
            let reason = format!("has probability {probability}, which must be at least 0 and below 1");
            return self.fail(GraphError::Attribute { place: self.layer("dropout"), reason });
        }
        let (mode, seed) = (self.state.borrow().mode, self.state.borrow().seed);
        let is_this = |node: &Node| matches!(&node.op, Op::Dropout { layer, .. } if layer == name);
        if self.state.borrow().graph.nodes.iter().any(is_this) {
            let reason = "has the name of an earlier dropout, and both would drop the same elements".into();
            return self.fail(GraphError::Attribute { place: self.layer("dropout"), reason });
        }
        if mode == Mode::Evaluate || probability == 0.0 {
            return self;
        }
        let shape = self.shape();
        self.record(Op::Dropout { probability, seed, layer: name.into() }, &[SAMPLE_INDICES], shape)
    }

    /// Flattens to `[batch, features]` in PyTorch's order: channels first.
    pub fn flatten(self) -> Tensor {
        let shape = self.shape();
        let Some([n, h, w, c]) = self.image_dims(self.place("flatten"), &shape) else { return self };
        self.record_as(false, Op::Flatten, &[], [n, h * w * c].into())
    }

    /// A linear layer with bias, with parameters `NAME.weight` and `NAME.bias`.
    pub fn linear(self, name: &str, linear: impl Into<Linear>) -> Tensor {
        let Linear { outputs, std } = linear.into();
        self.enter(name);
        let shape = self.shape();
        let &[n, inputs] = &shape[..] else {
            let reason = "it needs [batch,features]: add flatten before this layer".into();
            return self.fail(GraphError::Shape { place: self.layer("linear"), shape, reason });
        };
        if outputs == 0 {
            return self.fail(GraphError::Attribute { place: self.layer("linear"), reason: "has no outputs".into() });
        }
        let uniform = Init::Uniform { bound: 1.0 / (inputs as f32).sqrt() };
        let (weight, bias) = match std {
            Some(std) => (Init::Normal { std }, Init::Constant(0.0)),
            None => (uniform, uniform),
        };
        let weight = self.parameter(format!("{name}.weight"), [inputs, outputs].into(), Layout::Linear, weight);
        let bias = self.parameter(format!("{name}.bias"), [outputs].into(), Layout::Plain, bias);
        self.record(Op::Linear, &[weight, bias], [n, outputs].into())
    }

    fn parameter(&self, name: String, shape: Shape, layout: Layout, init: Init) -> ValueId {
        self.named(name, shape, Role::Parameter(Parameter { layout, init, trainable: true }))
    }

    fn buffer(&self, name: String, channels: usize, initial: f32) -> ValueId {
        self.named(name, [channels].into(), Role::Buffer { initial })
    }

    fn named(&self, name: String, shape: Shape, role: Role) -> ValueId {
        let mut state = self.state.borrow_mut();
        let taken = state.graph.ids().any(|(_, value)| value.name == name && value.role != Role::Activation);
        if taken && state.error.is_none() {
            state.error = Some(GraphError::Duplicate { layer: state.layer.clone(), name: name.clone() });
        }
        state.graph.add_value(name, shape, DType::F32, role)
    }

    /// Records an operation whose result is a feature map if this tensor is one.
    fn record(&self, op: Op, operands: &[ValueId], shape: Shape) -> Tensor {
        let is_activation = self.state.borrow().graph.value(self.id).is_activation;
        self.record_as(is_activation, op, operands, shape)
    }

    fn record_as(&self, is_activation: bool, op: Op, operands: &[ValueId], shape: Shape) -> Tensor {
        let mut state = self.state.borrow_mut();
        if state.error.is_some() {
            return Tensor { state: self.state.clone(), id: self.id };
        }
        let layer = state.layer.clone();
        let id = state.graph.add_activation(format!("{layer}.{}", op.name()), shape);
        state.graph.values[id.0].is_activation = is_activation;
        let node = Node::new(op, [&[self.id], operands].concat(), [id], state.phase, layer);
        state.graph.nodes.push(node);
        Tensor { state: self.state.clone(), id }
    }

    fn enter(&self, layer: &str) {
        self.state.borrow_mut().layer = layer.into();
    }

    fn failed(&self) -> bool {
        self.state.borrow().error.is_some()
    }

    fn set_error(&self, error: GraphError) {
        self.state.borrow_mut().error.get_or_insert(error);
    }

    fn fail(&self, error: GraphError) -> Tensor {
        self.set_error(error);
        self.clone()
    }
}

/// Adds two tensors of the same shape: a residual connection.
impl std::ops::Add for Tensor {
    type Output = Tensor;
    fn add(self, other: Tensor) -> Tensor {
        match self.same_shape("add", &other) {
            Some(shape) => self.record(Op::Add, &[other.id], shape),
            None => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_one_channel_or_three() {
        let check = |mean: &[f32], std: &[f32], expected: Result<usize, &str>| {
            let builder = Builder::new(2, [8, 8], Mode::Train, 0);
            let x = builder.pixels(mean, std);
            let channels = x.shape().last();
            let found = builder.finish(&x.flatten().linear("fc", 10), 10).map(|_| channels).map_err(|e| e.to_string());
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected) && !found.contains('\n'), "{found}"),
                _ => panic!("{mean:?} {std:?}: {found:?}"),
            }
        };
        check(&[0.5; 3], &[0.25; 3], Ok(3));
        check(&[0.1307], &[0.3081], Ok(1));
        check(&[0.5; 2], &[0.25; 2], Err("2 means and 2 stds"));
        check(&[0.5], &[0.25; 3], Err("1 means and 3 stds"));
        check(&[], &[], Err("0 means"));
        check(&[f32::NAN], &[1.0], Err("mean NaN"));
        check(&[0.5; 3], &[0.25, 0.0, 0.25], Err("std 0 must be above 0"));
        check(&[0.5; 3], &[0.25, 0.25, f32::INFINITY], Err("std inf"));
    }
}
