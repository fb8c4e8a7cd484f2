//! Where the settings of a run come from, beside their values.

use super::{RunError, RunFolder, RunPaths, read_json};
use crate::SettingOrigins;

impl RunPaths {
    /// Reads where the settings of the run come from; `None` of a run that did not keep it.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn read_origins(&self) -> Result<Option<SettingOrigins>, RunError> {
        let path = self.origins();
        if path.exists() { read_json(&path).map(Some) } else { Ok(None) }
    }
}

impl RunFolder {
    /// Writes where the settings come from. Where that is not known, an earlier start's origins must not stay.
    pub(crate) fn write_origins(&self, origins: Option<&SettingOrigins>) -> Result<(), RunError> {
        let path = self.paths().origins();
        match origins {
            Some(origins) => self.write_json(&path, origins),
            None => self.remove(&path),
        }
    }
}
