//! Reverse-mode differentiation: appends the backward nodes of a loss to its graph.
//!
//! Nodes are visited in reverse. Each rule emits nodes that turn the gradient of an output into gradients of the inputs that
//! want one. A value wants a gradient if it is a trainable parameter or depends on one, so frozen parts cost nothing. A
//! heatmap asks for the gradient of one activation instead. If a value has several gradients, they are added. A convolution adds the
//! earlier gradients of its input itself.

use enmasse_tensor::Shape;

use crate::ops::{Add, Op};
use crate::{Graph, GraphError, Node, Phase, Role, Value, ValueId};

/// Appends backward nodes for `loss_node`, a [`crate::ops::CrossEntropy`] or [`crate::ops::SampleSum`]. Returns `(parameter, gradient)` for
/// each trainable parameter, in the order in which backward completes the gradients. Those gradients have the role
/// [`Role::Gradient`].
///
/// With `allow_unused`, no node writes the gradient of a trainable parameter that does not reach the loss: it stays zero.
pub fn backward(
    graph: &mut Graph,
    loss_node: usize,
    allow_unused: bool,
) -> Result<Vec<(ValueId, ValueId)>, GraphError> {
    let wants = wanting(graph, |_, value| matches!(&value.role, Role::Parameter(p) if p.trainable));
    let gradients = append_gradients(graph, loss_node, wants)?;
    order_parameters(graph, &gradients, allow_unused)
}

/// Appends the backward nodes of `loss_node` that give the gradient of one activation, and returns that gradient; `None` if the loss
/// does not depend on it. Parameters have no gradients.
pub(crate) fn gradient_of(
    graph: &mut Graph,
    loss_node: usize,
    activation: ValueId,
) -> Result<Option<ValueId>, GraphError> {
    let wants = wanting(graph, |id, _| id == activation);
    Ok(append_gradients(graph, loss_node, wants)?[activation.0])
}

/// Appends the backward nodes of `loss_node` for the values that want a gradient. Returns the gradient of each value.
fn append_gradients(graph: &mut Graph, loss_node: usize, wants: Vec<bool>) -> Result<Vec<Option<ValueId>>, GraphError> {
    let mut pass =
        Backward { gradients: vec![None; graph.values.len()], wants, emitted: Vec::new(), layer: String::new(), graph };
    for index in (0..=loss_node).rev() {
        let node = pass.graph.nodes[index].clone();
        pass.layer.clone_from(&node.layer);
        pass.differentiate(&node)?;
    }
    let (gradients, emitted) = (pass.gradients, pass.emitted);
    graph.nodes.extend(emitted);
    Ok(gradients)
}

/// Whether each value is one of those that are asked for, or depends on one.
fn wanting(graph: &Graph, is_asked_for: impl Fn(ValueId, &Value) -> bool) -> Vec<bool> {
    let mut wants: Vec<bool> = graph.ids().map(|(id, value)| is_asked_for(id, value)).collect();
    for node in &graph.nodes {
        let any = node.inputs.iter().any(|input| wants[input.0]);
        node.outputs.iter().for_each(|output| wants[output.0] |= any);
    }
    wants
}

/// Marks the final gradient of each trainable parameter, and sorts the gradients in the order of their completion.
fn order_parameters(
    graph: &mut Graph,
    gradients: &[Option<ValueId>],
    allow_unused: bool,
) -> Result<Vec<(ValueId, ValueId)>, GraphError> {
    let trainable: Vec<ValueId> = graph.parameters().filter(|(_, _, p)| p.trainable).map(|(id, _, _)| id).collect();
    if trainable.is_empty() {
        return Err(GraphError::NothingToTrain);
    }
    let mut pairs = Vec::new();
    for parameter in trainable {
        let name = graph.value(parameter).name.clone();
        let gradient = match gradients[parameter.0] {
            Some(gradient) => gradient,
            None if allow_unused => graph.add_like("", parameter),
            None => return Err(GraphError::Unused { name }),
        };
        let value = &mut graph.values[gradient.0];
        value.name = format!("gradient.{name}");
        value.role = Role::Gradient { parameter };
        pairs.push((parameter, gradient));
    }
    let producers = graph.producers();
    // Unwritten gradients come first: they are complete before backward begins.
    pairs.sort_by_key(|&(_, gradient)| (producers[gradient.0], gradient));
    Ok(pairs)
}

/// The backward pass while it is built: what the rules of operations ([`crate::ops::Operation::gradient`]) read and emit.
#[derive(Debug)]
pub struct Backward<'a> {
    graph: &'a mut Graph,
    gradients: Vec<Option<ValueId>>,
    wants: Vec<bool>,
    emitted: Vec<Node>,
    layer: String,
}

