//! Writes a rank's latest operations when its group fails, and warns when ranks wait long or strangers came.
//!
//! A rank whose own code is stuck writes them too, from the thread that learns of the failure. `enmasse doctor RUN`
//! lays the records of all ranks side by side.

use std::io::Write;
use std::path::Path;

use enmasse_comm::{CauseKind, Group, GroupEvent};
use enmasse_doctor::flight_record;
use enmasse_system::files::write_whole;

use crate::output;

/// Warns on rank 0 that ranks wait for another, and on every rank of connections that its ports have refused.
pub fn warn(group: &Group) {
    group.observe(|event| match event {
        GroupEvent::Stalled(stall) => output::warn(stall),
        GroupEvent::Refused(refused) => output::warn(refused),
        _ => {}
    });
}

/// Writes the rank's record next to its log when the group fails. Without logs, no run has begun. A rank that was asked
/// to stop writes no record.
pub fn keep_flight(group: &Group, run: &Path) {
    let rank = group.rank();
    let recorder = group.flight_recorder().clone();
    let path = flight_record::path(run, group.rank());
    group.observe(move |event| {
        let GroupEvent::Failed(cause) = event else { return };
        let is_run = path.parent().is_some_and(Path::is_dir);
        if cause.kind == CauseKind::Interrupted || !is_run {
            return;
        }
        let text = flight_record::to_json(rank, &recorder.record()).to_string();
        if let Err(error) = write_whole(&path, |file| file.write_all(text.as_bytes())) {
            output::warn(error);
        }
    });
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
    fn records_are_written_for_runs_that_have_begun_and_failed() {
        let folder = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(folder.path().join("logs")).map_or(0, Iterator::count);
        fail(folder.path(), CauseKind::Error);
        assert!(!folder.path().join("logs").exists());
        std::fs::create_dir(folder.path().join("logs")).unwrap();
        fail(folder.path(), CauseKind::Interrupted);
        assert_eq!(count(), 0);
        fail(folder.path(), CauseKind::Error);
        assert_eq!(count(), 2);
        let record =
            flight_record::parse(&std::fs::read_to_string(flight_record::path(folder.path(), 1)).unwrap()).unwrap();
        assert_eq!((record.activity.as_str(), record.operations), ("reading a batch", vec![]));
    }
}
