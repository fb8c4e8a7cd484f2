//! Named tensors in files: what a model's weights are when they lie on a disk.
//!
//! [`read`] understands safetensors and every form of PyTorch's `.pth`, by content and not by name. [`pth::write`] and
//! [`safetensors::write`] write what PyTorch and torchvision open, and [`match_tensors`] says what of a file fits a model.
//!
//! Nothing in a file is believed, and nothing in it is executed. Reading a file of L bytes takes at most 4 max(L, 2^20) bytes
//! for values, 256 min(L, 2^20) for what a pickle says, 64 min(L, 2^26) for directories and texts, and 2^20 besides.
//!
//! ```
//! use enmasse_weights::{NamedTensor, pth, read};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.pth");
//! let weight = NamedTensor { name: "fc.weight".to_owned(), shape: vec![1, 2], values: vec![0.5, -1.0] };
//! pth::write(&mut std::fs::File::create(&path)?, std::slice::from_ref(&weight), 0)?;
//! assert_eq!(read(&path)?.tensors, [weight]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod element;
mod matching;
mod named;
pub mod pth;
pub mod safetensors;
mod source;

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use element::ElementType;
pub use matching::{Matching, Skipped, match_tensors};
pub use named::{NamedTensor, check_tensors, counter_names};

use named::Collector;
use source::Source;

/// How a file keeps its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A header of JSON, then bytes.
    Safetensors,
    /// What `torch.save` writes since PyTorch 1.6: a zip file.
    Zip,
    /// What it wrote before: pickles, then storages.
    Legacy,
    /// What it wrote before PyTorch 0.2: a tar file.
    Tar,
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(match self {
            Format::Safetensors => "safetensors",
            Format::Zip => "PyTorch (zip)",
            Format::Legacy => "PyTorch (legacy)",
            Format::Tar => "PyTorch (tar)",
        })
    }
}

impl Format {
    /// The format of a file, by how it begins.
    pub fn of(path: &Path) -> Result<Self, WeightsError> {
        Source::open(path)?.format()
    }
}

/// The weights in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightsFile {
    /// The file.
    pub path: PathBuf,
    /// How it keeps them.
    pub format: Format,
    /// In the order of the file. Prefixes that wrappers put before every name, `module.` and `_orig_mod.`, are taken off; batch
    /// norm's counters are left out, as is what is no tensor.
    pub tensors: Vec<NamedTensor>,
}

/// Why a file could not be read.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The file system refused.
    #[error("cannot read {}: {}", path.display(), reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The file makes no sense, or holds what is not understood.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "it does not exist".to_owned(),
        ErrorKind::PermissionDenied => format!("no permission ({error})"),
        _ => error.to_string(),
    }
}

/// Reads the weights of a file as f32, whatever their element type. A file without any is an error.
pub fn read(path: &Path) -> Result<WeightsFile, WeightsError> {
    let source = Source::open(path)?;
    let format = source.format()?;
    let mut collector = Collector::new(&source);
    match format {
        Format::Safetensors => safetensors::collect(&source, &mut collector)?,
        Format::Zip | Format::Legacy | Format::Tar => pth::collect(&source, format, &mut collector)?,
    }
    let tensors = collector.finish()?;
    Ok(WeightsFile { path: path.to_owned(), format, tensors })
}
