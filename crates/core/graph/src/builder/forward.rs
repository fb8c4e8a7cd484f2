//! A recorded forward graph, and what the loss phase appends to it: functions of logits and targets, which are functions on the
//! builder like models.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use enmasse_tensor::DType;

use super::{BuilderState, Mode, Tensor};
use crate::ops::{MaskSamples, Targets};
use crate::passes::{LayerStages, TensorParallel};
use crate::{FilterOrder, Graph, GraphError, Node, Op, OperationLocation, Phase, Relation, Role, ValueId};

/// A function on the builder that returns a number for each sample.
///
/// It takes the logits `[N,K]` and the targets `[N,K]`, which are 1 at the label and 0 elsewhere, and returns `[N]`. All are
/// f32. In training on mixtures of two samples the targets are the lambdas of both labels. Of [`crate::TargetKind::Values`] the
/// targets are the samples' D values, `[N,D]`. The last batch may be padded with places that hold no sample. There, all targets
/// are 0 and the result is ignored.
///
/// ```
/// use enmasse_graph::{CompileOptions, Metric, PerSample, Tensor, compile};
/// let function = PerSample::new(|logits: Tensor, targets: Tensor| (logits * targets).sum_classes());
/// let metrics = vec![Metric::Top(5), Metric::Custom { name: "label_logit".into(), function }];
/// let options = CompileOptions { metrics, ..CompileOptions::new("softmax", 8, 16, 10) };
/// let plans = compile(&|x: Tensor| x.flatten().linear("fc", 10), &options).unwrap();
/// let names: Vec<String> = plans.evaluate.measured.into_iter().map(|measured| measured.name).collect();
/// assert_eq!(names, ["top5", "label_logit"]);
/// ```
#[derive(Clone)]
pub struct PerSample(Arc<dyn Fn(Tensor, Tensor) -> Tensor + Send + Sync>);

impl PerSample {
    /// Wraps a function of `(logits, targets)`.
    pub fn new(function: impl Fn(Tensor, Tensor) -> Tensor + Send + Sync + 'static) -> Self {
        PerSample(Arc::new(function))
    }

    pub(crate) fn call(&self, logits: Tensor, targets: Tensor) -> Tensor {
        (self.0)(logits, targets)
    }
}

impl fmt::Debug for PerSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerSample(..)")
    }
}

/// The inputs of a step whose samples are mixed in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixtureInputs {
    /// `i32 [batch]`: the class of the sample that is mixed into each place, which may be the label.
    pub other_labels: ValueId,
    /// `f32 [batch]`: the share of the label in each target, from 0 to 1. The other label has the rest.
    pub lambdas: ValueId,
}

/// A recorded forward graph, and the values that the rest of the step needs.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The graph.
    pub graph: Graph,
    /// `u8 [batch, height, width, 3]`.
    pub images: ValueId,
    /// `i32 [batch]`.
    pub labels: ValueId,
    /// `i64 [batch]`.
    pub sample_indices: ValueId,
    /// The further inputs of a step on mixtures.
    pub mixture: Option<MixtureInputs>,
    /// The input with values as targets, `f32 [batch, values]`.
    pub targets: Option<ValueId>,
    /// `f32 [batch, classes]`.
    pub logits: ValueId,
    /// The logits of the teacher, if there is one.
    pub teacher: Option<ValueId>,
    /// Activations that are to be read after the step.
    pub kept: Vec<ValueId>,
    /// The stage of each layer, of which one will be left.
    pub(crate) stages: Option<LayerStages>,
    /// The layers that have been cut over ranks.
    pub(crate) tensor_parallel: Option<TensorParallel>,
}

impl Forward {
    /// Adds the inputs of a step on mixtures, which the loss and the targets then take.
    pub(crate) fn mix(&mut self) {
        let samples = self.graph.shape(self.labels).clone();
        let mut input = |name: &str, dtype| self.graph.add_value(name, samples.clone(), dtype, Role::Input);
        let other_labels = input("other_labels", DType::I32);
        let lambdas = input("lambdas", DType::F32);
        self.mixture = Some(MixtureInputs { other_labels, lambdas });
    }

    /// Adds the input with `count` values for each sample, which the loss and the metrics then take in place of labels.
    pub(crate) fn take_values(&mut self, count: usize) {
        let shape = [self.graph.shape(self.labels).elements(), count].into();
        self.targets = Some(self.graph.add_value("targets", shape, DType::F32, Role::Input));
    }

