//! A folder for the time of a measurement, in which its ranks leave what they found.

use std::fs;
use std::path::PathBuf;

use crate::failure::{Failure, failed};

pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("enmasse-bench-{}", std::process::id()));
        let failed = |error| failed!("cannot create {}: {error}", path.display());
        fs::create_dir(&path).map_err(failed)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The system clears its folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
