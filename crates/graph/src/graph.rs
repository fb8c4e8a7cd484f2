//! Values and nodes: the form that the builder records, and that autodiff and passes rewrite.

use enmasse_tensor::{DType, Shape};

use crate::{Init, Layout, Op};

/// Index of a value in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// What a value is to the step; the memory pass derives its arena from it.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Given with each batch: `images`, `labels`, `sample_indices`.
    Input,
    /// Made and used within the step.
    Activation,
    /// A parameter of the model.
    Parameter(Parameter),
    /// State that is not trained: running statistics, with their value at the start.
    Buffer {
        /// Value of every element before training.
        initial: f32,
    },
    /// The gradient of a parameter: lies in the gradient arena.
    Gradient {
        /// The parameter.
        parameter: ValueId,
    },
    /// State that the optimiser keeps of a parameter: lies in the arena of its slot, at the offset of the parameter.
    Optimizer {
        /// The parameter.
        parameter: ValueId,
        /// Its place among the optimiser's state names.
        slot: usize,
    },
    /// The moving average of a parameter or buffer.
    Average {
        /// What it is the average of.
        of: ValueId,
    },
    /// Summed over ranks with the last bucket of gradients: shares of running statistics, metrics.
    Carried,
}

/// What a parameter needs beside its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// How its elements are ordered under its PyTorch name.
    pub layout: Layout,
    /// Its first values.
    pub init: Init,
    /// Whether it takes gradients.
    pub trainable: bool,
}

/// One tensor of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Parameter name as in torchvision (`layer1.0.conv1.weight`), or the layer and what the value is.
    pub name: String,
    /// Dimensions in memory order.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// Whether it is a map between layers, `[batch, height, width, channels]`, or the gradient of one. The precision of a plan
    /// is that of its maps.
    pub map: bool,
    /// What it is to the step.
    pub role: Role,
}

/// The parts of a step, in the order they run. `Engine` runs them one by one, `Trainer` all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Images to logits.
    Forward,
    /// Logits to loss.
    Loss,
    /// Loss to gradients; starts the sum of each bucket as soon as it is complete.
    Backward,
    /// Waits for the sums.
    Reduce,
    /// Stops the step where the loss is not finite.
    Check,
    /// Optimiser and running statistics.
    Update,
}

impl Phase {
    /// All phases in order.
    pub const ALL: [Phase; 6] =
        [Phase::Forward, Phase::Loss, Phase::Backward, Phase::Reduce, Phase::Check, Phase::Update];

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
    /// What is done.
    pub op: Op,
    /// Operands, in the order [`Op`] documents.
    pub inputs: Vec<ValueId>,
    /// Results.
    pub outputs: Vec<ValueId>,
    /// When.
    pub phase: Phase,
    /// The layer it belongs to.
    pub layer: String,
}

/// A list of nodes in the order they run, over a table of values. Every value is written by at most one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The values.
    pub values: Vec<Value>,
    /// The nodes.
    pub nodes: Vec<Node>,
}

impl Graph {
    /// The value `id` stands for.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Its shape.
    pub fn shape(&self, id: ValueId) -> &Shape {
        &self.values[id.0].shape
    }

    /// Adds a value that is no map.
    pub fn add_value(&mut self, name: impl Into<String>, shape: Shape, dtype: DType, role: Role) -> ValueId {
        self.values.push(Value { name: name.into(), shape, dtype, map: false, role });
        ValueId(self.values.len() - 1)
    }

    /// Adds an activation with the shape and the type of another value, a map if that is one.
    pub fn add_like(&mut self, name: impl Into<String>, other: ValueId) -> ValueId {
        let Value { shape, dtype, map, .. } = self.value(other).clone();
        self.values.push(Value { name: name.into(), shape, dtype, map, role: Role::Activation });
        ValueId(self.values.len() - 1)
    }

    /// Adds an f32 activation that is no map.
    pub fn add_activation(&mut self, name: impl Into<String>, shape: Shape) -> ValueId {
        self.add_value(name, shape, DType::F32, Role::Activation)
    }

    /// All values with their ids.
    pub fn ids(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.values.iter().enumerate().map(|(i, value)| (ValueId(i), value))
    }

    /// Parameters with their ids, in the order the model made them.
    pub fn parameters(&self) -> impl Iterator<Item = (ValueId, &Value, &Parameter)> {
        self.ids().filter_map(|(id, value)| match &value.role {
            Role::Parameter(parameter) => Some((id, value, parameter)),
            _ => None,
        })
    }

    /// Removes the activations that passes left behind: no node touches them, so nothing gives them a place. The values
    /// after them are numbered anew, those in `keep` too, which stay.
    pub(crate) fn prune(&mut self, keep: &mut [&mut ValueId]) {
        let mut stays: Vec<bool> = (self.values.iter())
            .map(|value| match value.role {
                Role::Input | Role::Parameter(_) | Role::Buffer { .. } => true,
                Role::Gradient { .. } | Role::Optimizer { .. } | Role::Average { .. } => true,
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
            Role::Average { of } => Some(of),
            Role::Input | Role::Parameter(_) | Role::Buffer { .. } | Role::Activation | Role::Carried => None,
        });
        operands.chain(owners).chain(keep.iter_mut().map(|id| &mut **id)).for_each(|id| *id = numbers[id.0]);
    }

    /// Which node writes each value.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for output in &node.outputs {
                producers[output.0] = Some(index);
            }
        }
        producers
    }

    /// How many operands refer to each value.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        for input in self.nodes.iter().flat_map(|node| &node.inputs) {
            uses[input.0] += 1;
        }
        uses
    }
}
