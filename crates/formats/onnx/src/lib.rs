//! Models in ONNX's format, built node by node and written as a file; knows no graph of ours.
//!
//! A [`GraphBuilder`] gives a [`Value`] for each input, constant and node, and takes only such values as operands. So a node
//! follows those that it reads, and no name is used twice.
//!
//! ```
//! use enmasse_onnx::{Dimension, ElementType, GraphBuilder, Model, Tensor};
//! let mut graph = GraphBuilder::new("doubled");
//! let shape = [Dimension::Named("batch"), Dimension::Fixed(3)];
//! let x = graph.input("x", ElementType::Float, &shape);
//! let two = graph.constant("two", Tensor::floats(&[], &[2.0]));
//! let y = graph.node("Mul", &[&x, &two], &[]);
//! graph.output("y", &y, ElementType::Float, &shape);
//! let model = Model { graph: graph.finish(), producer: "example", version: "1", metadata: Vec::new() };
//! // The product, and the node that gives it the name of the output.
//! assert_eq!(model.graph.nodes(), 2);
//! ```
//!
//! Source: ONNX's `onnx.proto`, of which only what is needed is written.

mod encode;
mod graph;

use std::path::{Path, PathBuf};

use enmasse_system::files::{FileError, write_whole};
use thiserror::Error;

pub use graph::{Attribute, Dimension, ElementType, Graph, GraphBuilder, Tensor, Value};

/// The version of ONNX's operators that the nodes are of: the first with `LayerNormalization`. ONNX Runtime 1.12 and later have it.
pub const OPSET: u64 = 17;

/// The version of the format that came with [`OPSET`].
const IR_VERSION: u64 = 8;

/// The most bytes of a file: readers of protocol buffers take no more.
const MAX_BYTES: u64 = i32::MAX as u64;

/// A model.
#[derive(Clone, Debug)]
pub struct Model<'a> {
    /// What it computes.
    pub graph: Graph,
    /// The program that made it.
    pub producer: &'a str,
    /// That program's version.
    pub version: &'a str,
    /// Texts by name, which ONNX Runtime gives as `custom_metadata_map`.
    pub metadata: Vec<(String, String)>,
}

/// A model could not be written.
#[derive(Debug, Error)]
pub enum OnnxError {
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is larger than readers accept.
    #[error("{}: the model has {bytes} bytes, and ONNX files hold at most {MAX_BYTES}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bytes that it would have.
        bytes: u64,
    },
}

impl Model<'_> {
    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// The model is larger than ONNX's format permits, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), OnnxError> {
        let message = self.encode();
        match message.len() {
            bytes if bytes > MAX_BYTES => Err(OnnxError::TooLarge { path: path.to_owned(), bytes }),
            _ => Ok(write_whole(path, |writer| message.write(writer))?),
        }
    }
}
