//! Run folders: which starts may open them, what is refused, and names.

use std::time::Duration;

use super::*;
use crate::run_log::RunLog;
use crate::{EpochRecord, TrainConfig};

fn open(root: &Path, resume: bool) -> Result<RunFolder, RunError> {
    RunFolder::open(RunPaths::new(root), resume, &Attempt::default())
}

fn start_of(job: &str, requeues: usize) -> Attempt {
    Attempt { job: job.to_owned(), requeues, restarts: 0 }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Creates a folder with the given empty files, opens it, and compares the result.
#[test]
fn contents_of_a_folder_decide_whether_it_opens() {
    let check = |held: &[&str], resume, expected: Result<bool, &str>| {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("a/b");
        for name in held {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = open(&root, resume).map(|folder| folder.paths().is_resumable());
        let found = found.map_err(|error| error.to_string().replace(&root.display().to_string(), "RUN"));
        assert_eq!(found.as_ref().map_err(String::as_str), expected.as_ref().map_err(|text| *text), "{held:?}");
    };
    let refused = Err("RUN: already holds a run; continue it with `resume`, or choose another `out`");
    check(&[], false, Ok(false));
    check(&[], true, Ok(false));
    check(&["slurm-1.out"], false, Ok(false));
    let unsaved = "RUN: holds a run that ended before its first checkpoint; start it again with `resume`, or choose another `out`";
    // Regression test: the line that failed before its first step, typed again, was refused.
    check(&["config.toml", "split.json", "metrics.jsonl", "logs/failure.json"], false, Ok(false));
    check(&["config.toml", "checkpoints/best.safetensors"], false, Err(unsaved));
    check(&["config.toml", "weights/model-0.pth"], false, Err(unsaved));
    check(&["checkpoints/last.safetensors"], false, refused);
    check(&["config.toml", "metrics.jsonl"], true, Ok(false));
    check(&["config.toml", "checkpoints/last.safetensors"], true, Ok(true));
}

/// Regression test: such a run was started anew, with the settings of the command line, over what was left of it.
#[test]
fn a_run_whose_last_checkpoint_is_gone_is_not_started_anew() {
    let check = |records: &str, expected: Option<&str>| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("metrics.jsonl"), records).unwrap();
        let found = open(folder.path(), true).err().map(|error| error.to_string());
        assert_eq!(found.map(|text| text.replace(&folder.path().display().to_string(), "RUN")).as_deref(), expected);
    };
    check("", None);
    // Killed between the record of the first epoch and its checkpoint.
    check("{}\n", None);
    let lost = "RUN: checkpoints/last.safetensors is gone, though 2 epochs are recorded; go on with `resume = best`, copy \
                another checkpoint of the run there and resume, or choose another `out`";
    check("{}\n{}\n", Some(lost));
}

#[test]
fn impossible_folders() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let check = |path: &Path, expected: &str| {
        let message = open(path, true).unwrap_err().to_string();
        assert_eq!(message.replace(&folder.path().display().to_string(), "DIR"), expected);
    };
    check(&file, "DIR/file: is a file; a run needs a folder, so choose another `out`");
    check(&file.join("below"), "cannot create DIR/file/below: Not a directory (os error 20)");
    // A location where even root cannot write.
    check(Path::new("/proc/enmasse"), "cannot create /proc/enmasse: it does not exist");
    let message = open(Path::new("/proc/self"), true).unwrap_err().to_string();
    assert!(message.starts_with("cannot write to /proc/self: "), "{message}");
}

#[test]
fn one_writer_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), false).unwrap();
    let busy = open(folder.path(), true).unwrap_err();
    assert!(matches!(busy, RunError::Busy(ref path) if path == folder.path()), "{busy}");
    drop(first);
    open(folder.path(), false).unwrap();
}

/// The class names that a run folder has, in the order of labels.
fn class_indices(paths: &RunPaths) -> Vec<String> {
    let text = std::fs::read_to_string(paths.class_indices()).unwrap();
    let by_label: std::collections::HashMap<usize, String> = serde_json::from_str(&text).unwrap();
    (0..by_label.len()).map(|label| by_label[&label].clone()).collect()
}

