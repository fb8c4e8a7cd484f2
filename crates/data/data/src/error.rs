//! Errors in data: one line each, with the fault, its place, and what to do.

use std::any::Any;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use enmasse_image::ImageError;
use enmasse_remote::RemoteError;
use enmasse_system::files::{FileError, system_message};
use enmasse_wording::one_line;

use crate::bad_sample::name_some;
use crate::{BadSample, Dataset};

/// An error of a data set, an image, or the loader.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file or folder could not be opened, listed or read.
    #[error("cannot read {}: {}", one_line(&.path.to_string_lossy()), system_message(.source))]
    Read {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file or folder could not be written.
    #[error("cannot write {}: {}", one_line(&.path.to_string_lossy()), system_message(.source))]
    Write {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file that others read could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// An object on a server could not be read. This is not the fault of one sample.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A folder does not have the layout of a data set.
    #[error("{}: {}", one_line(&.path.to_string_lossy()), one_line(problem))]
    Layout {
        /// The folder or file at fault.
        path: PathBuf,
        /// The fault, and what to do.
        problem: String,
    },
    /// An image cannot be used.
    #[error("{}: {problem}", one_line(name))]
    Image {
        /// The file, or the data set's own name for the sample.
        name: String,
        /// The fault.
        problem: String,
    },
    /// A sample does not fit the run: the data set or a transform is wrong.
    #[error("{}: {problem}", one_line(name))]
    Sample {
        /// The sample, by its index and the data set's own name.
        name: String,
        /// The fault.
        problem: String,
    },
    /// So many samples in a row cannot be read that skipping them is no remedy.
    #[error("{count} samples in a row cannot be read, the last one {last}; this is no exception: check the data set")]
    Unreadable {
        /// Their number.
        count: usize,
        /// The last one.
        last: BadSample,
    },
    /// More samples cannot be read than may be skipped.
    #[error(
        "{count} images cannot be read, and at most {limit} are skipped (1 % of the data set, at least 10): {}; \
         mend or remove them (enmasse data check names all), or skip any number with `on_bad_sample = substitute`",
        name_some(.first, *.count)
    )]
    TooManyUnreadable {
        /// Their number, as far as they are known.
        count: usize,
        /// How many may be skipped.
        limit: usize,
        /// The first ones.
        first: Vec<BadSample>,
    },
    /// A file system does not answer.
    #[error(
        "{name}: neither this image nor another could be read for {} s; check its disk or file server, or raise \
         the timeout",
        .timeout.as_secs_f64()
    )]
    Stalled {
        /// A sample that is being read, by its index and the data set's own name.
        name: String,
        /// The longest time without an image.
        timeout: Duration,
    },
    /// An epoch has no sample.
    #[error("the training data hold {samples} samples, too few for {shards} shards")]
    NoSamples {
        /// Samples in the data set.
        samples: usize,
        /// Number of shards.
        shards: usize,
    },
    /// There are fewer samples than in one global batch, and batches that are not full are left out.
    #[error(
        "the training data hold {samples} samples, fewer than one global batch of {global_batch} \
         ({shards} shards of {batch}), and drop_last leaves out a batch that is not full: turn it off, or lower the batch size or the \
         number of devices"
    )]
    TooFewSamples {
        /// Samples in the data set.
        samples: usize,
        /// Samples in a global batch.
        global_batch: usize,
        /// Number of shards.
        shards: usize,
        /// Samples per shard.
        batch: usize,
    },
    /// There is no memory for the images of a batch.
    #[error("cannot allocate {bytes} bytes for the images of a batch: {}; lower the batch size", system_message(.source))]
    Memory {
        /// Size of the buffer.
        bytes: usize,
        /// The error of the system or the device's driver.
        source: io::Error,
    },
    /// A setting is invalid.
    #[error("{0}")]
    Setting(String),
    /// A custom data set or transform panicked; the loader's thread survived.
    #[error("{name}: reading or transforming it panicked: {message}")]
    Panicked {
        /// The data set's name for the sample.
        name: String,
        /// The first line of the panic's message.
        message: String,
    },
}

