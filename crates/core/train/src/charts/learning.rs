//! The charts of a run's progress: its curves, and the confusion matrix of its best epoch.

use std::path::{Path, PathBuf};

use enmasse_charts::{EpochPoint, training_curves};
use enmasse_system::files::{FileError, Staging};
use serde_json::Value;

use super::write;
use crate::{
    Artifact, Callback, CallbackResult, Confusion, Control, EpochRecord, Evaluation, Monitor, RunError, TrainError,
};

/// Draws loss and accuracy of all epochs after each epoch.
pub struct Curves {
    staging: Staging,
    path: PathBuf,
    epochs: Vec<EpochPoint>,
    monitor: Monitor,
    /// The first of the best epochs, counted from 1, and its monitored value.
    best: Option<(u64, f64)>,
}

impl Curves {
    /// Curves of the epochs in `metrics`, the run's `metrics.jsonl`, and of those that follow. The chart is the SVG file `path`.
    /// They mark the best epoch by `monitor`.
    pub fn open(staging: Staging, path: PathBuf, metrics: &Path, monitor: &Monitor) -> Result<Self, RunError> {
        let text = enmasse_system::files::read_text(metrics).map_err(FileError::of("read", metrics))?;
        let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut curves = Curves { staging, path, epochs: Vec::new(), monitor: monitor.clone(), best: None };
        for record in records {
            if let Some(point) = recorded(&record) {
                curves.add(point, record[&monitor.name].as_f64().filter(|_| record["unvalidated"] != true));
            }
        }
        Ok(curves)
    }

    fn add(&mut self, point: EpochPoint, monitored: Option<f64>) {
        let monitored = monitored.filter(|value| value.is_finite());
        if let Some(value) = monitored.filter(|value| self.monitor.improves(*value, self.best.map(|(_, best)| best))) {
            self.best = Some((point.epoch, value));
        }
        self.epochs.push(point);
    }

    /// The epoch to mark, and what made it the best.
    fn mark(&self) -> Option<(u64, String)> {
        let (epoch, value) = self.best?;
        let words = match self.monitor.name.as_str() {
            "val_accuracy" => format!("validation accuracy {:.1} %", value * 100.0),
            name => format!("{name} {value:.4}"),
        };
        Some((epoch, words))
    }
}

impl Callback for Curves {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        let point = EpochPoint {
            epoch: record.epoch + 1,
            train_loss: record.train_loss,
            val_loss: record.val_loss,
            train_accuracy: record.train_accuracy.unwrap_or(f64::NAN),
            val_accuracy: record.val_accuracy.unwrap_or(f64::NAN),
            learning_rate: record.learning_rate,
        };
        self.add(point, record.value(&self.monitor.name).filter(|_| !record.unvalidated));
        let mark = self.mark();
        let mark = mark.as_ref().map(|(epoch, words)| (*epoch, words.as_str()));
        write(&self.staging, &self.path, &training_curves("training curves", &self.epochs, mark))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_best_epochs_is_marked() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = folder.path().join("metrics.jsonl");
        let check = |monitor: Monitor, values: &[f64], expected: Option<(u64, &str)>| {
            let line = |(epoch, value): (usize, &f64)| {
                serde_json::json!({ "epoch": epoch, (monitor.name.as_str()): value }).to_string() + "\n"
            };
            std::fs::write(&metrics, values.iter().enumerate().map(line).collect::<String>()).unwrap();
            let staging = Staging::new(folder.path().to_owned(), "");
            let curves = Curves::open(staging, folder.path().join("x.svg"), &metrics, &monitor).unwrap();
            assert_eq!(curves.mark(), expected.map(|(epoch, words)| (epoch, words.to_owned())));
        };
        let accuracy = || Monitor::higher("val_accuracy");
        check(accuracy(), &[0.5, 0.625, 0.6], Some((2, "validation accuracy 62.5 %")));
        check(accuracy(), &[0.5, 0.5], Some((1, "validation accuracy 50.0 %")));
        check(accuracy(), &[f64::NAN, 0.0], Some((2, "validation accuracy 0.0 %")));
        check(accuracy(), &[f64::NAN], None);
        check(accuracy(), &[], None);
        check(Monitor::lower("val_loss"), &[0.5, 0.25, 0.75], Some((2, "val_loss 0.2500")));
    }
}
