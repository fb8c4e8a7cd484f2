//! Weights in files for PyTorch and others.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use enmasse_system::files::{FileError, read_regular, write_whole};
use enmasse_weights::{Tensors, pth, safetensors};

use crate::Preprocessing;

/// Bytes of a file of the preparation, at most: it names up to some thousand classes.
const MAX_PREPROCESSING_BYTES: u64 = 64 << 20;

/// A format of files of weights. Its name is that of the files' extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsFormat {
    /// PyTorch's format, which `torch.load` opens.
    Pth,
    /// A JSON header, then bytes.
    Safetensors,
}

impl WeightsFormat {
    /// All of them.
    pub const ALL: [WeightsFormat; 2] = [WeightsFormat::Pth, WeightsFormat::Safetensors];

    /// The extension of its files.
    pub fn extension(self) -> &'static str {
        match self {
            WeightsFormat::Pth => "pth",
            WeightsFormat::Safetensors => "safetensors",
        }
    }

    /// The format that the extension of a file names.
    pub fn of(path: &Path) -> Option<Self> {
        Self::ALL.into_iter().find(|format| path.extension().is_some_and(|extension| extension == format.extension()))
    }

    /// Writes a file of weights, whole or not at all. `updates` is how many steps batch norms have seen.
    ///
    /// # Errors
    /// The tensors cannot be written under their names and shapes or are too many for the format, or the file cannot be
    /// written.
    pub fn write(self, path: &Path, tensors: &impl Tensors, updates: i64) -> Result<(), FileError> {
        write_whole(path, |file| match self {
            WeightsFormat::Pth => pth::write(file, tensors, updates),
            WeightsFormat::Safetensors => {
                // Other programs expect this field to name the writer.
                let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
                safetensors::write(file, &metadata, tensors, updates)
            }
        })
    }
}

impl Preprocessing {
    /// Its file beside a `.pth` that is to be written, which other weights do not need.
    ///
    /// # Errors
    /// There is a file of that name which is no such file, and would be overwritten. The text is a sentence that lacks
    /// what to do.
    pub fn place(weights: &Path, format: WeightsFormat) -> Result<Option<PathBuf>, String> {
        if format != WeightsFormat::Pth {
            return Ok(None);
        }
        let file = Preprocessing::beside(weights);
        let is_ours = || {
            let bytes = read_regular(&file, MAX_PREPROCESSING_BYTES).ok()?;
            Some(serde_json::from_slice::<serde_json::Value>(&bytes).ok()?.get("transform").is_some())
        };
        match file == weights || file.exists() && is_ours() != Some(true) {
            true => {
                Err(format!("{}: the preparation of images would be written there, over another file", file.display()))
            }
            false => Ok(Some(file)),
        }
    }

    /// Writes its file, whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        write_whole(path, |file| file.write_all(self.to_json().as_bytes()))
    }
}
