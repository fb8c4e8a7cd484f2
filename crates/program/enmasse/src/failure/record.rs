//! Records why an attempt at a run failed, for the doctor. The file appears whole, and its one writer holds the
//! folder's lock.

use std::fs::create_dir_all;
use std::io::Write;
use std::path::Path;

use enmasse_comm::{Cause, CauseKind, Group};
use enmasse_doctor::FailureRecord;
use enmasse_system::files::write_whole;
use enmasse_train::{RunError, RunFolder, RunPaths};

use crate::failure::Failure;
use crate::output::warn;
use crate::ranks::attempt::attempt;

/// Writes a record to a run folder, in place of an earlier one. Folders without a run, and folders to which another
/// process writes by now, stay unchanged. A failure to write is reported, but does not fail the run.
pub fn keep(record: &FailureRecord, run: &Path) {
    let paths = RunPaths::new(run);
    if !paths.holds_run() {
        return;
    }
    let path = FailureRecord::path(run);
    let folder = match RunFolder::open(paths, true, &attempt()) {
        Ok(folder) => folder,
        Err(RunError::Busy(_) | RunError::Superseded { .. }) => return,
        Err(error) => return warn(format_args!("cannot write {}: {error}", path.display())),
    };
    let text = format!("{:#}\n", record.to_json());
    let logs = path.parent().unwrap_or(run);
    let written = create_dir_all(logs)
        .map_err(|error| error.to_string())
        .and_then(|()| write_whole(&path, |file| file.write_all(text.as_bytes())).map_err(|error| error.to_string()));
    drop(folder);
    if let Err(error) = written {
        warn(error);
    }
}

/// Records why a rank ends, if it is the one that writes: the cause that the ranks of its `group` agree on, if there is
/// one.
pub fn keep_failure(run: Option<&Path>, group: Option<&Group>, failure: &Failure) {
    let is_first = group.is_none_or(Group::is_main);
    let (Some(run), true, Failure::Error(message)) = (run, is_first, failure) else { return };
    let own = match group {
        Some(group) => {
            let own = group.own_cause(CauseKind::Error, message.clone());
            // The other ranks need not wait for a slow disk.
            group.abort(own.clone());
            group.cause().map_or(own, |cause| (*cause).clone())
        }
        None => Cause::new(CauseKind::Error, message.clone()).of_rank_here(0),
    };
    keep(&FailureRecord::of_cause(&own), run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use enmasse_train::Attempt;

    #[test]
    fn records_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let record = FailureRecord { time: "20260131-235959".to_owned(), rank: Some(2), ..FailureRecord::default() };
        // No run has trained here.
        keep(&record, folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        let read = || FailureRecord::parse(&std::fs::read_to_string(FailureRecord::path(folder.path())).unwrap());
        keep(&record, folder.path());
        assert_eq!(read(), Some(record.clone()));
        let later = FailureRecord { rank: None, ..record };
        keep(&later, folder.path());
        assert_eq!(read(), Some(later.clone()));
        // Another process has continued the run, so the record is not this process's to write.
        let other = RunFolder::open(RunPaths::new(folder.path()), true, &Attempt::default()).unwrap();
        keep(&FailureRecord { rank: Some(5), ..later.clone() }, folder.path());
        drop(other);
        assert_eq!(read(), Some(later));
    }
}
