//! Containers that are open: at most 256, as many as a process may well have, out of any number.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use enmasse_data::{DataError, Dataset};

use super::{Container, Storage};

/// Files that are open at a time. A process may have 1024 in all by default.
const OPEN: usize = 256;

/// Files that are opened when they are needed. The one that has not been used for the longest time is closed for another.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    storage: Storage,
    paths: Vec<PathBuf>,
    /// The latest one last.
    open: Mutex<Vec<(usize, Arc<Container>)>>,
}

impl OpenFiles {
    pub fn new(storage: Storage, paths: Vec<PathBuf>) -> Self {
        OpenFiles { storage, paths, open: Mutex::default() }
    }

    pub fn path(&self, number: usize) -> &Path {
        &self.paths[number]
    }

    /// Whether they are objects on servers.
    pub fn is_remote(&self) -> bool {
        self.storage.is_remote()
    }

    /// [`Locality::fingerprint`](enmasse_data::Locality::fingerprint) of samples in objects: two ranks may find different versions of these under one name. Samples in
    /// files have none.
    pub fn fingerprint(&self, samples: &dyn Dataset) -> Option<String> {
        let mut hasher = blake3::Hasher::new();
        for path in &self.paths {
            hasher.update(self.storage.version(path)?.as_bytes());
        }
        for index in 0..samples.len() {
            hasher.update(format!("\n{} {}", samples.label(index), samples.name(index)).as_bytes());
            samples.targets(index).iter().for_each(|value| _ = hasher.update(&value.to_le_bytes()));
        }
        Some(hasher.finalize().to_hex().to_string())
    }

    /// The file with this number.
    pub fn get(&self, number: usize) -> Result<Arc<Container>, DataError> {
        if let Some(found) = self.find(number) {
            return Ok(found);
        }
        // Other threads go on while a file server takes its time. Two may open one file; one of these is closed then.
        let opened = Arc::new(self.storage.open(&self.paths[number])?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() == OPEN {
            open.remove(0);
        }
        open.push((number, opened.clone()));
        Ok(opened)
    }

    fn find(&self, number: usize) -> Option<Arc<Container>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let place = open.iter().rposition(|(own, _)| *own == number)?;
        let found = open.remove(place);
        let file = found.1.clone();
        open.push(found);
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..OPEN + 3).map(|number| folder.path().join(number.to_string())).collect();
        paths.iter().for_each(|path| std::fs::write(path, path.display().to_string()).unwrap());
        let files = OpenFiles::new(Storage::Files, paths.clone());
        for number in (0..paths.len()).chain([0, OPEN, 0]) {
            let file = files.get(number).unwrap();
            assert_eq!((file.path(), files.path(number)), (paths[number].as_path(), paths[number].as_path()));
        }
        let open: Vec<usize> = files.open.lock().unwrap().iter().map(|(number, _)| *number).collect();
        assert_eq!((open.len(), &open[OPEN - 3..]), (OPEN, &[OPEN + 2, OPEN, 0][..]));
        std::fs::remove_file(&paths[1]).unwrap();
        assert!(files.get(1).unwrap_err().to_string().contains("no such file"));
    }
}
