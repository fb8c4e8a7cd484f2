//! The temperature of a run: fitted on its validation part, kept for its predictions.

use serde::{Deserialize, Serialize};

use super::{RunError, RunPaths, read};

/// What an evaluation of a run's validation part found of its probabilities, as the run folder keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    /// By what to divide logits.
    pub temperature: f64,
    /// The expected calibration error without it.
    pub ece: f64,
    /// The expected calibration error with it.
    pub ece_at_temperature: f64,
    /// Images by which it was fitted.
    pub samples: u64,
    /// Updates that the weights had. It is for no others.
    pub optimizer_step: u64,
}

impl RunPaths {
    /// Reads the temperature of the run; `None` if none is there.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub fn read_calibration(&self) -> Result<Option<CalibrationRecord>, RunError> {
        let path = self.calibration();
        if !path.exists() {
            return Ok(None);
        }
        let malformed = |reason: String| RunError::Content { path: path.clone(), reason };
        let record: CalibrationRecord =
            serde_json::from_str(&read(&path)?).map_err(|error| malformed(format!("is malformed: {error}")))?;
        if !(record.temperature.is_finite() && record.temperature > 0.0) {
            return Err(malformed(format!("has the temperature {}, which is not above 0", record.temperature)));
        }
        Ok(Some(record))
    }
}