/// One start of a job holds the folder, and another start opens it.
#[test]
fn later_starts_of_a_job_take_its_run_over() {
    let check = |held: Attempt, asked: Attempt, expected: Result<(), &str>| {
        let folder = tempfile::tempdir().unwrap();
        let open = |attempt: &Attempt| {
            let found = RunFolder::open(RunPaths::new(folder.path()), true, attempt);
            found.map_err(|error| error.to_string().replace(&folder.path().display().to_string(), "RUN"))
        };
        let first = open(&held).unwrap();
        let second = open(&asked).map(|run| run.write_class_indices(&["b".to_owned()]).unwrap());
        assert_eq!(second.as_ref().map_err(String::as_str), expected.as_ref().map_err(|text| *text), "{held} {asked}");
        let wrote = first.write_class_indices(&["a".to_owned()]).map_err(|error| error.to_string());
        let classes = class_indices(first.paths());
        match expected {
            Err(_) => assert_eq!((wrote, classes), (Ok(()), vec!["a".to_owned()])),
            Ok(()) => {
                assert!(wrote.unwrap_err().ends_with("so this one may no longer write to it"));
                assert_eq!(classes, ["b"]);
                // Nor after the other start has released it.
                first.write_config(&RunConfig::default()).unwrap_err();
            }
        }
        drop(first);
        // The lock is free now. Only the count of a launcher may begin anew.
        let is_stale = expected.is_ok() && held.requeues < asked.requeues;
        assert_eq!(open(&held).is_err(), is_stale, "{held} after {asked}");
    };
    let restart = |requeues, restarts| Attempt { restarts, ..start_of("7", requeues) };
    let busy = Err("RUN: another process is training there; wait until it ends, or choose another `out`");
    let late = Err("RUN: start 3 of 7 has taken over the run, so start 2 of 7 may no longer write to it");
    check(start_of("7", 0), start_of("7", 1), Ok(()));
    check(restart(1, 5), restart(2, 0), Ok(()));
    check(restart(1, 5), restart(1, 6), Ok(()));
    check(start_of("7", 2), start_of("7", 1), late);
    check(start_of("7", 1), start_of("7", 1), busy);
    check(start_of("7", 0), start_of("8", 1), busy);
    check(Attempt::default(), Attempt { restarts: 1, ..Attempt::default() }, busy);
}

/// A start that a later one had superseded could take the run again once that one had ended, before the next one began.
#[test]
fn a_superseded_start_took_the_run_again_between_two_later_ones() {
    let folder = tempfile::tempdir().unwrap();
    let open = |requeues| RunFolder::open(RunPaths::new(folder.path()), true, &start_of("7", requeues));
    drop(open(0).unwrap());
    drop(open(1).unwrap());
    let error = open(0).unwrap_err();
    assert!(matches!(&error, RunError::Superseded { own, by, .. } if (own.requeues, by.requeues) == (0, 1)), "{error}");
    assert_eq!(names(folder.path()).iter().filter(|name| name.starts_with(".attempt-7-")).count(), 1);
    open(2).unwrap().write_class_indices(&["a".to_owned()]).unwrap();
}

/// Of two later starts that took a run over at once, the earlier one could end the claim and the lock of the other.
#[test]
fn of_two_later_starts_at_once_the_last_keeps_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let open = |attempt: &Attempt| RunFolder::open(RunPaths::new(root), true, attempt);
    let _stalled = open(&start_of("7", 0)).unwrap();
    let slow = start_of("7", 1);
    let lock = Claim::lock(root, &slow).unwrap();
    let last = open(&start_of("7", 2)).unwrap();
    let error = Claim::take(root, &slow, lock).unwrap_err();
    assert!(matches!(error, RunError::Superseded { .. }), "{error}");
    last.write_class_indices(&["a".to_owned()]).unwrap();
    let error = open(&start_of("8", 0)).unwrap_err();
    assert!(matches!(error, RunError::Busy(_)), "{error}");

    // One that has gone further finds its claim removed.
    let staging = Staging::new(root.join(".attempt-7-1-0-5.6"), "removed");
    let error = claim::replace_lock(root, &staging).unwrap_err();
    assert!(error.to_string().ends_with("removed"), "{error}");
}

