//! For fuzzing: each reader of a run's records keeps its promises for any bytes. Compiled with `--cfg fuzzing` alone.

use crate::rank_end::{blamed, read_log};
use crate::{FailureRecord, flight_record};

/// A record of a failure or of operations is written as it was read, and what it says is lines.
pub fn records(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(record) = FailureRecord::parse(&text) {
        assert!(!record.message.contains(char::is_control));
        assert_eq!(FailureRecord::parse(&record.to_json().to_string()), Some(record));
    }
    if let Some(record) = flight_record::parse(&text) {
        assert!(!record.activity.contains(char::is_control));
        assert_eq!(flight_record::parse(&flight_record::to_json(0, &record).to_string()), Some(record));
    }
}

/// What a rank's log says of its end is a part of the log.
pub fn log(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(end) = read_log(0, &text) {
        assert!(text.contains(&end.began) && text.contains(&end.last) && text.contains(&end.place));
    }
    let _ = blamed(&text);
}
