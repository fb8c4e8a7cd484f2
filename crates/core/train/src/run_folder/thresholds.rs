//! The thresholds of a run's labels: found on its validation part, kept for its predictions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{RunError, RunPaths, read_json};

/// From which probability on each label is predicted, as the run folder keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThresholdsRecord {
    /// By the names of the labels.
    pub thresholds: BTreeMap<String, f64>,
    /// Images by which they were found.
    pub samples: u64,
    /// Updates that the weights had. They are for no others.
    pub optimizer_step: u64,
}

impl RunPaths {
    /// Reads the thresholds of the run; `None` if none are there.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn read_thresholds(&self) -> Result<Option<ThresholdsRecord>, RunError> {
        let path = self.thresholds();
        if path.exists() { read_json(&path).map(Some) } else { Ok(None) }
    }
}
