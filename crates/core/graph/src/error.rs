//! Errors in a model or its options. A message about a layer names it.

use std::fmt;

use enmasse_tensor::Shape;
use thiserror::Error;

use crate::Arena;

/// The operation of a model that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationLocation {
    /// The operation's name.
    pub operation: &'static str,
    /// The layer's name; for an operation without a name, the last named layer that its input comes from.
    pub layer: String,
    /// How the two relate.
    pub relation: Relation,
}

/// How an operation relates to the layer that an error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The operation is the layer.
    Layer,
    /// The operation has no name, and follows the layer.
    After,
    /// The operation is part of a function of logits and targets: of the loss, or of a metric.
    Inside,
}

/// `layer conv2: conv2d`, `max_pool after conv2`, `log_softmax in the loss`.
impl fmt::Display for OperationLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperationLocation { operation, layer, relation } = self;
        match relation {
            Relation::Layer => write!(f, "layer {layer}: {operation}"),
            Relation::After => write!(f, "{operation} after {layer}"),
            Relation::Inside => write!(f, "{operation} in {layer}"),
        }
    }
}

/// Why a model could not become a plan.
#[derive(Clone, Error, PartialEq)]
#[non_exhaustive]
pub enum GraphError {
    /// An operand has a shape that the operation does not accept.
    #[error("{place} got {shape}, but {reason}")]
    Shape {
        /// The operation.
        place: OperationLocation,
        /// The offending shape.
        shape: Shape,
        /// What it needs, or how to obtain it.
        reason: String,
    },
    /// Two operands have different shapes.
    #[error("{place}: {shape} and {other} must have the same shape")]
    Different {
        /// The operation, after the layer of its first operand.
        place: OperationLocation,
        /// The first operand's shape.
        shape: Shape,
        /// The second operand's shape and, if it is another, its layer.
        other: String,
    },
    /// An attribute is invalid.
    #[error("{place} {reason}")]
    Attribute {
        /// The operation.
        place: OperationLocation,
        /// Why it is invalid.
        reason: String,
    },
    /// Two parameters or buffers have the same name.
    #[error("layer {layer}: a tensor named {name} exists already; give each layer its own name")]
    Duplicate {
        /// The layer's name.
        layer: String,
        /// The tensor's name.
        name: String,
    },
    /// A trainable parameter has no path to the loss.
    #[error(
        "parameter {name} does not reach the loss, so it would never be trained; use it, freeze it, or allow unused parameters"
    )]
    Unused {
        /// The parameter.
        name: String,
    },
    /// A gradient reached an operation that has no gradient rule.
    #[error("layer {layer}: {operation} has no gradient; freeze the parameters before it, or leave it out of training")]
    NotDifferentiable {
        /// The layer's name.
        layer: String,
        /// The operation.
        operation: &'static str,
    },
    /// A pass left a value without a place in any arena.
    #[error("value {name} has no place in the {arena} arena, though the step uses it")]
    Unplaced {
        /// The value's name.
        name: String,
        /// The arena that should hold it.
        arena: Arena,
    },
    /// A freeze pattern matched no parameter.
    #[error("freeze pattern {pattern:?} matches no parameter; the first parameter is {example}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// A parameter that exists.
        example: String,
    },
    /// Everything except the classifier was to be frozen, but the model has no other parameters.
    #[error("every parameter belongs to {classifier}, the model's classifier: there is nothing else to freeze")]
    OnlyClassifier {
        /// The classifier's name.
        classifier: String,
    },
    /// Everything is frozen.
    #[error("every parameter is frozen: there is nothing to train")]
    NothingToTrain,
    /// A compile option is invalid.
    #[error("{0}")]
    Option(String),
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for GraphError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
