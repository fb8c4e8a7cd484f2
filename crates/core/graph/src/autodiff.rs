//! Reverse-mode differentiation: appends the backward nodes of a loss to its graph.
//!
//! Nodes are visited in reverse. Each rule emits nodes that turn the gradient of an output into gradients of the inputs that
//! want one. A value wants a gradient if it is a trainable parameter or depends on one, so frozen parts cost nothing. If a
//! value has several gradients, they are added. A convolution adds the earlier gradients of its input itself.

use crate::{Activation, Graph, GraphError, Node, NormStatistics, Op, Phase, Role, ValueId};

/// Appends backward nodes for `loss_node`, an [`Op::CrossEntropy`] or [`Op::SampleSum`]. Returns `(parameter, gradient)` for
/// each trainable parameter, in the order in which backward completes the gradients. Those gradients have the role
/// [`Role::Gradient`].
///
/// With `allow_unused`, no node writes the gradient of a trainable parameter that does not reach the loss: it stays zero.
pub fn backward(
    graph: &mut Graph,
    loss_node: usize,
    allow_unused: bool,
) -> Result<Vec<(ValueId, ValueId)>, GraphError> {
    let wants = wanting(graph);
    let mut pass =
        Backward { gradients: vec![None; graph.values.len()], wants, emitted: Vec::new(), layer: String::new(), graph };
    for index in (0..=loss_node).rev() {
        let node = pass.graph.nodes[index].clone();
        pass.layer.clone_from(&node.layer);
        pass.differentiate(&node)?;
    }
    let (gradients, emitted) = (pass.gradients, pass.emitted);
    graph.nodes.extend(emitted);
    order_parameters(graph, &gradients, allow_unused)
}

/// Whether each value is a trainable parameter or depends on one.
fn wanting(graph: &Graph) -> Vec<bool> {
    let mut wants: Vec<bool> =
        graph.values.iter().map(|value| matches!(&value.role, Role::Parameter(p) if p.trainable)).collect();
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

struct Backward<'a> {
    graph: &'a mut Graph,
    gradients: Vec<Option<ValueId>>,
    wants: Vec<bool>,
    emitted: Vec<Node>,
    layer: String,
}

