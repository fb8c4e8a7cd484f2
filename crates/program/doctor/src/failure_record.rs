//! `RUN/logs/failure.json`: why the latest attempt at a run failed, as seen by its launcher or rank 0.
//!
//! A killed rank cannot write to its log, and the launcher's output is lost with the terminal. So the launcher writes
//! this record, and the doctor reads it along with the ranks' logs.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use enmasse_comm::{Cause, CauseKind, host_name};
use enmasse_launch::{Outcome, Status};
use enmasse_wording::{one_line, utc_time};
use serde_json::{Value, json};

/// The first failure of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureRecord {
    /// When it was recorded, such as `20260131-235959`, UTC.
    pub time: String,
    /// The rank that failed first; `None` if no single rank is to blame.
    pub rank: Option<usize>,
    /// Its machine; empty if unknown.
    pub host: String,
    /// Its process.
    pub process: Option<u32>,
    /// [`CauseKind::name`], or empty if no rank reported a cause.
    pub kind: String,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// How the process ended; empty if the writer cannot know.
    pub status: String,
    /// The operation in progress; empty outside operations.
    pub operation: String,
    /// What happened; empty if no rank reported it.
    pub message: String,
    /// The last lines of the rank's standard error.
    pub stderr: Vec<String>,
}

impl FailureRecord {
    /// The path of the record.
    pub fn path(run: &Path) -> PathBuf {
        run.join("logs/failure.json")
    }

    /// The launcher's knowledge once all ranks have ended; `None` for a run that succeeded.
    pub fn of_outcome(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Interrupted { signal, .. } => Some(FailureRecord {
                kind: CauseKind::Interrupted.name().to_owned(),
                signal: Some(*signal),
                ..Self::now()
            }),
            Outcome::Failed(failure) => {
                let mut record = failure.cause.as_ref().map_or_else(Self::now, Self::of_cause);
                record.rank = failure.rank.or(record.rank);
                record.process = failure.pid;
                if record.host.is_empty() && failure.pid.is_some() {
                    // A launcher's processes run on its own machine.
                    record.host = host_name();
                }
                record.status = failure.status.map_or(String::new(), |status| status.to_string());
                record.stderr = failure.stderr.iter().map(|line| one_line(line)).collect();
                if let Some(Status::Signal(signal)) = failure.status {
                    // Other ranks only report of a killed rank that its connections have closed.
                    record.kind = CauseKind::Killed(signal).name().to_owned();
                    record.signal = Some(signal);
                }
                Some(record)
            }
            // Not a failure.
            _ => None,
        }
    }

    /// The cause that the ranks agree on.
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

    /// Parses the output of [`FailureRecord::to_json`]; missing or malformed fields are empty.
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

    /// The content of the file.
    pub fn to_json(&self) -> Value {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let cause = Cause::new(CauseKind::Exited, "gone\nwithout goodbye").of_rank(2).on_host("h").during("barrier", 7);
        let record = FailureRecord {
            process: Some(77),
            signal: Some(9),
            status: "was killed".to_owned(),
            stderr: vec!["a".to_owned(), "b".to_owned()],
            ..FailureRecord::of_cause(&cause)
        };
        assert_eq!((record.operation.as_str(), record.message.as_str()), ("barrier #7", "gone without goodbye"));
        assert_eq!(FailureRecord::parse(&record.to_json().to_string()), Some(record));
    }

    #[test]
    fn outcomes() {
        assert_eq!(FailureRecord::of_outcome(&Outcome::Done), None);
        let record = FailureRecord::of_outcome(&Outcome::Interrupted { signal: 15, overdue: None }).unwrap();
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
