//! `RUN/logs/flight-R.json`: what a rank did last, kept when its group fails; and a word when ranks wait for long.
//!
//! A rank whose own code is stuck writes it too, from the thread that hears of the failure. `enmasse doctor RUN` lays the
//! records of all ranks side by side.

use std::io::Write;
use std::path::{Path, PathBuf};

use enmasse_comm::{CauseKind, FlightOperation, FlightRecord, Group, GroupEvent};
use enmasse_train::write_whole;
use serde_json::{Value, json};

use crate::failure::one_line;
use crate::output::say;

/// Says on rank 0 that ranks wait for another.
pub fn warn_of_stalls(group: &Group) {
    group.observe(|event| {
        if let GroupEvent::Stalled(stall) = event {
            say(format_args!("warning: {stall}"));
        }
    });
}

/// Keeps the rank's record beside its log when the group fails. Where there are no logs, no run has begun; and a rank that
/// was asked to stop has nothing to tell.
pub fn keep_flight(group: &Group, run: &Path) {
    let (rank, recorder, path) = (group.rank(), group.flight_recorder().clone(), flight_path(run, group.rank()));
    group.observe(move |event| {
        let GroupEvent::Failed(cause) = event else { return };
        let is_run = path.parent().is_some_and(Path::is_dir);
        if cause.kind == CauseKind::Interrupted || !is_run {
            return;
        }
        let text = to_json(rank, &recorder.record()).to_string();
        if let Err(error) = write_whole(&path, |file| file.write_all(text.as_bytes())) {
            say(format_args!("warning: {error}"));
        }
    });
}

/// Where a rank's record lies.
pub fn flight_path(run: &Path, rank: usize) -> PathBuf {
    run.join(format!("logs/flight-{rank}.json"))
}

fn to_json(rank: usize, record: &FlightRecord) -> Value {
    let operation = |op: &FlightOperation| {
        json!({
            "sequence": op.sequence,
            "operation": op.operation,
            "queued": op.queued,
            "started": op.started,
            "ended": op.ended,
        })
    };
    json!({
        "rank": rank,
        "time": record.time,
        "activity": record.activity,
        "since": record.since,
        "operations": record.operations.iter().map(operation).collect::<Vec<_>>(),
    })
}

/// Reads what [`keep_flight`] wrote: times are milliseconds since 1970 by the rank's own clock.
pub fn parse(text: &str) -> Option<FlightRecord> {
    let object: Value = serde_json::from_str(text).ok()?;
    let operation = |op: &Value| {
        Some(FlightOperation {
            sequence: op["sequence"].as_u64()?,
            operation: one_line(op["operation"].as_str()?),
            queued: op["queued"].as_u64()?,
            started: op["started"].as_u64(),
            ended: op["ended"].as_u64(),
        })
    };
    Some(FlightRecord {
        time: object["time"].as_u64()?,
        activity: one_line(object["activity"].as_str()?),
        since: object["since"].as_u64()?,
        operations: object["operations"].as_array()?.iter().map(operation).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(run: &Path, kind: CauseKind) {
        let [one, other] = <[Group; 2]>::try_from(Group::threads(2).unwrap()).unwrap();
        for group in [&one, &other] {
            keep_flight(group, run);
            group.flight_recorder().at("reading a batch");
        }
        other.abort(other.own_cause(kind, "over"));
    }

    #[test]
    fn records_are_kept_where_a_run_has_begun_and_failed() {
        let folder = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(folder.path().join("logs")).map_or(0, Iterator::count);
        fail(folder.path(), CauseKind::Error);
        assert!(!folder.path().join("logs").exists());
        std::fs::create_dir(folder.path().join("logs")).unwrap();
        fail(folder.path(), CauseKind::Interrupted);
        assert_eq!(count(), 0);
        fail(folder.path(), CauseKind::Error);
        assert_eq!(count(), 2);
        let record = parse(&std::fs::read_to_string(flight_path(folder.path(), 1)).unwrap()).unwrap();
        assert_eq!((record.activity.as_str(), record.operations), ("reading a batch", vec![]));
    }

    #[test]
    fn what_was_written_is_read_back() {
        let done = FlightOperation {
            sequence: 7,
            operation: "barrier".to_owned(),
            queued: 10,
            started: Some(11),
            ended: Some(12),
        };
        let queued = FlightOperation { sequence: 8, started: None, ended: None, ..done.clone() };
        let record =
            FlightRecord { time: 20, activity: "starting".to_owned(), since: 5, operations: vec![done, queued] };
        let text = to_json(3, &record).to_string();
        assert_eq!(parse(&text), Some(record));
        for text in ["", "[]", "{}", &text[..text.len() / 2], &text.replace("\"sequence\":7", "\"sequence\":-7")] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
