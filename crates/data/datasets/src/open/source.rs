//! What the user named: a file, a folder, several files by a pattern, or objects on a server.

use std::path::{Path, PathBuf};

use enmasse_data::DataError;

use super::pieces::{expand, in_folder, is_pattern};
use crate::OpenOptions;
use crate::scan::has_extension;
use crate::storage::Storage;

/// A path or an address, and how it is read.
pub(super) struct Source<'a> {
    pub root: &'a Path,
    pub options: &'a OpenOptions,
    pub storage: Storage,
    pub named: Named,
}

/// What a path or an address names.
pub(super) enum Named {
    /// A file, or an object.
    File,
    /// A folder of this machine.
    Folder,
    /// A folder on a server, whose address ends with a slash: the names of the objects directly in it.
    Objects(Vec<String>),
    /// The files of a pattern.
    Pattern(Vec<PathBuf>),
}

impl<'a> Source<'a> {
    /// Looks at a path. A server is asked for the names in a folder, and for nothing else.
    pub fn of(root: &'a Path, options: &'a OpenOptions) -> Result<Self, DataError> {
        let storage = Storage::of(root, &options.remote)?;
        let address = root.to_string_lossy();
        let named = if is_pattern(root) && (storage.is_remote() || !root.exists()) {
            Named::Pattern(expand(&storage, root)?)
        } else if storage.is_remote() {
            if address.ends_with('/') { Named::Objects(storage.names(&address)?) } else { Named::File }
        } else {
            let metadata = root.metadata().map_err(|source| DataError::read(root, source))?;
            if metadata.is_dir() { Named::Folder } else { Named::File }
        };
        Ok(Source { root, options, storage, named })
    }

    pub fn is_folder(&self) -> bool {
        matches!(self.named, Named::Folder)
    }

    /// The root itself, as what a format recognises, or nothing.
    pub fn root_if(&self, is_recognised: bool) -> Vec<PathBuf> {
        if is_recognised { vec![self.root.to_owned()] } else { Vec::new() }
    }

    /// The files whose names have this extension; those of a pattern if all of them have it.
    pub fn files(&self, extension: &str) -> Result<Vec<PathBuf>, DataError> {
        let has = |name: &str| has_extension(name, &[extension]);
        Ok(match &self.named {
            Named::File => self.root_if(has(&self.root.to_string_lossy())),
            Named::Folder => in_folder(self.root, extension)?,
            Named::Objects(names) => names.iter().filter(|name| has(name)).map(|name| self.root.join(name)).collect(),
            Named::Pattern(files) if files.iter().all(|file| has(&file.to_string_lossy())) => files.clone(),
            Named::Pattern(_) => Vec::new(),
        })
    }

    /// The folder relative to which the names of files say their parts.
    pub fn folder(&self) -> &'a Path {
        if self.is_folder() { self.root } else { self.root.parent().unwrap_or(self.root) }
    }
}
