//! The tensors of a graph: the type, the shape and the role in the step of each.

use enmasse_tensor::{DType, Shape};

use crate::{Init, Layout};

/// Index of a value in [`crate::Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// The role of a value in the step, which determines its arena.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Part of each batch: `images`, `labels`, `sample_indices`, of mixed ones `other_labels` and `lambdas`, of
    /// values to predict `targets`, and `loss_weight`.
    Input,
    /// Computed and used within the step.
    Activation,
    /// A parameter of the model.
    Parameter(Parameter),
    /// State that is not trained: running statistics.
    Buffer {
        /// Value of every element before training.
        initial: f32,
    },
    /// The gradient of a parameter, in the gradient arena.
    Gradient {
        /// The parameter.
        parameter: ValueId,
    },
    /// State that the optimiser keeps for a parameter. It lies in the arena of its slot, at the offset of the parameter.
    Optimizer {
        /// The parameter.
        parameter: ValueId,
        /// Its index among the optimiser's state names.
        slot: usize,
    },
    /// The average of a parameter or buffer over the steps.
    Average {
        /// The parameter or buffer.
        of: ValueId,
    },
    /// State of loss scaling.
    LossScale {
        /// Its value before training.
        initial: f32,
    },
    /// What a rank has lost of a parameter's gradient by compressing it, at the offset of the parameter. Each rank has its own.
    Residual {
        /// The parameter.
        parameter: ValueId,
    },
    /// A parameter or a running statistic of the teacher, which no step changes.
    Teacher {
        /// How the order of its elements relates to PyTorch's.
        layout: Layout,
    },
    /// Summed over ranks with the last bucket of gradients: shares of running statistics, metrics.
    Carried,
}

/// What the dimensions of a value are, which the passes ask: the precision of a plan is the element type of its activations
/// that are images or tokens, and on some targets features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Axes {
    /// `[batch, height, width, channels]`.
    Images,
    /// `[batch, tokens, channels]`.
    Tokens,
    /// `[rows, columns]`: features or logits of each sample, weights of a linear layer.
    Matrix,
    /// The same, of features that have the element type of the plan's precision: see [`crate::Target::narrow_features`].
    Features,
    /// One number per channel, sample or class.
    Vector,
    /// A single number.
    Scalar,
    /// Weights of a convolution, in the order of [`crate::FilterOrder`].
    Filters,
}

impl Axes {
    /// Those of a value of this shape. Four dimensions of state are filters.
    fn of(shape: &Shape, role: &Role) -> Axes {
        match (&shape[..], role) {
            ([] | [1], _) => Axes::Scalar,
            ([_], _) => Axes::Vector,
            ([_, _], _) => Axes::Matrix,
            ([_, _, _], _) => Axes::Tokens,
            (_, Role::Input | Role::Activation) => Axes::Images,
            (_, _) => Axes::Filters,
        }
    }
}

/// Properties of a parameter besides its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// How the order of its elements relates to PyTorch's.
    pub layout: Layout,
    /// Its initial values.
    pub init: Init,
    /// Whether it is trained.
    pub trainable: bool,
}

/// One tensor of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// A parameter's name as in torchvision (`layer1.0.conv1.weight`), or the layer and the kind of value.
    pub name: String,
    /// Dimensions in memory order.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// What its dimensions are.
    pub axes: Axes,
    /// Its role in the step.
    pub role: Role,
    /// Whether gradient checkpointing keeps it, and computes again what lies between two such values.
    pub checkpoint: bool,
    /// Whether it is never stored as a whole: a device computes what reads it together with it, piece by piece ([`crate::chain`]).
    pub in_cache: bool,
}

impl Value {
    pub(crate) fn new(name: String, shape: Shape, dtype: DType, role: Role) -> Self {
        let axes = Axes::of(&shape, &role);
        Value { name, shape, dtype, axes, role, checkpoint: false, in_cache: false }
    }

    /// Whether it has the element type of the plan's precision: f32 activations between layers, and their gradients.
    pub(crate) fn has_precision(&self) -> bool {
        self.role == Role::Activation
            && self.dtype == DType::F32
            && matches!(self.axes, Axes::Images | Axes::Tokens | Axes::Features)
    }
}