impl Backward<'_> {
    /// Whether a value wants a gradient.
    pub fn wants(&self, value: ValueId) -> bool {
        self.wants[value.0]
    }

    /// The shape of a value.
    pub fn shape(&self, value: ValueId) -> &Shape {
        self.graph.shape(value)
    }

    /// The sum of a value's gradients so far.
    pub fn gradient_of(&self, value: ValueId) -> Option<ValueId> {
        self.gradients[value.0]
    }

    /// Replaces the gradient of a value by one that contains it.
    pub fn set_gradient(&mut self, target: ValueId, gradient: ValueId) {
        self.gradients[target.0] = Some(gradient);
    }

    /// Emits an operation whose outputs have the shapes and types of the values `like`.
    pub fn emit(&mut self, op: impl Into<Op>, inputs: Vec<ValueId>, like: &[ValueId]) -> Vec<ValueId> {
        let op = op.into();
        let name = format!("{}.{}", self.layer, op.name());
        let outputs: Vec<ValueId> = like.iter().map(|&other| self.graph.add_like(name.clone(), other)).collect();
        self.gradients.resize(self.graph.values.len(), None);
        self.wants.resize(self.graph.values.len(), false);
        let layer = self.layer.clone();
        self.emitted.push(Node { op, inputs, outputs: outputs.clone(), phase: Phase::Backward, layer });
        outputs
    }

    /// Emits an operation whose single output is a gradient of `target`, if `target` wants one.
    pub fn emit_gradient(&mut self, target: ValueId, op: impl Into<Op>, inputs: Vec<ValueId>) {
        if self.wants(target) {
            let gradient = self.emit(op, inputs, &[target])[0];
            self.add_gradient(target, gradient);
        }
    }

    /// Adds a gradient to those that a value has, if it wants one.
    pub fn add_gradient(&mut self, target: ValueId, gradient: ValueId) {
        if !self.wants(target) {
            return;
        }
        let sum = match self.gradients[target.0] {
            None => gradient,
            Some(earlier) => self.emit(Add, vec![earlier, gradient], &[target])[0],
        };
        self.gradients[target.0] = Some(sum);
    }

    /// Applies the rule of a node's operation. An operation without a rule is an error if its result has a gradient.
    fn differentiate(&mut self, node: &Node) -> Result<(), GraphError> {
        node.op.loss_gradient(self, node);
        match node.outputs.first().and_then(|&output| self.gradient_of(output)) {
            Some(dy) => node.op.gradient(self, node, dy),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Activation, ActivationBackward, BatchNormStatistics, CrossEntropy, SyncSum};
    use crate::{Builder, Conv, Mode};

    /// A model with `x + relu(x)` and a loss, in which `op` replaces the activation.
    fn beside_a_shortcut(op: Op) -> (Graph, usize) {
        let builder = Builder::new(2, [4, 4], Mode::Train, 0);
        let x = builder.pixels(&[0.0; 3], &[1.0; 3]).conv2d("conv", Conv::new(4, 1));
        let logits = (x.clone() + x.relu()).flatten().linear("fc", 3);
        let mut forward = builder.finish(&logits, 3).unwrap();
        let graph = &mut forward.graph;
        graph.nodes.iter_mut().filter(|node| node.op.name() == "relu").for_each(|node| node.op = op.clone());
        let outputs = vec![graph.add_activation("probabilities", graph.shape(forward.logits).clone())];
        let op = CrossEntropy { scale: 1.0, smoothing: 0.0 }.into();
        let inputs = vec![forward.logits, forward.labels];
        graph.nodes.push(Node { op, inputs, outputs, phase: Phase::Loss, layer: "loss".into() });
        (forward.graph.clone(), forward.graph.nodes.len() - 1)
    }

    #[test]
    fn an_operation_without_a_rule_is_refused() {
        let check = |op: Op, refused: Option<&'static str>| {
            let (mut graph, loss) = beside_a_shortcut(op);
            let found = backward(&mut graph, loss, false).map(|gradients| gradients.len());
            let refusal = |operation| GraphError::NotDifferentiable { layer: "conv".into(), operation };
            assert_eq!(found, refused.map_or(Ok(4), |operation| Err(refusal(operation))));
        };
        check(Activation::Relu.into(), None);
        check(ActivationBackward(Activation::Relu).into(), Some("relu_backward"));
        check(BatchNormStatistics.into(), Some("batch_norm_statistics"));
        check(SyncSum.into(), Some("sync_sum"));
    }
}
