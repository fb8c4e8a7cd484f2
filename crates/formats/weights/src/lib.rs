//! Named tensors in files: a model's weights on disk.
//!
//! [`read`] understands safetensors and PyTorch's `.pth` since version 0.2, by content and not by
//! name. [`pth::write`] and [`safetensors::write`] write files that PyTorch and torchvision open.
//! [`match_tensors`] finds the tensors of a file that fit a model, also under the names of Lightning
//! and timm.
//!
//! Files are untrusted, and nothing in them is executed. Reading a file of L bytes takes at most 4 max(L, 2^20) bytes
//! for values, 256 min(L, 2^20) for the contents of pickles, 64 min(L, 2^26) for directories and texts, and 2^20 more.
//!
//! Use it to read or write the weights of any PyTorch model.
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
mod model;
mod named;
mod positions;
pub mod pth;
mod rename;
pub mod safetensors;
mod source;
mod tensors;
mod tools;

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use element::ElementType;
pub use matching::{MatchError, Matching, OtherClasses, match_tensors};
pub use model::ModelTensors;
pub use named::NamedTensor;
pub use positions::{Interpolated, Positions};
pub use rename::{Rename, Renamed};
pub use tensors::{Bytes, Pieces, Tensors, check_tensors, counter_names};

use named::Collector;
use source::Source;

/// The format of a file of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JSON header, then bytes.
    Safetensors,
    /// Written by `torch.save` since PyTorch 1.6: a zip file.
    Zip,
    /// Written before PyTorch 1.6: pickles, then storages.
    Legacy,
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(match self {
            Format::Safetensors => "safetensors",
            Format::Zip => "PyTorch (zip)",
            Format::Legacy => "PyTorch (legacy)",
        })
    }
}

impl Format {
    /// The format of a file, by its first bytes.
    ///
    /// # Errors
    /// The file cannot be read, or is of no such format.
    pub fn of(path: &Path) -> Result<Self, WeightsError> {
        Source::open(path)?.format()
    }
}

/// The weights in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightsFile {
    /// The file.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// The prefixes of wrappers that every name began with, `module.` and `_orig_mod.`. The names are without them.
    pub wrapper: String,
    /// The key under which a script keeps averages of the weights, such as `state_dict_ema`, if the tensors are these.
    pub averages: Option<&'static str>,
    /// The tensors, in file order. Batch norm's counters and everything that is not a tensor are left out.
    pub tensors: Vec<NamedTensor>,
}

/// Reasons why a file could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file system refused.
    #[error("cannot read {}: {}", path.display(), reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file is malformed, or its contents are not supported.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault, and what to do.
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

/// Reads the weights of a file as f32, whatever their element type.
///
/// # Errors
/// The file cannot be read, is malformed, or has no weights, or some that are not supported.
pub fn read(path: &Path) -> Result<WeightsFile, WeightsError> {
    let source = Source::open(path)?;
    let format = source.format()?;
    let mut collector = Collector::new(&source);
    let averages = match format {
        Format::Safetensors => {
            safetensors::collect(&source, &mut collector)?;
            None
        }
        Format::Zip | Format::Legacy => pth::collect(&source, format, &mut collector)?,
    };
    let (wrapper, tensors) = collector.finish()?;
    Ok(WeightsFile { path: path.to_owned(), format, wrapper, averages, tensors })
}
