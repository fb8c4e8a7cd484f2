//! The list of images that a run skipped because they cannot be read. A resumed run goes on with it.

use std::collections::BTreeSet;

use enmasse_data::BadSample;

use super::{RunError, RunFolder, RunPaths, read};
use crate::bad_samples::{from_lines, to_lines};

impl RunPaths {
    /// Reads the file of [`RunFolder::write_unreadable`]; nothing if it does not exist.
    pub(crate) fn read_unreadable(&self) -> Result<BTreeSet<BadSample>, RunError> {
        let path = self.unreadable();
        if path.exists() { Ok(from_lines(&read(&path)?)) } else { Ok(BTreeSet::new()) }
    }
}

impl RunFolder {
    /// Writes the images that the run skipped.
    pub(crate) fn write_unreadable(&self, samples: &BTreeSet<BadSample>) -> Result<(), RunError> {
        self.write(&self.paths.unreadable(), to_lines(samples).as_bytes())
    }
}
