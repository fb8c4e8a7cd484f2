//! Nodes over values: the form that the builder records and that autodiff and the passes rewrite.

use enmasse_tensor::{DType, Shape};

use crate::{Op, Parameter, Role, Value, ValueId};

/// The parts of a step, in the order in which they run. `Engine` runs them one by one, `Trainer` all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Images to logits.
    Forward,
    /// Logits to loss.
    Loss,
    /// Loss to gradients; starts the sum of each bucket as soon as the bucket is complete.
    Backward,
    /// Waits for the sums.
    Reduce,
    /// Stops the step if the loss is not finite.
    Check,
    /// Optimiser and running statistics.
    Update,
}

impl Phase {
    /// All phases in order.
    pub const ALL: [Phase; 6] =
        [Phase::Forward, Phase::Loss, Phase::Backward, Phase::Reduce, Phase::Check, Phase::Update];

    /// Whether it runs for every shard, rather than once for their sum.
    pub fn is_of_a_shard(self) -> bool {
        match self {
            Phase::Forward | Phase::Loss | Phase::Backward => true,
            Phase::Reduce | Phase::Check | Phase::Update => false,
        }
    }

    /// The name in plans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Loss => "loss",
            Phase::Backward => "backward",
            Phase::Reduce => "reduce",
            Phase::Check => "check",
            Phase::Update => "update",
        }
    }
}

/// One operation on values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// Operands, in the order that [`Op`] documents.
    pub inputs: Vec<ValueId>,
    /// Results.
    pub outputs: Vec<ValueId>,
    /// The phase in which it runs.
    pub phase: Phase,
    /// The layer it belongs to.
    pub layer: String,
}

impl Node {
    /// An operation of a layer, with its operands and results.
    pub fn new(
        op: impl Into<Op>,
        inputs: impl Into<Vec<ValueId>>,
        outputs: impl Into<Vec<ValueId>>,
        phase: Phase,
        layer: impl Into<String>,
    ) -> Self {
        Node { op: op.into(), inputs: inputs.into(), outputs: outputs.into(), phase, layer: layer.into() }
    }
}

/// A list of nodes in execution order, over a table of values. At most one node writes a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The values.
    pub values: Vec<Value>,
    /// The nodes.
    pub nodes: Vec<Node>,
}

impl Graph {
    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// The shape of a value.
    pub fn shape(&self, id: ValueId) -> &Shape {
        &self.values[id.0].shape
    }

    /// Adds a value, whose axes follow from its shape and role.
    pub fn add_value(&mut self, name: impl Into<String>, shape: Shape, dtype: DType, role: Role) -> ValueId {
        self.values.push(Value::new(name.into(), shape, dtype, role));
        ValueId(self.values.len() - 1)
    }

    /// Adds an activation with the shape, the type and the axes of another value.
    pub fn add_like(&mut self, name: impl Into<String>, other: ValueId) -> ValueId {
        let Value { shape, dtype, axes, .. } = self.value(other).clone();
        self.values.push(Value { axes, ..Value::new(name.into(), shape, dtype, Role::Activation) });
        ValueId(self.values.len() - 1)
    }

    /// Adds an f32 activation.
    pub fn add_activation(&mut self, name: impl Into<String>, shape: Shape) -> ValueId {
        self.add_value(name, shape, DType::F32, Role::Activation)
    }

    /// All values with their ids.
    pub fn ids(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.values.iter().enumerate().map(|(i, value)| (ValueId(i), value))
    }

    /// Parameters with their ids, in the order in which the model created them.
    pub fn parameters(&self) -> impl Iterator<Item = (ValueId, &Value, &Parameter)> {
        self.ids().filter_map(|(id, value)| match &value.role {
            Role::Parameter(parameter) => Some((id, value, parameter)),
            _ => None,
        })
    }

    /// Removes activations and carried values that no node uses any more after the passes: they would have no place in an
    /// arena. The values in `keep` stay. Remaining values are renumbered, and `keep` is updated.
    pub(crate) fn prune(&mut self, keep: &mut [&mut ValueId]) {
        let mut stays: Vec<bool> = (self.values.iter())
            .map(|value| match value.role {
                Role::Input | Role::Parameter(_) | Role::Buffer { .. } => true,
                Role::Gradient { .. } | Role::Optimizer { .. } | Role::Average { .. } => true,
                Role::LossScale { .. } | Role::Residual { .. } | Role::Teacher { .. } => true,
                Role::Activation | Role::Carried => false,
            })
            .collect();
        let operands = self.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.outputs));
        operands.chain(keep.iter().map(|id| &**id)).for_each(|id| stays[id.0] = true);
        let mut numbers = Vec::with_capacity(stays.len());
        for (value, stays) in std::mem::take(&mut self.values).into_iter().zip(stays) {
            numbers.push(ValueId(self.values.len()));
            if stays {
                self.values.push(value);
            }
        }
        let operands = self.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut().chain(&mut node.outputs));
        let owners = self.values.iter_mut().filter_map(|value| match &mut value.role {
            Role::Gradient { parameter } | Role::Optimizer { parameter, .. } => Some(parameter),
            Role::Residual { parameter } => Some(parameter),
            Role::Average { of } => Some(of),
            Role::Input | Role::Parameter(_) | Role::Buffer { .. } | Role::LossScale { .. } => None,
            Role::Teacher { .. } | Role::Activation | Role::Carried => None,
        });
        operands.chain(owners).chain(keep.iter_mut().map(|id| &mut **id)).for_each(|id| *id = numbers[id.0]);
    }

    /// The index of the node that writes each value.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for output in &node.outputs {
                producers[output.0] = Some(index);
            }
        }
        producers
    }

    /// The number of operands that refer to each value.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        for input in self.nodes.iter().flat_map(|node| &node.inputs) {
            uses[input.0] += 1;
        }
        uses
    }
}