/// The critical moment: the file is complete, and about to be renamed.
/// A rank that was killed while it wrote its latest operations left the file for ever.
#[test]
fn incomplete_files_of_killed_ranks_are_removed_from_the_logs() {
    let root = tempfile::tempdir().unwrap();
    let folder = open(root.path(), false).unwrap();
    folder.clear_logs().unwrap();
    let logs = root.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    for name in [".enmasse-1-0.tmp", "flight-1.json", "rank-1.log"] {
        std::fs::write(logs.join(name), "").unwrap();
    }
    folder.clear_logs().unwrap();
    assert_eq!(names(&logs), ["flight-1.json", "rank-1.log"]);
}

#[test]
fn a_write_in_progress_is_lost_when_the_run_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let paths = RunPaths::new(folder.path());
    let open = |requeues| RunFolder::open(paths.clone(), true, &start_of("7", requeues)).unwrap();
    let first = open(0);
    first.write_config(&RunConfig::default()).unwrap();
    let before = std::fs::read(paths.config()).unwrap();
    let mut log = RunLog::open(first.staging(), &paths.metrics(), 0).unwrap();
    let record = EpochRecord::default();
    let mut second = None;
    let written = first.staging().write_whole(&paths.config(), |file| {
        file.write_all(b"late")?;
        second = Some(open(1));
        Ok(())
    });
    written.unwrap_err();
    assert_eq!(std::fs::read(paths.config()).unwrap(), before);

    // A log that stays open is no longer the file in the folder.
    drop(RunLog::open(second.unwrap().staging(), &paths.metrics(), 0).unwrap());
    log.append(&record).unwrap_err();
    assert_eq!(std::fs::read(paths.metrics()).unwrap(), b"");
    let claims = names(folder.path()).into_iter().filter(|name| name.starts_with(".attempt-7-")).count();
    assert_eq!((claims, names(folder.path()).iter().any(|name| name.starts_with(".fenced-"))), (1, false));
}

#[test]
fn remains_of_killed_processes_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), false).unwrap());
    std::fs::create_dir_all(folder.path().join(".attempt-7-0-0-12.34")).unwrap();
    std::fs::create_dir_all(folder.path().join(".fenced-12.34")).unwrap();
    std::fs::create_dir_all(folder.path().join("checkpoints")).unwrap();
    for name in
        [".attempt-7-0-0-12.34/.enmasse-1-0.tmp", ".enmasse-1-0.tmp", "checkpoints/.enmasse-1-1.tmp", "notes.tmp"]
    {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let run = open(folder.path(), false).unwrap();
    let own = run.staging().folder().file_name().unwrap().to_str().unwrap();
    assert_eq!(names(folder.path()), [own, ".lock", "checkpoints", "notes.tmp"]);
    assert!(names(&run.paths().checkpoints()).is_empty());
}

#[test]
fn files_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let run = open(folder.path(), false).unwrap();
    let paths = run.paths();
    let classes: Vec<String> = (0..11).map(|label| format!("class \"{label}\" é")).collect();
    run.write_class_indices(&classes).unwrap();
    assert_eq!(class_indices(paths), classes);
    run.write_class_indices(&["daisy".to_owned(), "rose".to_owned()]).unwrap();
    let json = std::fs::read_to_string(paths.class_indices()).unwrap();
    assert_eq!(json, "{\n    \"0\": \"daisy\",\n    \"1\": \"rose\"\n}\n");

    run.write_split(&[("a/1.jpg", 0)]).unwrap();
    assert_eq!(paths.read_split::<Vec<(String, usize)>>().unwrap(), [("a/1.jpg".to_owned(), 0)]);

    let config = RunConfig { train: TrainConfig { epochs: 3, ..TrainConfig::default() }, ..RunConfig::default() };
    run.write_config(&config).unwrap();
    // Before the first checkpoint and after it.
    let saved = || RunConfig::from_toml(&paths.saved_config().unwrap().unwrap()).unwrap();
    assert_eq!(saved(), config);
    std::fs::create_dir(paths.checkpoints()).unwrap();
    std::fs::write(paths.last_checkpoint(), "").unwrap();
    assert_eq!(saved(), config);
}

