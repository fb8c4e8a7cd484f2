//! Checkpoints: one safetensors file with everything a run needs to go on, readable by PyTorch's `safetensors`.
//!
//! Tensors carry torchvision's names, as f32 in PyTorch's order; the optimiser's are `optimizer.<state>.<parameter>`. What
//! is not a tensor is text in the file's metadata ([`CheckpointMeta`]). A BLAKE3 checksum covers both, and a file appears
//! whole or not at all.
//!
//! ```
//! use enmasse_train::{Checkpoint, CheckpointMeta, NamedTensor};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("last.safetensors");
//! let meta = CheckpointMeta { epoch: 3, model: "mlp".to_owned(), ..CheckpointMeta::default() };
//! let weight = NamedTensor { name: "fc.weight".to_owned(), shape: vec![1, 2], values: vec![0.5, -1.0] };
//! Checkpoint { meta, tensors: vec![weight] }.save(&path)?;
//! assert_eq!(Checkpoint::load(&path)?.tensors[0].values, [0.5, -1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod metadata;
mod read;

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, json};
use thiserror::Error;

pub use metadata::{CheckpointMeta, EpochSums};
pub use read::{is_checkpoint, load_weights};

use crate::file::{FileError, write_whole};
use read::{DType, TensorFile};

/// The version this build writes, and the only one it reads so far.
const FORMAT_VERSION: u64 = 1;

/// PyTorch's batch norm counts its updates beside its statistics. The count means nothing to us: it is made when a file is
/// written, and left out when one is read.
const COUNTER_SUFFIX: &str = "num_batches_tracked";
const OPTIMIZER_PREFIX: &str = "optimizer.";

/// Why a checkpoint or weights file could not be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file, or what was to be written, makes no sense.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
}

impl CheckpointError {
    fn content(path: &Path, reason: impl Into<String>) -> Self {
        CheckpointError::Content { path: path.to_owned(), reason: reason.into() }
    }
}

/// A tensor by its PyTorch name, its elements in PyTorch's order.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Such as `layer1.0.conv1.weight`.
    pub name: String,
    /// Dimensions, outermost first; none for a scalar.
    pub shape: Vec<usize>,
    /// As many as the shape says.
    pub values: Vec<f32>,
}

/// A run at rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Where the run stands, and what it is.
    pub meta: CheckpointMeta,
    /// Parameters, running statistics and optimiser state.
    pub tensors: Vec<NamedTensor>,
}

impl Checkpoint {
    /// Writes the file, whole or not at all. Beside each `X.running_mean` PyTorch finds its `X.num_batches_tracked`.
    pub fn save(&self, path: &Path) -> Result<(), CheckpointError> {
        self.check(path)?;
        let counters: Vec<String> = self.tensors.iter().filter_map(|tensor| counter_name(&tensor.name)).collect();
        let count = (self.meta.optimizer_step as i64).to_le_bytes();

        let mut metadata = self.meta.to_map();
        let mut checksum = Checksum::new(&metadata);
        let mut header = Map::new();
        let mut offset = 0;
        let mut entry = |name: &str, dtype: DType, shape: &[usize], len: usize| {
            let offsets = [offset, offset + len];
            offset += len;
            header.insert(name.to_owned(), json!({"dtype": dtype.name(), "shape": shape, "data_offsets": offsets}));
        };
        // Counters come first: eight-byte elements stay aligned only in front of four-byte ones.
        for name in &counters {
            entry(name, DType::I64, &[], count.len());
            checksum.tensor(name, DType::I64, &[]);
            checksum.bytes(&count);
        }
        for tensor in &self.tensors {
            entry(&tensor.name, DType::F32, &tensor.shape, tensor.values.len() * 4);
            checksum.tensor(&tensor.name, DType::F32, &tensor.shape);
            for_chunks(&tensor.values, |bytes| {
                checksum.bytes(bytes);
                Ok::<(), std::convert::Infallible>(())
            })
            .unwrap_or_else(|never| match never {});
        }
        metadata.insert(Checksum::KEY.to_owned(), checksum.finish());
        header.shift_insert(0, "__metadata__".to_owned(), json!(metadata));
        let mut header = serde_json::Value::Object(header).to_string();
        // The format wants data aligned to eight bytes; blanks after the JSON are allowed.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));

        write_whole(path, |file| {
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(header.as_bytes())?;
            counters.iter().try_for_each(|_| file.write_all(&count))?;
            self.tensors.iter().try_for_each(|tensor| for_chunks(&tensor.values, |bytes| file.write_all(bytes)))
        })?;
        Ok(())
    }

