//! A recorded model with its weights as an ONNX model: images in, probabilities or numbers out.
//!
//! Each operation of a forward pass says in `ops/` which of ONNX's nodes it is, by the trait `ToOnnx`; one that lacks this does not
//! compile. The graph is the one that the builder recorded for evaluation, before any pass of a device.
//!
//! Our activations are `[batch, height, width, channels]`, and ONNX's images `[batch, channels, height, width]`. So each value
//! with four dimensions is stored in ONNX's order, and operations on the channels of images as a last dimension transpose.
//! All other values, tokens and matrices, have the same order in both. Parameters have PyTorch's, which is that of ONNX's `Conv`.
//!
//! ```
//! use enmasse_export::{ImageInput, Outputs, Weights, to_onnx};
//! use enmasse_graph::{Builder, Mode};
//! let builder = Builder::new(1, [2, 2], Mode::Evaluate, 0);
//! let logits = builder.pixels(&[0.5], &[0.25]).flatten().linear("fc", 3);
//! let forward = builder.finish(&logits, 3).unwrap();
//! let weights = [
//!     Weights { name: "fc.weight", shape: &[3, 4], values: &[0.5; 12] },
//!     Weights { name: "fc.bias", shape: &[3], values: &[0.0, 1.0, 2.0] },
//! ];
//! let outputs = Outputs::Softmax { temperature: 1.0 };
//! let graph = to_onnx("net", &forward, &weights, ImageInput::Uint8Nhwc, &outputs).unwrap();
//! assert!(graph.nodes() > 3);
//! ```

mod ends;
mod fold;
mod ops;
mod quantize;
mod translation;

use std::collections::HashMap;

use enmasse_graph::{Forward, ValueId, with_op};
use enmasse_onnx::{Graph, GraphBuilder};
use thiserror::Error;

use crate::fold::{Folded, fold_batch_norms};
use crate::ops::ToOnnx;
use crate::quantize::{Rounding, roundings};
use crate::translation::{Constants, Translation};

pub use crate::ends::{ImageInput, Outputs};

/// A parameter or running statistic in PyTorch's order.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Its name in the model.
    pub name: &'a str,
    /// Dimensions.
    pub shape: &'a [usize],
    /// Elements.
    pub values: &'a [f32],
}

/// A model could not be exported.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ExportError {
    /// An operation has no counterpart.
    #[error("layer {layer}: its operation \"{operation}\" cannot be exported, as ONNX has no nodes for it")]
    Operation {
        /// The name of the operation.
        operation: &'static str,
        /// The layer that has it.
        layer: String,
    },
    /// The ranges are those of another model.
    #[error("the model has {expected} activations to round, and there are ranges of {found}")]
    Ranges {
        /// How many activations are rounded.
        expected: usize,
        /// How many ranges there are.
        found: usize,
    },
    /// The weights do not fit the model.
    #[error("the weights have no {name} with the model's {elements} numbers")]
    Weights {
        /// The parameter or running statistic.
        name: String,
        /// How many numbers the model has there.
        elements: usize,
    },
}

/// Translates a forward pass that was recorded for evaluation. Its batch becomes a dimension that may be any number.
///
/// # Errors
/// An operation has no counterpart in ONNX, or the weights do not fit the model.
pub fn to_onnx(
    name: &str,
    forward: &Forward,
    weights: &[Weights],
    input: ImageInput,
    outputs: &Outputs,
) -> Result<Graph, ExportError> {
    translate(name, forward, weights, input, outputs, &HashMap::new())
}

/// The same with weights and activations of 8 bits, as `QuantizeLinear` and `DequantizeLinear` say it, of opset 13. `ranges` has the least and
/// the greatest value of each of [`quantized_values`](enmasse_graph::quantized_values). Batch norms become part of the
/// convolutions before them.
///
/// # Errors
/// As of [`to_onnx`], or if there are more or fewer ranges.
pub fn to_onnx_int8(
    name: &str,
    forward: &Forward,
    weights: &[Weights],
    input: ImageInput,
    outputs: &Outputs,
    ranges: &[[f32; 2]],
) -> Result<Graph, ExportError> {
    let roundings = roundings(forward, ranges)?;
    let mut forward = forward.clone();
    let folded = fold_batch_norms(&mut forward, weights);
    let weights: Vec<Weights> = weights.iter().copied().chain(folded.iter().map(Folded::weights)).collect();
    translate(name, &forward, &weights, input, outputs, &roundings)
}

/// Of weights with the same name the last count.
fn translate(
    name: &str,
    forward: &Forward,
    weights: &[Weights],
    input: ImageInput,
    outputs: &Outputs,
    roundings: &HashMap<ValueId, Rounding>,
) -> Result<Graph, ExportError> {
    let constants: Constants = weights.iter().map(|weights| (weights.name, *weights)).collect();
    let mut builder = GraphBuilder::new(name);
    let (mut values, mut rounded) = (HashMap::new(), HashMap::new());
    let images = input.add(&mut builder, forward);
    values.insert(forward.images, images);
    for node in &forward.graph.nodes {
        builder.enter(&node.layer);
        let graph = &forward.graph;
        let mut translation = Translation {
            graph,
            node,
            input,
            constants: &constants,
            values: &mut values,
            onnx: &mut builder,
            roundings,
            rounded: &mut rounded,
        };
        with_op!(&node.op, op => op.to_onnx(&mut translation))?;
    }
    let logits = &values[&forward.logits];
    outputs.add(&mut builder, logits, forward.graph.shape(forward.logits).last());
    Ok(builder.finish())
}
