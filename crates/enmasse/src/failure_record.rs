//! `RUN/logs/failure.json`: why the latest attempt at a run failed, as its launcher or rank 0 saw it.
//!
//! A rank that is killed cannot say so in its log, and its launcher's story is gone with the terminal; `enmasse doctor RUN`
//! reads both. The file appears whole, and its one writer holds the run folder's lock.

use std::fs::create_dir_all;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use enmasse_comm::{Cause, CauseKind};
use enmasse_launch::{Outcome, Status};
use enmasse_train::{RunError, RunFolder, RunPaths, utc_time, write_whole};
use serde_json::{Value, json};

use crate::attempt::attempt;
use crate::failure::{Failure, one_line};
use crate::output::say;
use crate::ranks::Rank;

/// The first failure of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureRecord {
    /// When it was recorded, such as `20260131-235959`, UTC.
    pub time: String,
    /// The rank that failed first; none where no single rank is to blame.
    pub rank: Option<usize>,
    /// Its machine; empty where that is not known.
    pub host: String,
    /// Its process.
    pub process: Option<u32>,
    /// [`CauseKind::name`], or empty where no rank has said why.
    pub kind: String,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// How the process ended; empty where the writer cannot know.
    pub status: String,
    /// What was being done; empty outside operations.
    pub operation: String,
    /// What happened; empty where no rank has said so.
    pub message: String,
    /// The last lines of the rank's standard error.
    pub stderr: Vec<String>,
}

impl FailureRecord {
    /// Where it lies.
    pub fn path(run: &Path) -> PathBuf {
        run.join("logs/failure.json")
    }

    /// What a launcher knows when all ranks are gone; none of a run that has succeeded.
    pub fn of_outcome(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Interrupted(signal) => Some(FailureRecord {
                kind: CauseKind::Interrupted.name().to_owned(),
                signal: Some(*signal),
                ..Self::now()
            }),
            Outcome::Failed(failure) => {
                let mut record = failure.cause.as_ref().map_or_else(Self::now, Self::of_cause);
                record.rank = failure.rank.or(record.rank);
                record.process = failure.pid;
                if record.host.is_empty() && failure.pid.is_some() {
                    // A launcher's processes run where it does.
                    record.host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                }
                record.status = failure.status.map_or(String::new(), |status| status.to_string());
                record.stderr = failure.stderr.iter().map(|line| one_line(line)).collect();
                if let Some(Status::Signal(signal)) = failure.status {
                    // What others say of a rank that was killed is that its connections have closed.
                    record.kind = CauseKind::Killed(signal).name().to_owned();
                    record.signal = Some(signal);
                }
                Some(record)
            }
            // No failure.
            _ => None,
        }
    }

    /// What the ranks have told each other.
    pub fn of_cause(cause: &Cause) -> Self {
        FailureRecord {
            rank: cause.rank,
            host: cause.host.clone(),
            kind: cause.kind.name().to_owned(),
            operation: match cause.sequence {
                0 => cause.operation.clone(),
                sequence => format!("{} #{sequence}", cause.operation),
            },
            message: one_line(&cause.message),
            ..Self::now()
        }
    }

    fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        FailureRecord { time: utc_time(now.as_secs()), ..Self::default() }
    }

    /// Reads what [`FailureRecord::keep`] wrote; fields that are missing, or something else, are empty.
    pub fn parse(text: &str) -> Option<Self> {
        let object: Value = serde_json::from_str(text).ok()?;
        let text = |name: &str| object[name].as_str().map(one_line).unwrap_or_default();
        let number = |name: &str| object[name].as_i64();
        let lines = object["stderr"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let record = FailureRecord {
            time: text("time"),
            rank: number("rank").and_then(|rank| rank.try_into().ok()),
            host: text("host"),
            process: number("process").and_then(|process| process.try_into().ok()),
            kind: text("kind"),
            signal: number("signal").and_then(|signal| signal.try_into().ok()),
            status: text("status"),
            operation: text("operation"),
            message: text("message"),
            stderr: lines.map(one_line).collect(),
        };
        (!record.time.is_empty()).then_some(record)
    }

    fn to_json(&self) -> Value {
        json!({
            "time": self.time,
            "rank": self.rank,
            "host": self.host,
            "process": self.process,
            "kind": self.kind,
            "signal": self.signal,
            "status": self.status,
            "operation": self.operation,
            "message": self.message,
            "stderr": self.stderr,
        })
    }

    /// Writes the record into a run folder in the place of an earlier one. Folders without a run stay as they are, and so do
    /// those that another process writes to by now. A failure to write is said, and is none of the run's.
    pub fn keep(&self, run: &Path) {
        let paths = RunPaths::new(run);
        if !paths.holds_run() {
            return;
        }
        let path = Self::path(run);
        let folder = match RunFolder::open(paths, true, &attempt()) {
            Ok(folder) => folder,
            Err(RunError::Busy(_) | RunError::Superseded { .. }) => return,
            Err(error) => return say(format_args!("warning: cannot write {}: {error}", path.display())),
        };
        let text = format!("{:#}\n", self.to_json());
        let logs = path.parent().unwrap_or(run);
        let written = create_dir_all(logs).map_err(|error| error.to_string()).and_then(|()| {
            write_whole(&path, |file| file.write_all(text.as_bytes())).map_err(|error| error.to_string())
        });
        drop(folder);
        if let Err(error) = written {
            say(format_args!("warning: {error}"));
        }
    }
}

