//! What can be wrong with a model or its options; every message names the layer.

use enmasse_tensor::Shape;
use thiserror::Error;

use crate::Arena;

/// Why a model could not become a plan.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GraphError {
    /// An operand has a shape the layer cannot take.
    #[error("layer {layer}: {operation} cannot take an input of shape {shape}: {reason}")]
    Shape {
        /// The layer's name.
        layer: String,
        /// The operation.
        operation: &'static str,
        /// The offending shape.
        shape: Shape,
        /// What it should have been.
        reason: String,
    },
    /// An attribute makes no sense.
    #[error("layer {layer}: {reason}")]
    Attribute {
        /// The layer's name.
        layer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two parameters or buffers of one name.
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
    /// A gradient arrived at an operation that passes none on.
    #[error(
        "layer {layer}: {operation} has no gradient; freeze the parameters in front of it, or leave it out of training"
    )]
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
        /// Where it should lie.
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
    /// All but the classifier was to be frozen, and there is nothing else.
    #[error("every parameter belongs to {classifier}, the model's classifier: there is nothing else to freeze")]
    OnlyClassifier {
        /// The classifier's name.
        classifier: String,
    },
    /// Everything is frozen.
    #[error("every parameter is frozen: there is nothing to train")]
    NothingToTrain,
    /// An option of the compilation makes no sense.
    #[error("{0}")]
    Option(String),
}
