//! The events of a run, and `metrics.jsonl`: one object per epoch, each epoch once, even if the run is killed and resumed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use enmasse_files::{FileError, Staging};
use serde::Serialize;

use crate::{Callback, CallbackResult, Control, RunError, TrainError};

/// The measurements of an epoch. The keys of its JSON form, in this order, are a contract with scripts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EpochRecord {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Mean loss over the samples trained on.
    pub train_loss: f64,
    /// Share of hits among the samples trained on, 0 to 1. For charts; not part of the JSON object.
    #[serde(skip)]
    pub train_accuracy: f64,
    /// Mean loss over the validation set.
    pub val_loss: f64,
    /// Share of hits in the validation set, 0 to 1.
    pub val_accuracy: f64,
    /// The learning rate that the epoch used.
    pub learning_rate: f64,
    /// Over all ranks, training only.
    pub images_per_second: f64,
    /// Seconds of the epoch, including validation.
    pub seconds: f64,
    /// Number of ranks.
    pub world_size: usize,
    /// Further values by name: metrics of the plans, and values that callbacks logged.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
}

/// The keys that every epoch's record has, including that of its event.
pub(crate) const EPOCH_RECORD_NAMES: [&str; 10] = [
    "event",
    "epoch",
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "learning_rate",
    "images_per_second",
    "seconds",
    "world_size",
];

/// The end of a run. The keys of its JSON form, in this order, are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DoneRecord {
    /// The highest validation accuracy of an epoch.
    pub best_val_accuracy: f64,
    /// Seconds since the start.
    pub seconds: f64,
    /// Sum over ranks.
    pub peak_rss_bytes: u64,
    /// The run folder.
    pub run: PathBuf,
}

/// A run that stopped before its end, as requested. The keys of its JSON form, in this order, are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoppedRecord {
    /// The current epoch, from 0.
    pub epoch: u64,
    /// Number of its pictures that are done, over all ranks.
    pub samples: u64,
    /// The run folder.
    pub run: PathBuf,
}

/// A line of `--json`.
///
/// ```
/// use enmasse_train::{DoneRecord, RunEvent};
/// let done = DoneRecord { best_val_accuracy: 0.5, seconds: 2.0, peak_rss_bytes: 9, run: "runs/a".into() };
/// let line = r#"{"event":"done","best_val_accuracy":0.5,"seconds":2.0,"peak_rss_bytes":9,"run":"runs/a"}"#;
/// assert_eq!(RunEvent::Done(&done).to_line(), line);
/// ```
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum RunEvent<'a> {
    /// After each epoch.
    Epoch(&'a EpochRecord),
    /// The last line.
    Done(&'a DoneRecord),
    /// The last line of a run that stopped before its end.
    Stopped(&'a StoppedRecord),
}

impl RunEvent<'_> {
    /// The event as one line of JSON, without a line break. Numbers read back as the same bits; numbers that are not
    /// finite are `null`.
    pub fn to_line(&self) -> String {
        // Fails only for a map whose keys are not strings, or for a path that is not UTF-8.
        serde_json::to_string(self)
            .unwrap_or_else(|error| format!("{{\"event\":\"error\",\"message\":{:?}}}", error.to_string()))
    }
}

/// The open `metrics.jsonl` of a run.
#[derive(Debug)]
pub struct RunLog {
    path: PathBuf,
    file: File,
    staging: Staging,
}

impl RunLog {
    /// Opens the log, and creates it if it does not exist. Records from `first_epoch` on are dropped, since those
    /// epochs are about to run (again). A last line that a killed writer left incomplete is dropped too. The log is a
    /// new file: an earlier start of the job that still has the old one open adds nothing here.
    pub(crate) fn open(staging: &Staging, path: &Path, first_epoch: u64) -> Result<Self, RunError> {
        let text = match std::fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(FileError::of("read", path)(error).into()),
        };
        let kept = records_before(&text, first_epoch);
        staging.write_whole(path, |writer| writer.write_all(kept.as_bytes()))?;
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(FileError::of("write", path))?;
        Ok(RunLog { path: path.to_owned(), file, staging: staging.clone() })
    }

    /// Adds an epoch, and waits until it is on disk. Call this before writing the checkpoint that ends the epoch. If
    /// the process dies in between, the epoch runs again and its record is replaced; in the other order the record
    /// would be missing.
    pub fn append(&mut self, record: &EpochRecord) -> Result<(), RunError> {
        self.staging.check(&self.path)?;
        let line = RunEvent::Epoch(record).to_line() + "\n";
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        Ok(written.map_err(FileError::of("write", &self.path))?)
    }
}

