//! The timeline of some steps of a run, for chrome://tracing and Perfetto.

use std::io::{self, Write};
use std::path::PathBuf;

use super::{RunError, RunFolder, create_folder_of};

impl RunFolder {
    /// Writes the timeline through `fill`, and returns its path. A file that was there is replaced.
    pub(crate) fn write_trace(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<PathBuf, RunError> {
        let path = self.paths.trace();
        create_folder_of(&path)?;
        self.staging().write_whole(&path, |file| fill(file))?;
        Ok(path)
    }
}