/// Linux's EIO (a bad sector) and ELOOP, which are faults of one file and have no stable kind in the standard library.
const LOST: [i32; 2] = [5, 40];

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for DataError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl DataError {
    /// The error of a file or folder that could not be opened, listed or read.
    pub fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        DataError::Read { path: path.into(), source }
    }

    /// The error of a file or folder that could not be written.
    pub fn write(path: impl Into<PathBuf>, source: io::Error) -> Self {
        DataError::Write { path: path.into(), source }
    }

    /// The error of a file or folder that is not as a data set has it.
    pub fn layout(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        DataError::Layout { path: path.into(), problem: problem.into() }
    }

    /// Whether one sample cannot be read and others may: its file is missing, forbidden or damaged. Errors of the system,
    /// such as too many open files, do not count.
    pub fn is_unreadable(&self) -> bool {
        match self {
            DataError::Image { .. } => true,
            DataError::Read { source, .. } if source.raw_os_error().is_some_and(|code| LOST.contains(&code)) => true,
            DataError::Read { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::IsADirectory
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::StaleNetworkFileHandle
                    | io::ErrorKind::InvalidData
                    | io::ErrorKind::UnexpectedEof
            ),
            _ => false,
        }
    }

    /// The fault, without the name of the file or sample.
    pub fn problem(&self) -> String {
        match self {
            DataError::Read { source, .. } => system_message(source),
            DataError::Image { problem, .. } | DataError::Sample { problem, .. } => problem.clone(),
            other => other.to_string(),
        }
    }

    /// The error of more unreadable samples than `limit`.
    pub fn too_many_unreadable<'a>(samples: impl Iterator<Item = &'a BadSample> + Clone, limit: usize) -> Self {
        /// Samples that the error names.
        const NAMED: usize = 3;
        let first = samples.clone().take(NAMED).cloned().collect();
        DataError::TooManyUnreadable { count: samples.count(), limit, first }
    }

    /// The error of a sample that does not fit: it is named by its index, and by the data set's own name if that is another.
    pub fn of_sample(dataset: &dyn Dataset, index: usize, problem: impl Into<String>) -> Self {
        DataError::Sample { name: describe_sample(dataset, index), problem: problem.into() }
    }

    /// The error of a sample that is not read for `timeout`.
    pub(crate) fn stalled(dataset: &dyn Dataset, index: usize, timeout: Duration) -> Self {
        DataError::Stalled { name: describe_sample(dataset, index), timeout }
    }

    /// The error of a custom data set or transform that panicked.
    pub(crate) fn panicked(name: impl Into<String>, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
        let message = text.and_then(|text| text.lines().next()).unwrap_or("no message").to_owned();
        DataError::Panicked { name: name.into(), message }
    }

    /// The error of data in `root` of which no image for `purpose`, such as training, can be read.
    pub fn nothing_readable(root: impl Into<PathBuf>, purpose: &str) -> Self {
        DataError::layout(root, format!("none of its images for {purpose} can be read"))
    }

    /// The error of an image that cannot be used. A decoder's `problem` may span lines; the error never does.
    pub fn image(name: impl Into<String>, problem: impl ToString) -> Self {
        ImageError::image(name, problem).into()
    }
}

/// Each kind of error under the same name.
impl From<ImageError> for DataError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Read { path, source } => DataError::Read { path, source },
            ImageError::Image { name, problem } => DataError::Image { name, problem },
            ImageError::Setting(problem) => DataError::Setting(problem),
        }
    }
}

/// `sample 3 (red/7.jpg)`.
pub(crate) fn describe_sample(dataset: &dyn Dataset, index: usize) -> String {
    let number = format!("sample {index}");
    let name = dataset.name(index);
    if name == number { number } else { format!("{number} ({name})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a path of a table, or a member of an archive, with a line break made an error of two lines.
    #[test]
    fn errors_that_quote_a_line_break_are_one_line() {
        let check = |error: DataError, expected: &str| assert_eq!(error.to_string(), expected);
        check(DataError::layout("a\nb", "there is no c\nd"), "a b: there is no c d");
        check(DataError::image("a\nb", "damaged\nhere"), "a b: damaged here");
        check(DataError::read("a\nb", io::ErrorKind::NotFound.into()), "cannot read a b: entity not found");
        check(DataError::write("a\nb", io::ErrorKind::NotFound.into()), "cannot write a b: entity not found");
    }
}