/// Keeps why `rank` ends, where it is the one that writes: the cause that the ranks agree on, if there is one.
pub fn keep_failure(run: Option<&Path>, rank: &Rank, failure: &Failure) {
    let (Some(run), true, Failure::Error(message)) = (run, rank.is_first(), failure) else { return };
    let own = match &rank.group {
        Some(group) => {
            let own = group.own_cause(CauseKind::Error, message.clone());
            // The others need not wait for a slow disk.
            group.abort(own.clone());
            group.cause().map_or(own, |cause| (*cause).clone())
        }
        None => Cause::new(CauseKind::Error, message.clone()).of_rank(0),
    };
    FailureRecord::of_cause(&own).keep(run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use enmasse_train::Attempt;

    #[test]
    fn what_was_kept_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let cause = Cause::new(CauseKind::Exited, "gone\nwithout goodbye").of_rank(2).on_host("h").during("barrier", 7);
        let record = FailureRecord {
            process: Some(77),
            signal: Some(9),
            status: "was killed".to_owned(),
            stderr: vec!["a".to_owned(), "b".to_owned()],
            ..FailureRecord::of_cause(&cause)
        };
        // Nobody has trained here.
        record.keep(folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        let read = || FailureRecord::parse(&std::fs::read_to_string(FailureRecord::path(folder.path())).unwrap());
        record.keep(folder.path());
        assert_eq!(read(), Some(record.clone()));
        assert_eq!((record.operation.as_str(), record.message.as_str()), ("barrier #7", "gone without goodbye"));
        let later = FailureRecord { rank: None, ..record };
        later.keep(folder.path());
        assert_eq!(read(), Some(later.clone()));
        // Another process has gone on with the run: the record is not its own.
        let other = RunFolder::open(RunPaths::new(folder.path()), true, &Attempt::default()).unwrap();
        FailureRecord { rank: Some(5), ..later.clone() }.keep(folder.path());
        drop(other);
        assert_eq!(read(), Some(later));
    }

    #[test]
    fn outcomes() {
        assert_eq!(FailureRecord::of_outcome(&Outcome::Done), None);
        let record = FailureRecord::of_outcome(&Outcome::Interrupted(15)).unwrap();
        assert_eq!((record.kind.as_str(), record.signal, record.rank), ("interrupted", Some(15), None));
    }

    #[test]
    fn other_texts_are_no_record() {
        let check =
            |text: &str, expected: Option<FailureRecord>| assert_eq!(FailureRecord::parse(text), expected, "{text}");
        check("", None);
        check("[]", None);
        check("{\"rank\":1}", None);
        let only = |time: &str| Some(FailureRecord { time: time.to_owned(), ..FailureRecord::default() });
        check("{\"time\":\"t\",\"rank\":-1,\"signal\":99999999999,\"stderr\":7,\"host\":[]}", only("t"));
    }
}
