//! `RUN/logs/flight-R.json`: a rank's latest operations, as a failing rank writes them and the doctor reads them.

use std::path::{Path, PathBuf};

use enmasse_comm::{FlightOperation, FlightRecord};
use enmasse_wording::one_line;
use serde_json::{Value, json};

/// The path of a rank's record.
pub fn path(run: &Path, rank: usize) -> PathBuf {
    run.join(format!("logs/flight-{rank}.json"))
}

/// The content of the file.
pub fn to_json(rank: usize, record: &FlightRecord) -> Value {
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

/// Parses the output of [`to_json`]. Times are milliseconds since 1970 by the rank's own clock.
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

    #[test]
    fn records_round_trip() {
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
