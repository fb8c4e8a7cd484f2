//! What can go wrong with NVIDIA's libraries: each error is one line, with what to do where that is known.

use std::path::PathBuf;

use enmasse_device::DeviceError;
use thiserror::Error;

use crate::libraries::Library;

/// Why a library of NVIDIA's cannot be used, or what it refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// No place has the library.
    #[error("{library} is missing: no {files} in {places}; {} it", library.remedy())]
    Missing {
        /// The library.
        library: Library,
        /// The names that its file can have.
        files: String,
        /// Where it was looked for.
        places: String,
    },
    /// The library is there, but the system does not load it.
    #[error("{library} cannot be loaded: {why}; {} it again, or another version", library.remedy())]
    Unusable {
        /// The library.
        library: Library,
        /// What the system's loader says, with the path.
        why: String,
    },
    /// This program is a static one, which has no loader.
    #[error("{library} cannot be loaded: this program is static; take the one for glibc")]
    Static {
        /// The library.
        library: Library,
    },
    /// The library lacks a function.
    #[error("{library} ({}) has no function {function}: its version is too old, or too new; {} another", path.display(), library.remedy())]
    Function {
        /// The library.
        library: Library,
        /// Its file.
        path: PathBuf,
        /// The function.
        function: &'static str,
    },
    /// The library's version cannot be used.
    #[error("{library} ({}) has version {version}, {why}; {} another", path.display(), library.remedy())]
    Version {
        /// The library.
        library: Library,
        /// Its file.
        path: PathBuf,
        /// Its version.
        version: String,
        /// What is wrong with it.
        why: String,
    },
    /// A call failed.
    #[error("{library}: {function} failed: {why}")]
    Call {
        /// The library.
        library: Library,
        /// The function.
        function: &'static str,
        /// The library's own words.
        why: String,
    },
    /// No engine of the library takes an operation.
    #[error("{library} takes no {operation}: {why}")]
    Refused {
        /// The library.
        library: Library,
        /// The operation, with its shapes and types.
        operation: String,
        /// The reason.
        why: String,
    },
    /// The GPU has too little memory.
    #[error("no memory for {bytes} bytes of {what} on the GPU: use a smaller `batch` or `size`")]
    Memory {
        /// What was being allocated.
        what: String,
        /// Its size in bytes.
        bytes: usize,
    },
    /// The driver gives no page-locked memory.
    #[error("cannot allocate {bytes} bytes of page-locked memory of the host for {what}: {why}")]
    HostMemory {
        /// What was being allocated.
        what: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The driver's words.
        why: String,
    },
    /// What is wrong, in a sentence.
    #[error("{0}")]
    Unsupported(String),
}

impl CudaError {
    /// The error of a call, with what the call was about after the library's own words.
    pub(crate) fn about(self, words: std::fmt::Arguments<'_>) -> Self {
        match self {
            CudaError::Call { library, function, why } => {
                CudaError::Call { library, function, why: format!("{why}{words}") }
            }
            other => other,
        }
    }
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Memory { what, bytes } => DeviceError::Memory { arena: format!("{what} on the GPU"), bytes },
            other => DeviceError::Unsupported(other.to_string()),
        }
    }
}
