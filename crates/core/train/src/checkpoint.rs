//! Checkpoints: one safetensors file with everything that a run needs to continue, readable by PyTorch's `safetensors`.
//!
//! Tensors have torchvision's names, and are f32 in PyTorch's order. Those of the optimiser are
//! `optimizer.<state>.<parameter>`. All other data are text in the file's metadata ([`CheckpointMeta`]). A BLAKE3
//! checksum covers both, and a file appears whole or not at all.
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

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use enmasse_system::files::{FileError, write_whole};
use enmasse_weights::safetensors::{Entry, TensorFile, write};
use enmasse_weights::{ElementType, Format, NamedTensor, Tensors, WeightsError, check_tensors, counter_names};
use thiserror::Error;

pub use metadata::{CallbackStates, CheckpointMeta, EpochSums};

use crate::EvaluatedWeights;

/// The version that this build writes, and the only one that it reads so far.
const FORMAT_VERSION: u64 = 1;

/// Why a checkpoint or weights file could not be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file of tensors is malformed.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The file, or the data to be written, are invalid.
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

/// Writes a file's contents.
pub(crate) type Fill<'a> = dyn FnMut(&mut BufWriter<&File>) -> io::Result<()> + 'a;

/// Creates a file that appears whole or not at all.
pub(crate) type WriteWhole<'a> = dyn Fn(&Path, &mut Fill) -> Result<(), FileError> + 'a;

/// The saved state of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The run's position, and its description.
    pub meta: CheckpointMeta,
    /// Parameters, running statistics and optimiser state.
    pub tensors: Vec<NamedTensor>,
}

impl Checkpoint {
    /// Writes the file, whole or not at all. Next to each `X.running_mean`, PyTorch finds its `X.num_batches_tracked`.
    ///
    /// # Errors
    /// The tensors cannot be written under their names and shapes, or the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), CheckpointError> {
        Draft::new(path, &self.meta, &self.tensors)?.write(path, &|path, fill| write_whole(path, |file| fill(file)))
    }

    /// Reads a file that [`Checkpoint::save`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or is truncated, altered or of a newer format, or holds only weights.
    pub fn load(path: &Path) -> Result<Self, CheckpointError> {
        let file = CheckpointFile::open(path)?;
        let read = |(index, entry): (usize, &Entry)| {
            Ok(NamedTensor { name: entry.name.clone(), shape: entry.shape.clone(), values: file.read(index)? })
        };
        let tensors = file.entries().iter().enumerate().map(read).collect::<Result<_, CheckpointError>>()?;
        Ok(Checkpoint { meta: file.meta, tensors })
    }
}

/// A checkpoint to be written to one or more files. Its tensors are read anew for each.
pub(crate) struct Draft<'a, T> {
    metadata: BTreeMap<String, String>,
    tensors: &'a T,
    counter: i64,
}

impl<'a, T: Tensors> Draft<'a, T> {
    /// Checks the tensors, and computes the checksum, which precedes them in the file. `path` names the file in errors.
    pub fn new(path: &Path, meta: &CheckpointMeta, tensors: &'a T) -> Result<Self, CheckpointError> {
        check_tensors(tensors).map_err(|reason| CheckpointError::content(path, reason))?;
        let counter = meta.optimizer_step as i64;
        let mut metadata = meta.to_map();
        let mut checksum = Checksum::new(&metadata);
        // In the order of the file: counters first.
        for name in counter_names(tensors) {
            checksum.tensor(&name, ElementType::I64, &[]);
            checksum.bytes(&counter.to_le_bytes());
        }
        for index in 0..tensors.count() {
            checksum.tensor(tensors.name(index), ElementType::F32, tensors.shape(index));
            let hash = &mut |bytes: &[u8]| {
                checksum.bytes(bytes);
                Ok(())
            };
            tensors.for_bytes(index, hash).map_err(FileError::of("write", path))?;
        }
        metadata.insert(Checksum::KEY.to_owned(), checksum.finish());
        Ok(Draft { metadata, tensors, counter })
    }

    /// Writes the file, with `write_whole` as the function that creates it.
    pub fn write(&self, path: &Path, write_whole: &WriteWhole) -> Result<(), CheckpointError> {
        Ok(write_whole(path, &mut |file| write(file, &self.metadata, self.tensors, self.counter))?)
    }
}

/// A checkpoint whose content matches its checksum. Its tensors are read one by one.
pub(crate) struct CheckpointFile {
    /// The run's position, and its description.
    pub meta: CheckpointMeta,
    file: TensorFile,
}

