//! The charts of a run's progress: its curves, and the confusion matrix of its best epoch.

use std::path::{Path, PathBuf};

use enmasse_charts::{EpochPoint, training_curves};
use enmasse_system::files::{FileError, Staging};
use serde_json::Value;

use super::write;
use crate::{Artifact, Callback, CallbackResult, Confusion, Control, EpochRecord, Evaluation, RunError, TrainError};

/// Draws loss and accuracy of all epochs after each epoch.
pub struct Curves {
    staging: Staging,
    path: PathBuf,
    epochs: Vec<EpochPoint>,
}

impl Curves {
    /// Curves of the epochs in `metrics`, the run's `metrics.jsonl`, and of those that follow. The chart is the SVG file `path`.
    pub fn open(staging: Staging, path: PathBuf, metrics: &Path) -> Result<Self, RunError> {
        let text = enmasse_system::files::read_text(metrics).map_err(FileError::of("read", metrics))?;
        let records = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        Ok(Curves { staging, path, epochs: records.filter_map(|record| recorded(&record)).collect() })
    }
}

impl Callback for Curves {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        self.epochs.push(EpochPoint {
            epoch: record.epoch + 1,
            train_loss: record.train_loss,
            val_loss: record.val_loss,
            train_accuracy: record.train_accuracy.unwrap_or(f64::NAN),
            val_accuracy: record.val_accuracy.unwrap_or(f64::NAN),
            learning_rate: record.learning_rate,
        });
        write(&self.staging, &self.path, &training_curves("training curves", &self.epochs))?;
        control.artifact(Artifact::Chart, &self.path);
        Ok(())
    }
}

/// An epoch as its line of `metrics.jsonl` has it. Values that are missing there are unknown.
fn recorded(record: &Value) -> Option<EpochPoint> {
    let value = |name: &str| record[name].as_f64().unwrap_or(f64::NAN);
    Some(EpochPoint {
        epoch: record["epoch"].as_u64()? + 1,
        train_loss: value("train_loss"),
        val_loss: value("val_loss"),
        train_accuracy: value("train_accuracy"),
        val_accuracy: value("val_accuracy"),
        learning_rate: value("learning_rate"),
    })
}

/// Draws the confusion matrix of each whole epoch that is better than all earlier ones.
pub struct BestConfusion {
    staging: Staging,
    path: PathBuf,
    classes: Vec<String>,
    /// The matrix of the latest validation.
    confusion: Option<Confusion>,
}

impl BestConfusion {
    /// Draws into the SVG file `path`.
    pub fn new(staging: Staging, path: PathBuf, classes: &[String]) -> Self {
        BestConfusion { staging, path, classes: classes.to_owned(), confusion: None }
    }

    /// Draws the matrix if the epoch is the best one, and returns whether it has.
    fn draw(&mut self, record: &EpochRecord) -> Result<bool, TrainError> {
        let Some(confusion) = self.confusion.take().filter(|_| record.best) else { return Ok(false) };
        let title = format!("confusion matrix of epoch {}", record.epoch + 1);
        write(&self.staging, &self.path, &confusion.draw(&title, &self.classes)?)?;
        Ok(true)
    }
}

impl Callback for BestConfusion {
    fn on_validation_end(&mut self, found: &Evaluation, _: &mut Control) -> CallbackResult {
        self.confusion = found.confusion.clone();
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        if self.draw(record)? {
            control.artifact(Artifact::Chart, &self.path);
        }
        Ok(())
    }
}