impl Backward<'_> {
    /// Emits an operation whose outputs have the shapes and types of the values `like`.
    fn emit(&mut self, op: Op, inputs: Vec<ValueId>, like: &[ValueId]) -> Vec<ValueId> {
        let name = format!("{}.{}", self.layer, op.name());
        let outputs: Vec<ValueId> = like.iter().map(|&other| self.graph.add_like(name.clone(), other)).collect();
        self.gradients.resize(self.graph.values.len(), None);
        self.wants.resize(self.graph.values.len(), false);
        let layer = self.layer.clone();
        self.emitted.push(Node { op, inputs, outputs: outputs.clone(), phase: Phase::Backward, layer });
        outputs
    }

    /// Emits an operation whose single output is a gradient of `target`, if `target` wants one.
    fn emit_gradient(&mut self, target: ValueId, op: Op, inputs: Vec<ValueId>) {
        if self.wants[target.0] {
            let gradient = self.emit(op, inputs, &[target])[0];
            self.add_gradient(target, gradient);
        }
    }

    fn add_gradient(&mut self, target: ValueId, gradient: ValueId) {
        if !self.wants[target.0] {
            return;
        }
        self.gradients[target.0] = Some(match self.gradients[target.0] {
            None => gradient,
            Some(earlier) => self.emit(Op::Add, vec![earlier, gradient], &[target])[0],
        });
    }

    /// Applies the rule of a node's operation. An operation without a rule is an error if its result has a gradient.
    fn differentiate(&mut self, node: &Node) -> Result<(), GraphError> {
        match node.op {
            Op::CrossEntropy { scale, smoothing } => {
                let inputs = [&node.outputs[..1], &node.inputs[1..]].concat();
                self.emit_gradient(node.inputs[0], Op::CrossEntropyBackward { scale, smoothing }, inputs);
                return Ok(());
            }
            // This is the loss node itself: no other `SampleSum` precedes it.
            Op::SampleSum { scale } => {
                self.emit_gradient(node.inputs[0], Op::SampleSumBackward { scale }, vec![node.inputs[1]]);
                return Ok(());
            }
            _ => {}
        }
        let Some(dy) = node.outputs.first().and_then(|output| self.gradients[output.0]) else { return Ok(()) };
        let x = node.inputs[0];
        match node.op {
            Op::Conv2d(conv) => {
                self.emit_gradient(node.inputs[1], Op::Conv2dBackwardWeights(conv), vec![x, dy]);
                if let Some(&bias) = node.inputs.get(2) {
                    self.emit_gradient(bias, Op::BiasBackward, vec![dy]);
                }
                if self.wants[x.0] {
                    // The convolution adds the earlier gradient of x, which saves another pass over memory.
                    let inputs = [dy, node.inputs[1]].into_iter().chain(self.gradients[x.0]).collect();
                    self.gradients[x.0] = Some(self.emit(Op::Conv2dBackwardData(conv), inputs, &[x])[0]);
                }
            }
            Op::Linear => {
                self.emit_gradient(node.inputs[1], Op::LinearBackwardWeights, vec![x, dy]);
                self.emit_gradient(node.inputs[2], Op::BiasBackward, vec![dy]);
                self.emit_gradient(x, Op::LinearBackwardData, vec![dy, node.inputs[1]]);
            }
            Op::BatchNormNormalize { epsilon, statistics, activation } => {
                self.batch_norm(node, dy, epsilon, statistics, activation)
            }
            Op::Activation(activation) => {
                self.emit_gradient(x, Op::ActivationBackward(activation), vec![dy, node.outputs[0]]);
            }
            Op::MaxPool(window) => self.emit_gradient(x, Op::MaxPoolBackward(window), vec![dy, node.outputs[1]]),
            Op::AvgPool(window) => self.emit_gradient(x, Op::AvgPoolBackward(window), vec![dy]),
            Op::AdaptiveAvgPool(pool) => self.emit_gradient(x, Op::AdaptiveAvgPoolBackward(pool), vec![dy]),
            Op::Dropout { .. } => self.emit_gradient(x, node.op.clone(), vec![dy, node.inputs[1]]),
            Op::Flatten => self.emit_gradient(x, Op::FlattenBackward, vec![dy]),
            Op::Add => {
                self.add_gradient(x, dy);
                self.add_gradient(node.inputs[1], dy);
            }
            Op::Multiply => {
                self.emit_gradient(x, Op::Multiply, vec![dy, node.inputs[1]]);
                self.emit_gradient(node.inputs[1], Op::Multiply, vec![dy, x]);
            }
            Op::Map(function) => self.emit_gradient(x, Op::MapBackward(function), vec![dy, x]),
            Op::LogSoftmax => self.emit_gradient(x, Op::LogSoftmaxBackward, vec![dy, node.outputs[0]]),
            Op::ScaleClasses { .. } => self.emit_gradient(x, node.op.clone(), vec![dy]),
            Op::MaskSamples => self.emit_gradient(x, Op::MaskSamples, vec![dy, node.inputs[1]]),
            Op::SumClasses => self.emit_gradient(x, Op::SumClassesBackward, vec![dy]),
            // No gradient reaches the images, the results of the loss, or the statistics, which batch norm's rule covers.
            // The other operations do not occur in a forward pass.
            _ => {
                return Err(GraphError::NotDifferentiable { layer: node.layer.clone(), operation: node.op.name() });
            }
        }
        Ok(())
    }

    fn batch_norm(
        &mut self,
        node: &Node,
        dy: ValueId,
        epsilon: f32,
        statistics: NormStatistics,
        activation: Option<Activation>,
    ) {
        let [x, mean, variance, weight, bias] = [0, 1, 2, 3, 4].map(|i| node.inputs[i]);
        let residual = node.inputs.get(5).copied();
        // Without a residual, y follows from x, which is an operand already, so y need not be read.
        let gate = match (activation, residual) {
            (None, _) => vec![],
            (Some(_), Some(_)) => vec![node.outputs[0]],
            (Some(_), None) => vec![weight, bias],
        };
        let batch = matches!(statistics, NormStatistics::Batch { .. });
        let through_x = self.wants[x.0];
        let mut sums = Vec::new();
        if self.wants[weight.0] || self.wants[bias.0] || (batch && through_x) {
            let inputs = [dy, x, mean, variance].iter().chain(&gate).copied().collect();
            let outputs = self.emit(Op::BatchNormReduce { epsilon, activation }, inputs, &[bias, weight]);
            self.add_gradient(bias, outputs[0]);
            self.add_gradient(weight, outputs[1]);
            sums = if batch { outputs } else { Vec::new() };
        }
        let masked_residual = activation.is_some() && residual.is_some_and(|r| self.wants[r.0]);
        if through_x || masked_residual {
            let inputs = [dy, x, mean, variance, weight].into_iter().chain(sums).chain(gate).collect();
            let op = Op::BatchNormBackward { epsilon, statistics, activation, residual: masked_residual };
            let outputs = self.emit(op, inputs, &[x, x][..1 + usize::from(masked_residual)]);
            self.add_gradient(x, outputs[0]);
            if let (Some(residual), Some(&gradient)) = (residual, outputs.get(1)) {
                self.add_gradient(residual, gradient);
            }
        }
        if let (Some(residual), None) = (residual, activation) {
            self.add_gradient(residual, dy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let (op, inputs) = (Op::CrossEntropy { scale: 1.0, smoothing: 0.0 }, vec![forward.logits, forward.labels]);
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
        check(Op::Activation(Activation::Relu), None);
        check(Op::ActivationBackward(Activation::Relu), Some("relu_backward"));
        check(Op::BatchNormStatistics, Some("batch_norm_statistics"));
        check(Op::SyncSum, Some("sync_sum"));
    }
}