impl CheckpointFile {
    /// Opens and checks a file, with the errors of [`Checkpoint::load`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let mut file = TensorFile::open(path)?;
        let mut metadata = std::mem::take(&mut file.metadata);
        check_version(&metadata).map_err(|reason| CheckpointError::content(path, reason))?;
        let expected = metadata.remove(Checksum::KEY).unwrap_or_default();
        let mut checksum = Checksum::new(&metadata);
        for entry in &file.entries {
            checksum.tensor(&entry.name, entry.element, &entry.shape);
            file.scan(entry, |bytes| checksum.bytes(bytes))?;
        }
        if checksum.finish() != expected {
            let reason = "is damaged: its checksum does not match its content; use another checkpoint of the run";
            return Err(CheckpointError::content(path, reason));
        }
        let meta = CheckpointMeta::from_map(&metadata).map_err(|reason| CheckpointError::content(path, reason))?;
        // The others are counters, which the metadata has too.
        file.entries.retain(|entry| entry.element == ElementType::F32);
        Ok(CheckpointFile { meta, file })
    }

    /// The tensors of the state.
    pub fn entries(&self) -> &[Entry] {
        &self.file.entries
    }

    /// The values of a tensor, by its index among the entries.
    pub fn read(&self, index: usize) -> Result<Vec<f32>, CheckpointError> {
        Ok(self.file.read(&self.file.entries[index])?)
    }
}

impl CheckpointMeta {
    /// Reads the metadata of a checkpoint, and not its tensors.
    ///
    /// # Errors
    /// The file cannot be read, is malformed or of a newer format, or holds only weights. Tensors that are damaged go
    /// unnoticed.
    pub fn load(path: &Path) -> Result<Self, CheckpointError> {
        let metadata = TensorFile::open(path)?.metadata;
        let meta = check_version(&metadata).and_then(|()| CheckpointMeta::from_map(&metadata));
        meta.map_err(|reason| CheckpointError::content(path, reason))
    }
}

/// The error is the end of a sentence about the file.
fn check_version(metadata: &BTreeMap<String, String>) -> Result<(), String> {
    match metadata.get("format_version") {
        None => Err("holds weights, but no state of a run: it is not a checkpoint of enmasse".to_owned()),
        Some(version) if version.parse() == Ok(FORMAT_VERSION) => Ok(()),
        Some(version) => {
            Err(format!("is a checkpoint of format {version:?}; this enmasse reads format {FORMAT_VERSION}"))
        }
    }
}

/// Whether a file is a checkpoint of a run, according to its metadata; bare weights, in any format, are not.
///
/// # Errors
/// The file cannot be read, or is no file of weights.
pub fn is_checkpoint(path: &Path) -> Result<bool, CheckpointError> {
    Ok(match Format::of(path)? {
        Format::Safetensors => TensorFile::open(path)?.metadata.contains_key("format_version"),
        _ => false,
    })
}

/// Reads the weights of a checkpoint, or of a file as users of PyTorch or torchvision write it. Optimiser state is left
/// out. Other element types than f32 are converted to f32.
///
/// # Errors
/// The file cannot be read, is malformed, or has no weights or some that are not supported.
pub fn load_weights(path: &Path) -> Result<Vec<NamedTensor>, CheckpointError> {
    Ok(EvaluatedWeights::of(enmasse_weights::read(path)?.tensors).weights)
}

/// BLAKE3 over the metadata in the order of keys, without the checksum itself, then over each tensor in file order:
/// name, type, shape, bytes. Lengths precede texts, so that nothing can move from one text to the next undetected.
struct Checksum {
    hasher: blake3::Hasher,
    /// Bytes not hashed yet: hashing in whole pieces keeps the hash's vectors full, which is several times faster.
    piece: Vec<u8>,
}

impl Checksum {
    const KEY: &'static str = "checksum";
    /// Number of bytes that are hashed at once: a power of two.
    const PIECE: usize = 1 << 16;

    fn new(metadata: &BTreeMap<String, String>) -> Self {
        let mut checksum = Checksum { hasher: blake3::Hasher::new(), piece: Vec::with_capacity(Self::PIECE) };
        for (key, value) in metadata {
            checksum.text(key);
            checksum.text(value);
        }
        checksum
    }

    fn tensor(&mut self, name: &str, element: ElementType, shape: &[usize]) {
        self.text(name);
        self.text(element.name());
        self.text(&format!("{shape:?}"));
    }

    fn text(&mut self, text: &str) {
        self.bytes(&(text.len() as u64).to_le_bytes());
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(Self::PIECE - self.piece.len()));
            self.piece.extend_from_slice(now);
            if self.piece.len() == Self::PIECE {
                self.hasher.update(&self.piece);
                self.piece.clear();
            }
            bytes = later;
        }
    }

    fn finish(mut self) -> String {
        self.hasher.update(&self.piece);
        format!("blake3:{}", self.hasher.finalize().to_hex())
    }
}

#[cfg(test)]
mod tests;
