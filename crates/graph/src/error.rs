//! Errors in a model or its options. A message about a layer names it.

use enmasse_tensor::Shape;
use thiserror::Error;

use crate::Arena;

/// Why a model could not become a plan.
#[derive(Clone, Error, PartialEq)]
pub enum GraphError {
    /// An operand has a shape that the layer does not accept.
    #[error("layer {layer}: {operation} cannot take an input of shape {shape}: {reason}")]
    Shape {
        /// The layer's name.
        layer: String,
        /// The operation.
        operation: &'static str,
        /// The offending shape.
        shape: Shape,
        /// The expected shape, or how to obtain it.
        reason: String,
    },
    /// An attribute is invalid.
    #[error("layer {layer}: {reason}")]
    Attribute {
        /// The layer's name.
        layer: String,
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
