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

use std::cell::RefCell;
use std::rc::Rc;

use enmasse_tensor::{DType, Shape};

use crate::ops::{Normalize, Op};
use crate::{FilterOrder, Graph, GraphError, Init, Layout, Node, Parameter, Phase, Role, ValueId};
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
    /// Instead of the model's own rate.
    drop_path: Option<f32>,
    /// The phase of new operations.
    phase: Phase,
    /// The latest named layer. Operations without a name are recorded under it.
    layer: String,
    /// The function of logits and targets that is being recorded, if it is one: `the loss`, `metric NAME`.
    function: Option<String>,
    /// The numbers of nodes after which a stage begins.
    stages: Vec<usize>,
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
    pub(crate) id: ValueId,
}

const IMAGES: ValueId = ValueId(0);
const LABELS: ValueId = ValueId(1);
pub(crate) const SAMPLE_INDICES: ValueId = ValueId(2);

impl Builder {
    /// Starts a graph for `batch` images of `[height, width]`. The seed is that of dropout.
    pub fn new(batch: usize, size: [usize; 2], mode: Mode, seed: u64) -> Self {
        let mut graph = Graph::default();
        graph.add_value("images", [batch, size[0], size[1], 3].into(), DType::U8, Role::Input);
        graph.add_value("labels", [batch].into(), DType::I32, Role::Input);
        graph.add_value("sample_indices", [batch].into(), DType::I64, Role::Input);
        let filters = FilterOrder::default();
        let phase = Phase::Forward;
        let layer = "input".into();
        let state = BuilderState {
            graph,
            mode,
            seed,
            filters,
            drop_path: None,
            phase,
            layer,
            function: None,
            stages: Vec::new(),
            error: None,
        };
        Builder { state: Rc::new(RefCell::new(state)), batch, size }
    }

    /// Sets the order of filters that the device chose.
    pub(crate) fn filters(self, filters: FilterOrder) -> Self {
        self.state.borrow_mut().filters = filters;
        self
    }

    /// Sets the probability of drop path, if it is not the model's own.
    pub(crate) fn drop_path(self, rate: Option<f32>) -> Self {
        self.state.borrow_mut().drop_path = rate;
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
        let op = Normalize { mean: mean.into(), std: std.into() };
        images.record(op, &[], shape)
    }

    /// The recorded graph.
    ///
    /// # Errors
    /// The first error of a layer, or `logits` are not `[batch, classes]`.
    pub fn finish(self, logits: &Tensor, classes: usize) -> Result<Forward, GraphError> {
        let state = self.state.borrow();
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let shape = state.graph.shape(logits.id);
        if **shape != [self.batch, classes] {
            let place = logits.place("the loss");
            let shape = shape.clone();
            let reason = format!("the model must end in [{},{classes}], one logit per class or output", self.batch);
            return Err(GraphError::Shape { place, shape, reason });
        }
        Ok(Forward {
            graph: state.graph.clone(),
            images: IMAGES,
            labels: LABELS,
            sample_indices: SAMPLE_INDICES,
            mixture: None,
            targets: None,
            teacher: None,
            kept: Vec::new(),
            stages: None,
            tensor_parallel: None,
            logits: logits.id,
        })
    }
}

impl Tensor {
    /// The shape, in memory order: `[batch, height, width, channels]`, or `[batch, features]`.
    pub fn shape(&self) -> Shape {
        self.state.borrow().graph.shape(self.id).clone()
    }