#[test]
fn damaged_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let paths = RunPaths::new(folder.path());
    std::fs::write(paths.split(), "").unwrap();
    let message = paths.read_split::<Vec<String>>().unwrap_err().to_string();
    let malformed = "is malformed: EOF while parsing a value at line 1 column 0";
    assert_eq!(message, format!("{}: {malformed}", paths.split().display()));
}

#[test]
fn the_weights_of_a_run_are_its_best_or_its_last() {
    let folder = tempfile::tempdir().unwrap();
    let paths = RunPaths::new(folder.path());
    let check = |expected: &str| {
        let message = paths.require_weights().unwrap_err().to_string();
        assert_eq!(message, format!("{}: {expected}", folder.path().display()));
    };
    check("is not a run folder: it has no checkpoints/best.safetensors");
    let run = RunFolder::open(paths.clone(), false, &Attempt::default()).unwrap();
    run.write_config(&RunConfig::default()).unwrap();
    check("is a run without a checkpoint: it ended before the first one");
    std::fs::create_dir(paths.checkpoints()).unwrap();
    for path in [paths.last_checkpoint(), paths.best_checkpoint()] {
        std::fs::write(&path, "").unwrap();
        assert_eq!(paths.require_weights().unwrap(), path);
    }
}

#[test]
fn default_folders_do_not_collide() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let now = UNIX_EPOCH + Duration::from_secs(1_767_225_599);
    let first = Attempt::default();
    let locate_for = |model: &str, resume, attempt: &Attempt| {
        let paths = locate_below(&runs, model, resume, None, attempt, now).unwrap();
        (paths.root().file_name().unwrap().to_str().unwrap().to_owned(), paths)
    };
    let locate = |model: &str, resume| locate_for(model, resume, &first);
    assert_eq!(locate("mlp", false).0, "20251231-235959-mlp");
    assert_eq!(locate("mlp", false).0, "20251231-235959-mlp-2");
    assert_eq!(locate("my/model", false).0, "20251231-235959-my-model");
    // Nothing can be resumed yet, so --resume starts fresh.
    let (name, third) = locate("mlp", true);
    assert_eq!(name, "20251231-235959-mlp-3");
    drop(RunFolder::open(third.clone(), true, &Attempt::default()).unwrap());
    std::fs::create_dir(third.checkpoints()).unwrap();
    std::fs::write(third.last_checkpoint(), "").unwrap();
    assert_eq!(locate("mlp", true), (name, third.clone()));

    // A requeued job continues its own run, with --resume or without, and no other run.
    let (name, own) = locate_for("mlp", false, &start_of("slurm/7", 0));
    drop(RunFolder::open(own.clone(), false, &start_of("slurm/7", 0)).unwrap());
    std::fs::create_dir(own.checkpoints()).unwrap();
    std::fs::write(own.last_checkpoint(), "").unwrap();
    let (_, newest) = locate("zoo", false);
    drop(RunFolder::open(newest.clone(), false, &start_of("slurm/8", 0)).unwrap());
    std::fs::create_dir(newest.checkpoints()).unwrap();
    std::fs::write(newest.last_checkpoint(), "").unwrap();
    for resume in [false, true] {
        assert_eq!(locate_for("mlp", resume, &start_of("slurm/7", 1)), (name.clone(), own.clone()));
    }
    assert_eq!(locate_for("mlp", true, &start_of("slurm/9", 1)).1, newest);
    assert_eq!(locate_for("mlp", false, &start_of("slurm/9", 1)).0, "20251231-235959-mlp-5");
    assert_eq!(locate_run(Some(Path::new("x")), "mlp", true, None, &Attempt::default()).unwrap(), RunPaths::new("x"));

    // Regression test: of names, the greatest was taken for the newest.
    let named = RunPaths::new(runs.join("zoo"));
    std::fs::create_dir_all(named.checkpoints()).unwrap();
    std::fs::write(named.last_checkpoint(), "").unwrap();
    for (newest, seconds) in [(&third, 3), (&own, 4), (&named, 5), (&third, 6)] {
        let saved = std::fs::File::options().write(true).open(newest.last_checkpoint()).unwrap();
        saved.set_modified(SystemTime::now() + Duration::from_secs(seconds)).unwrap();
        assert_eq!(locate("mlp", true).1, *newest);
    }
}
