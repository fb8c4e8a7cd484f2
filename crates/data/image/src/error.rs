//! Errors of images: one line each, with the fault, its place, and what to do.

use std::io;
use std::path::PathBuf;

use enmasse_system::files::system_message;
use enmasse_wording::one_line;

/// An error of an image, or of a transform.
#[derive(thiserror::Error)]
pub enum ImageError {
    /// An image file could not be read, or there is no memory for its pixels.
    #[error("cannot read {}: {}", one_line(&.path.to_string_lossy()), system_message(.source))]
    Read {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// An image cannot be used.
    #[error("{}: {problem}", one_line(name))]
    Image {
        /// The file, or the caller's own name for the image.
        name: String,
        /// The fault.
        problem: String,
    },
    /// A setting is invalid.
    #[error("{0}")]
    Setting(String),
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for ImageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl ImageError {
    pub(crate) fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        ImageError::Read { path: path.into(), source }
    }

    /// The error of the image `name`. A decoder's `problem` may span lines; the error never does.
    pub fn image(name: impl Into<String>, problem: impl ToString) -> Self {
        let problem = problem.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        ImageError::Image { name: name.into(), problem }
    }
}