    /// Reads a file that [`Checkpoint::save`] wrote. One that is cut short, changed, of a newer format, or holds weights
    /// only is an error.
    pub fn load(path: &Path) -> Result<Self, CheckpointError> {
        let mut file = TensorFile::open(path)?;
        let mut metadata = std::mem::take(&mut file.metadata);
        let Some(version) = metadata.get("format_version") else {
            let reason = "holds weights, but no state of a run: it is not a checkpoint of enmasse";
            return Err(CheckpointError::content(path, reason));
        };
        if version.parse() != Ok(FORMAT_VERSION) {
            let reason = format!("is a checkpoint of format {version:?}; this enmasse reads format {FORMAT_VERSION}");
            return Err(CheckpointError::content(path, reason));
        }
        let expected = metadata.remove(Checksum::KEY).unwrap_or_default();
        let mut checksum = Checksum::new(&metadata);
        let mut tensors = Vec::new();
        for entry in file.entries() {
            checksum.tensor(&entry.name, entry.dtype, &entry.shape);
            let values = file.read(&entry, |bytes| checksum.bytes(bytes))?;
            if entry.dtype == DType::F32 {
                tensors.push(NamedTensor { name: entry.name, shape: entry.shape, values });
            }
        }
        if checksum.finish() != expected {
            let reason = "is damaged: its checksum does not fit its content; use another checkpoint of the run";
            return Err(CheckpointError::content(path, reason));
        }
        let meta = CheckpointMeta::from_map(&metadata).map_err(|reason| CheckpointError::content(path, reason))?;
        Ok(Checkpoint { meta, tensors })
    }

    fn check(&self, path: &Path) -> Result<(), CheckpointError> {
        let mut names = HashSet::new();
        for NamedTensor { name, shape, values } in &self.tensors {
            if shape.iter().product::<usize>() != values.len() {
                let reason = format!("tensor {name} of shape {shape:?} cannot have {} values", values.len());
                return Err(CheckpointError::content(path, reason));
            }
            if !names.insert(name) || name == "__metadata__" || name.ends_with(COUNTER_SUFFIX) {
                return Err(CheckpointError::content(path, format!("there cannot be a (second) tensor named {name}")));
            }
        }
        Ok(())
    }
}

/// `bn1.running_mean` has the counter `bn1.num_batches_tracked`.
fn counter_name(name: &str) -> Option<String> {
    let layer = name.strip_suffix("running_mean")?;
    (layer.is_empty() || layer.ends_with('.')).then(|| format!("{layer}{COUNTER_SUFFIX}"))
}

/// Hands out values as little-endian bytes, a piece at a time.
fn for_chunks<E>(values: &[f32], mut f: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut bytes = [0; 4096];
    for chunk in values.chunks(bytes.len() / 4) {
        for (place, value) in bytes.chunks_exact_mut(4).zip(chunk) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        f(&bytes[..chunk.len() * 4])?;
    }
    Ok(())
}

/// BLAKE3 over the metadata in the order of keys, without the checksum itself, then over each tensor in file order: name,
/// type, shape, bytes. Lengths stand before texts, so that nothing can move from one to the next unseen.
struct Checksum(blake3::Hasher);

impl Checksum {
    const KEY: &'static str = "checksum";

    fn new(metadata: &BTreeMap<String, String>) -> Self {
        let mut checksum = Checksum(blake3::Hasher::new());
        for (key, value) in metadata {
            checksum.text(key);
            checksum.text(value);
        }
        checksum
    }

    fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize]) {
        self.text(name);
        self.text(dtype.name());
        self.text(&format!("{shape:?}"));
    }

    fn text(&mut self, text: &str) {
        self.bytes(&(text.len() as u64).to_le_bytes());
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self) -> String {
        format!("blake3:{}", self.0.finalize().to_hex())
    }
}

#[cfg(test)]
mod tests;
