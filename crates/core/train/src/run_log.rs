//! `metrics.jsonl`: one object per epoch, each epoch once, even if the run is killed and resumed.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use enmasse_system::files::{FileError, Staging};

use crate::{CallbackResult, EpochRecord, LogPoint, Logger, RunError, RunEvent, TrainError};

/// The open `metrics.jsonl` of a run.
#[derive(Debug)]
pub struct RunLog {
    path: PathBuf,
    file: File,
    staging: Staging,
    /// The number of epochs before the first whose records were missing or malformed.
    pub(crate) lost: u64,
}

impl RunLog {
    /// Opens the log, and creates it if it does not exist. Records from `first_epoch` on are dropped, since those
    /// epochs are about to run (again). A last line that a killed writer left incomplete is dropped too. The log is a
    /// new file: an earlier start of the job that still has the old one open adds nothing here.
    pub(crate) fn open(staging: &Staging, path: &Path, first_epoch: u64) -> Result<Self, RunError> {
        let text = match enmasse_system::files::read_regular(path, u64::MAX) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(FileError::of("read", path)(error).into()),
        };
        let kept = records_before(&text, first_epoch);
        let lost = first_epoch.saturating_sub(kept.lines().count() as u64);
        staging.write_whole(path, |writer| writer.write_all(kept.as_bytes()))?;
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(FileError::of("write", path))?;
        Ok(RunLog { path: path.to_owned(), file, staging: staging.clone(), lost })
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

impl Logger for RunLog {
    /// Epochs alone have lines.
    fn scalars(&mut self, _: LogPoint, _: &[(&str, f64)]) -> CallbackResult {
        Ok(())
    }

    fn epoch(&mut self, record: &EpochRecord) -> CallbackResult {
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::callback::Steering;
    use crate::{Bottleneck, Control, RankFigures, Straggler};

    fn record(epoch: u64) -> EpochRecord {
        EpochRecord {
            epoch,
            train_loss: 0.1 + 0.2,
            train_accuracy: Some(0.25),
            val_loss: f64::NAN,
            val_accuracy: Some(0.5),
            balanced_accuracy: Some(0.375),
            val_macro_f1: Some(0.25),
            learning_rate: 1e-3,
            images_per_second: 100.5,
            data_wait: 0.125,
            rank_wait: 0.25,
            seconds: 2.0,
            world_size: 2,
            partial: false,
            unvalidated: false,
            unreadable: 0,
            converted: 0,
            straggler: None,
            ranks: Default::default(),
            loss_scale: None,
            skipped_steps: 0,
            metrics: BTreeMap::new(),
            best: false,
        }
    }

    fn straggler() -> Straggler {
        let host = "b".to_owned();
        let work = Bottleneck::Data;
        let past = Some(1.25);
        Straggler { rank: 1, host, work, times: 1.5, waited: 0.25, past }
    }

    fn line(epoch: u64) -> String {
        RunEvent::Epoch(&record(epoch)).to_line() + "\n"
    }

    #[test]
    fn lines_are_the_contract() {
        let epoch =
            r#"{"event":"epoch","epoch":3,"train_loss":0.30000000000000004,"train_accuracy":0.25,"val_loss":null,"#;
        let rest = r#""val_accuracy":0.5,"balanced_accuracy":0.375,"val_macro_f1":0.25,"learning_rate":0.001,"images_per_second":100.5,"data_wait":0.125,"rank_wait":0.25,"seconds":2.0,"world_size":2}"#;
        assert_eq!(RunEvent::Epoch(&record(3)).to_line(), format!("{epoch}{rest}"));
        let logged = EpochRecord { metrics: [("val_top5".to_owned(), 0.75)].into(), ..record(3) };
        let rest = rest.replace('}', r#","val_top5":0.75}"#);
        assert_eq!(RunEvent::Epoch(&logged).to_line(), format!("{epoch}{rest}"));
        let straggler = Some(straggler());
        let partial = EpochRecord { partial: true, unreadable: 2, converted: 4, straggler, ..logged };
        let slow = r#""straggler":{"rank":1,"host":"b","work":"data","times":1.5,"waited":0.25,"past":1.25}"#;
        let more = format!(",\"partial\":true,\"unreadable\":2,\"converted\":4,{slow},\"val_top5\"");
        let rest = rest.replace(",\"val_top5\"", &more);
        assert_eq!(RunEvent::Epoch(&partial).to_line(), format!("{epoch}{rest}"));
        let ranks = RankFigures {
            images_per_second: vec![50.5, 49.5],
            data_wait: vec![0.5, 0.0],
            rank_wait: vec![0.0, 0.25],
            resident_bytes: vec![1 << 40, 7],
            device_bytes: vec![None, Some(3)],
            device_utilization: Vec::new(),
        };
        let scaled = EpochRecord { ranks, loss_scale: Some(512.0), skipped_steps: 3, ..partial };
        let ranks = r#""ranks":{"images_per_second":[50.5,49.5],"data_wait":[0.5,0.0],"rank_wait":[0.0,0.25],"resident_bytes":[1099511627776,7],"device_bytes":[null,3]}"#;
        let more = format!(",{ranks},\"loss_scale\":512.0,\"skipped_steps\":3,\"val_top5\"");
        let rest = rest.replace(",\"val_top5\"", &more);
        assert_eq!(RunEvent::Epoch(&scaled).to_line(), format!("{epoch}{rest}"));
    }

    #[test]
    fn nothing_can_be_logged_over_a_record() {
        let full = EpochRecord {
            partial: true,
            unreadable: 1,
            converted: 1,
            straggler: Some(straggler()),
            ranks: RankFigures { images_per_second: vec![1.0], ..RankFigures::default() },
            loss_scale: Some(1.0),
            skipped_steps: 1,
            ..record(0)
        };
        let line: serde_json::Value = serde_json::from_str(&RunEvent::Epoch(&full).to_line()).unwrap();
        let mut steering = Steering::default();
        let mut control = Control::new(&mut steering, None);
        for name in line.as_object().unwrap().keys() {
            assert!(control.log(name, 1.0).is_err(), "{name}");
        }
        control.log("temperature", 1.0).unwrap();
        control.log("temperature", 2.0).unwrap();
        assert_eq!(steering.logged().collect::<Vec<_>>(), [("temperature".to_owned(), 1.5)]);
    }

    #[test]
    fn each_epoch_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let staging = Staging::new(folder.path().to_owned(), "");
        let check = |before: Option<String>, first_epoch: u64, expected: &[u64]| {
            match before {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            let mut log = RunLog::open(&staging, &path, first_epoch).unwrap();
            assert_eq!(log.lost, first_epoch + 1 - expected.len() as u64);
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
        // Lost records, which are told.
        check(None, 2, &[2]);
        check(Some(line(0) + "{]\n" + &line(2)), 3, &[0, 2, 3]);
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
        check("/nowhere/metrics.jsonl", "cannot write /nowhere/metrics.jsonl: there is no folder /nowhere");
        check("/proc", "cannot read /proc: it is a folder, not a file");
    }
}
