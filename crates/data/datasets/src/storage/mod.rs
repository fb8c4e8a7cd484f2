//! Where data lie: in files of this machine, or in objects on servers.
//!
//! [`Storage`] opens a path as a file or an address as an object, and a [`Container`] is either. So
//! packed files, archives and Parquet files have one code and one order. What the headers of an
//! archive say is kept beside the pieces of its object (`Container::known`).

mod container;
mod file_reader;
mod open_files;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use enmasse_data::DataError;
use enmasse_remote::{Remote, RemoteOptions, is_remote};

use crate::DataWarning;

pub use container::Container;
pub(crate) use open_files::OpenFiles;

/// Opens what paths name. A path is an address where the storage is one of objects.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    /// Files of this machine.
    Files,
    /// Objects on servers.
    Objects(Arc<Remote>),
}

impl Storage {
    /// The storage of the data in `root`. Asks no server.
    pub fn of(root: &Path, options: &RemoteOptions) -> Result<Self, DataError> {
        match is_remote(root) {
            true => Ok(Storage::Objects(Remote::new(options)?)),
            false => Ok(Storage::Files),
        }
    }

    pub fn is_remote(&self) -> bool {
        matches!(self, Storage::Objects(_))
    }

    /// Opens a file or an object.
    pub fn open(&self, path: &Path) -> Result<Container, DataError> {
        match self {
            Storage::Files => Container::open(path),
            Storage::Objects(remote) => Ok(Container::of_object(remote.object(&path.to_string_lossy())?)),
        }
    }

    /// Text that differs for two versions of an object; `None` for a file.
    pub fn version(&self, path: &Path) -> Option<String> {
        match self {
            Storage::Files => None,
            Storage::Objects(remote) => Some(remote.object(&path.to_string_lossy()).ok()?.version().to_string()),
        }
    }

    /// The names in a folder that are UTF-8, in order.
    pub fn names(&self, folder: &str) -> Result<Vec<String>, DataError> {
        match self {
            Storage::Files => {
                // A file server may fail midway. Fewer files than there are would be other data.
                let listed = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
                let listed = listed.map_err(|source| DataError::read(folder, source))?;
                let mut names: Vec<String> =
                    listed.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
                names.sort_unstable();
                Ok(names)
            }
            Storage::Objects(remote) => Ok(remote.list(folder)?),
        }
    }

    /// What the user should know about the objects that have been opened.
    pub fn warnings(&self) -> Vec<DataWarning> {
        match self {
            Storage::Files => Vec::new(),
            Storage::Objects(remote) => {
                remote.warnings().into_iter().map(|(problem, remedy)| DataWarning { problem, remedy }).collect()
            }
        }
    }
}