impl Callback for RunLog {
    fn on_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        Ok(self.append(record).map_err(TrainError::from)?)
    }
}

/// The complete records of epochs below `first_epoch`, in order. If an epoch is recorded twice, the later record counts.
fn records_before(text: &str, first_epoch: u64) -> String {
    let mut kept: Vec<(u64, &str)> = Vec::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let epoch = serde_json::from_str::<serde_json::Value>(line).ok().and_then(|record| record["epoch"].as_u64());
        if let Some(epoch) = epoch.filter(|epoch| *epoch < first_epoch) {
            kept.retain(|(earlier, _)| *earlier < epoch);
            kept.push((epoch, line));
        }
    }
    kept.into_iter().map(|(_, line)| line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(epoch: u64) -> EpochRecord {
        EpochRecord {
            epoch,
            train_loss: 0.1 + 0.2,
            train_accuracy: 0.25,
            val_loss: f64::NAN,
            val_accuracy: 0.5,
            learning_rate: 1e-3,
            images_per_second: 100.5,
            seconds: 2.0,
            world_size: 2,
            metrics: BTreeMap::new(),
        }
    }

    fn line(epoch: u64) -> String {
        RunEvent::Epoch(&record(epoch)).to_line() + "\n"
    }

    #[test]
    fn lines_are_the_contract() {
        let epoch =
            r#"{"event":"epoch","epoch":3,"train_loss":0.30000000000000004,"val_loss":null,"val_accuracy":0.5,"#;
        let rest = r#""learning_rate":0.001,"images_per_second":100.5,"seconds":2.0,"world_size":2}"#;
        assert_eq!(RunEvent::Epoch(&record(3)).to_line(), format!("{epoch}{rest}"));
        let logged = EpochRecord { metrics: [("val_top5".to_owned(), 0.75)].into(), ..record(3) };
        let rest = rest.replace('}', r#","val_top5":0.75}"#);
        assert_eq!(RunEvent::Epoch(&logged).to_line(), format!("{epoch}{rest}"));
    }

    #[test]
    fn nothing_can_be_logged_over_a_record() {
        let line: serde_json::Value = serde_json::from_str(&RunEvent::Epoch(&record(0)).to_line()).unwrap();
        let mut control = Control::default();
        for name in line.as_object().unwrap().keys() {
            assert!(control.log(name, 1.0).is_err(), "{name}");
        }
        control.log("temperature", 1.0).unwrap();
        control.log("temperature", 2.0).unwrap();
        assert_eq!(control.logged().collect::<Vec<_>>(), [("temperature".to_owned(), 1.5)]);
    }

    #[test]
    fn each_epoch_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let staging = Staging::new(folder.path().to_owned(), "");
        let check = |before: Option<String>, first_epoch, expected: &[u64]| {
            match before {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            let mut log = RunLog::open(&staging, &path, first_epoch).unwrap();
            log.append(&record(first_epoch)).unwrap();
            let expected: String = expected.iter().map(|&epoch| line(epoch)).collect();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        };
        let three = || line(0) + &line(1) + &line(2);
        check(None, 0, &[0]);
        check(Some(three()), 3, &[0, 1, 2, 3]);
        check(Some(three()), 1, &[0, 1]);
        check(Some(three()), 0, &[0]);
        // A truncated last line, even one that is complete JSON without its line break.
        check(Some(three() + "{\"event\":\"epo"), 3, &[0, 1, 2, 3]);
        check(Some(three().trim_end().to_owned()), 2, &[0, 1, 2]);
        check(Some(line(0) + "\u{0}\u{0}\n"), 1, &[0, 1]);
        // Recorded twice.
        check(Some(line(0) + &line(1) + &line(1)), 2, &[0, 1, 2]);
    }

    #[test]
    fn errors_name_the_file() {
        let check = |path: &str, expected: &str| {
            assert_eq!(
                RunLog::open(&Staging::new(std::env::temp_dir(), ""), Path::new(path), 0).unwrap_err().to_string(),
                expected
            )
        };
        check("/nowhere/metrics.jsonl", "cannot write /nowhere/metrics.jsonl: it does not exist");
        check("/proc", "cannot read /proc: Is a directory (os error 21)");
    }
}