    /// What a layer of the model gives, with what follows it without a name; without a name what the last linear layer, which gives
    /// this tensor, reads. Nothing after it is computed.
    pub(crate) fn features(&self, layer: Option<&str>) -> Tensor {
        let mut state = self.state.borrow_mut();
        let last = state.layer.clone();
        let nodes = &mut state.graph.nodes;
        let is_in = |node: &Node, layer: &str| {
            node.layer.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let gives_this = |node: &Node| matches!(node.op, Op::LinearForward(_)) && node.outputs[0] == self.id;
        let found = match layer {
            Some(layer) => nodes.iter().rposition(|node| is_in(node, layer)).map(|at| (at + 1, nodes[at].outputs[0])),
            None => nodes.iter().rposition(gives_this).map(|at| (at, nodes[at].inputs[0])),
        };
        if let Some((end, id)) = found {
            nodes.truncate(end);
            state.layer = state.graph.nodes.last().map_or(last, |node| node.layer.clone());
            return Tensor { state: self.state.clone(), id };
        }
        drop(state);
        self.fail(GraphError::Option(match layer {
            Some(layer) => format!("the model has no layer {layer}; the last one is {last}"),
            None => {
                format!("the model does not end in a linear layer, whose input would be its features, but in {last}")
            }
        }))
    }

    /// What the model is recorded for.
    pub(crate) fn mode(&self) -> Mode {
        self.state.borrow().mode
    }

    /// The seed of dropout.
    pub(crate) fn seed(&self) -> u64 {
        self.state.borrow().seed
    }

    /// The probability with which a model leaves out its last residual branch ([`Self::drop_path`]): `own`, unless the options say
    /// otherwise. Those of the branches before it are in proportion.
    pub fn drop_path_rate(&self, own: f32) -> f32 {
        self.state.borrow().drop_path.unwrap_or(own)
    }

    /// The order of filters that the device chose.
    pub(crate) fn filters(&self) -> FilterOrder {
        self.state.borrow().filters
    }

    /// Marks a value that gradient checkpointing keeps, such as the result of a block: what lies between two such values is a block
    /// that [`crate::Recompute`] can have backward compute again. Otherwise the mark means nothing.
    pub fn checkpoint(self) -> Tensor {
        self.change_graph(|graph| graph.values[self.id.0].checkpoint = true);
        self
    }

    /// Begins a stage of the model with the next named layer: [`crate::stages_of`] gives the names that [`crate::StageCut::begins`] takes.
    /// Where a model is not cut, it means nothing.
    pub fn begin_stage(self) -> Tensor {
        let mut state = self.state.borrow_mut();
        let nodes = state.graph.nodes.len();
        state.stages.push(nodes);
        drop(state);
        self
    }

    /// The numbers of nodes after which a stage begins.
    pub(crate) fn stages(&self) -> Vec<usize> {
        self.state.borrow().stages.clone()
    }

    /// Begins a named layer.
    pub(crate) fn enter(&self, layer: &str) {
        self.state.borrow_mut().layer = layer.into();
    }

    /// Reads the graph, or adds what is not an operation on this tensor alone.
    pub(crate) fn change_graph<T>(&self, change: impl FnOnce(&mut Graph) -> T) -> T {
        change(&mut self.state.borrow_mut().graph)
    }

    pub(crate) fn parameter(&self, name: String, shape: Shape, layout: Layout, init: Init) -> ValueId {
        self.named(name, shape, Role::Parameter(Parameter { layout, init, trainable: true }))
    }

    /// Makes a parameter one that is not trained (PyTorch's `requires_grad = False`).
    pub(crate) fn fix(&self, parameter: ValueId) {
        if let Role::Parameter(parameter) = &mut self.state.borrow_mut().graph.values[parameter.0].role {
            parameter.trainable = false;
        }
    }

    /// Whether this is what the model is given.
    pub(crate) fn is_pixels(&self) -> bool {
        let state = self.state.borrow();
        state.graph.nodes.iter().any(|node| matches!(node.op, Op::Normalize(_)) && node.outputs[0] == self.id)
    }

    pub(crate) fn buffer(&self, name: String, channels: usize, initial: f32) -> ValueId {
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

    /// Records an operation on this tensor alone, whose result has its shape.
    pub(crate) fn elementwise(&self, op: impl Into<Op>) -> Tensor {
        self.record(op, &[], self.shape())
    }

    /// Records an operation on this tensor and `operands`.
    pub(crate) fn record(&self, op: impl Into<Op>, operands: &[ValueId], shape: Shape) -> Tensor {
        let mut state = self.state.borrow_mut();
        if state.error.is_some() {
            return Tensor { state: self.state.clone(), id: self.id };
        }
        let op = op.into();
        let layer = state.layer.clone();
        let id = state.graph.add_activation(format!("{layer}.{}", op.name()), shape);
        let node = Node::new(op, [&[self.id], operands].concat(), [id], state.phase, layer);
        state.graph.nodes.push(node);
        Tensor { state: self.state.clone(), id }
    }

    /// Adds a further result to the operation that has just been recorded, and gave this tensor.
    pub(crate) fn add_result(&self, what: &str, shape: Shape, dtype: DType) {
        let mut state = self.state.borrow_mut();
        if state.error.is_some() {
            return;
        }
        let name = format!("{}.{what}", state.layer);
        let result = state.graph.add_value(name, shape, dtype, Role::Activation);
        if let Some(node) = state.graph.nodes.last_mut() {
            node.outputs.push(result);
        }
    }

    pub(crate) fn set_error(&self, error: GraphError) {
        self.state.borrow_mut().error.get_or_insert(error);
    }

    pub(crate) fn fail(&self, error: GraphError) -> Tensor {
        self.set_error(error);
        self.clone()
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