    /// The labels, and what mixtures have beside them: operands of a loss, and of targets.
    pub(crate) fn label_operands(&self) -> Vec<ValueId> {
        let of_mixture =
            self.mixture.into_iter().flat_map(|MixtureInputs { other_labels, lambdas }| [other_labels, lambdas]);
        [self.labels].into_iter().chain(of_mixture).collect()
    }

    /// Records a function of logits and targets in the loss phase. Errors call it `what`. Returns its value, `f32 [N]`.
    ///
    /// # Errors
    /// The function's first error in an operation; or it takes other values than these two, does not give a number for
    /// each sample, or does not depend on the logits.
    pub fn record(
        &mut self,
        what: &str,
        layer: &str,
        logits: ValueId,
        function: &PerSample,
    ) -> Result<ValueId, GraphError> {
        let targets = self.target_rows();
        self.record_of(what, layer, [logits, targets], function)
    }

    /// Records a function of logits and other values of each sample in the loss phase, as [`Forward::record`] does.
    pub(crate) fn record_of(
        &mut self,
        what: &str,
        layer: &str,
        [logits, targets]: [ValueId; 2],
        function: &PerSample,
    ) -> Result<ValueId, GraphError> {
        let (values, nodes) = (self.graph.values.len(), self.graph.nodes.len());
        // Training mode records dropout, so that the check below refuses it.
        let graph = std::mem::take(&mut self.graph);
        let mode = Mode::Train;
        let filters = FilterOrder::default();
        let phase = Phase::Loss;
        let layer = layer.into();
        let function_name = Some(what.to_owned());
        let state = BuilderState {
            graph,
            mode,
            seed: 0,
            filters,
            drop_path: None,
            phase,
            layer,
            function: function_name,
            stages: Vec::new(),
            error: None,
        };
        let state = Rc::new(RefCell::new(state));
        let [x, y] = [logits, targets].map(|id| Tensor { state: state.clone(), id });
        let result = function.call(x, y).id;
        let mut state = state.borrow_mut();
        self.graph = std::mem::take(&mut state.graph);
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        let mut depends = vec![logits];
        for node in &self.graph.nodes[nodes..] {
            let given = |id: ValueId| id == logits || id == targets;
            let made = |id: ValueId| id.0 >= values && self.graph.value(id).role == Role::Activation;
            if let Some(&other) = node.inputs.iter().find(|&&id| !given(id) && !made(id)) {
                let place =
                    OperationLocation { operation: node.op.name(), layer: what.to_owned(), relation: Relation::Inside };
                let name = &self.graph.value(other).name;
                let reason = format!("takes {name}; a function of logits and targets takes nothing else");
                return Err(GraphError::Attribute { place, reason });
            }
            if node.inputs.iter().any(|id| depends.contains(id)) {
                depends.extend(&node.outputs);
            }
        }
        let found = self.graph.shape(result);
        let samples = self.graph.shape(self.labels);
        if found != samples {
            let reason = format!("{what} gives {found}, not a number for each of {} samples", samples.elements());
            return Err(GraphError::Option(reason));
        }
        if !depends.contains(&result) {
            return Err(GraphError::Option(format!("{what} does not depend on the logits")));
        }
        Ok(result)
    }

    /// The labels as targets, `[N,K]`, or the values, `[N,D]`. They are appended once, and all functions share them.
    fn target_rows(&mut self) -> ValueId {
        let makes_them = |node: &&Node| match self.targets {
            Some(values) => node.inputs.first() == Some(&values),
            None => matches!(node.op, Op::Targets(_)),
        };
        if let Some(node) = self.graph.nodes.iter().find(makes_them) {
            return node.outputs[0];
        }
        match self.targets {
            Some(values) => {
                let masked = self.graph.add_like("targets.masked", values);
                self.append(MaskSamples, vec![values, self.labels], masked, "loss");
                masked
            }
            None => {
                let targets = self.graph.add_like("targets", self.logits);
                self.append(Targets, self.label_operands(), targets, "loss");
                targets
            }
        }
    }

    /// Appends an operation with one result to the loss phase.
    pub(crate) fn append(&mut self, op: impl Into<Op>, inputs: Vec<ValueId>, output: ValueId, layer: &str) {
        self.graph.nodes.push(Node::new(op, inputs, [output], Phase::Loss, layer));
    }
}
