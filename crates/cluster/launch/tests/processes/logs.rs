//! Where output goes, and the files that keep it.

use std::fs;
use std::path::{Path, PathBuf};

use enmasse_launch::{Job, Logs, Outcome, launch_telling};

use crate::parts::Launcher;

pub const TESTS: &[(&str, fn())] = &[
    ("streams_go_where_they_should", streams_go_where_they_should),
    ("lines_are_marked_whole", lines_are_marked_whole),
    ("error_files_name_the_cause", error_files_name_the_cause),
    ("attempts_have_their_own_folders", attempts_have_their_own_folders),
    ("folders_that_nobody_asked_for_go", folders_that_nobody_asked_for_go),
];

/// The only folder in a folder.
fn only(folder: &Path) -> PathBuf {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

fn streams_go_where_they_should() {
    /// Files of both ranks (standard output and error, `-` for none), then the output shown on each stream.
    type Expected<'a> = ([[&'a str; 2]; 2], &'a [&'a str], &'a [&'a str]);
    let check = |redirects: &str, tee: &str, shown: &str, (files, stdout, stderr): Expected| {
        let case = format!("-r {redirects} -t {tee} --local-ranks-filter {shown}");
        let folder = tempfile::tempdir().unwrap();
        let launcher =
            Launcher::start_logging(folder.path(), "echo out $RANK; echo err $RANK >&2", redirects, tee, shown);
        assert_eq!(launcher.lines_to_end(), stdout, "{case}");
        let (code, text) = launcher.finish();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!((code, lines.as_slice()), (Some(0), stderr), "{case}");
        let attempt = only(folder.path()).join("attempt_0");
        for (rank, names) in files.iter().enumerate() {
            for (expected, name) in names.iter().zip(["stdout.log", "stderr.log"]) {
                let path = attempt.join(rank.to_string()).join(name);
                let found = fs::read_to_string(&path).unwrap_or_else(|_| "-".to_owned());
                assert_eq!(found.trim_end(), *expected, "{case}: {}", path.display());
            }
        }
        let filtered = fs::read_to_string(attempt.join("filtered_stdout.log")).unwrap();
        let expected = stdout.iter().find(|line| **line == "[default1]:out 1").map_or("", |_| "[default1]:out 1\n");
        assert_eq!(filtered, expected, "{case}");
    };
    let none = [["-", "-"], ["-", "-"]];
    let both = [["out 0", "err 0"], ["out 1", "err 1"]];
    check("0", "0", "0,1", (none, &["out 0", "out 1"], &["err 0", "err 1"]));
    check("3", "0", "0,1", (both, &[], &[]));
    check("1", "0", "0,1", ([["out 0", "-"], ["out 1", "-"]], &[], &["err 0", "err 1"]));
    check("0:2", "0", "0,1", ([["-", "err 0"], ["-", "-"]], &["out 0", "out 1"], &["err 1"]));
    check(
        "0",
        "3",
        "0,1",
        (both, &["[default0]:out 0", "[default1]:out 1"], &["[default0]:err 0", "[default1]:err 1"]),
    );
    check("0", "1:1", "0,1", ([["-", "-"], ["out 1", "-"]], &["[default1]:out 1", "out 0"], &["err 0", "err 1"]));
    // Files are kept even for a rank that is not shown.
    check("0", "0", "1", (none, &["out 1"], &["err 1"]));
    check("0", "3", "0", (both, &["[default0]:out 0"], &["[default0]:err 0"]));
}

/// Lines of two ranks do not mix, however they are written. Lines that a progress bar overwrites are marked too.
fn lines_are_marked_whole() {
    let folder = tempfile::tempdir().unwrap();
    let script = "for i in 1 2 3 4 5 6 7 8; do printf a; printf 'b\\n'; done; printf '1%%\\r2%%\\r\\nend'";
    let launcher = Launcher::start_logging(folder.path(), script, "0", "1", "0,1");
    let lines = launcher.lines_to_end();
    assert_eq!(lines.iter().filter(|line| *line == "[default0]:ab").count(), 8, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "[default1]:ab").count(), 8, "{lines:?}");
    let rest: String = lines.iter().filter(|line| !line.ends_with("ab")).map(String::as_str).collect();
    assert_eq!(rest.matches("%").count(), 4, "{rest}");
    assert_eq!(rest.matches("[default").count(), rest.matches('%').count() + 2, "{rest}");
    let log = fs::read(only(folder.path()).join("attempt_0/0/stdout.log")).unwrap();
    assert_eq!(log, [&b"ab\n".repeat(8)[..], b"1%\r2%\r\nend"].concat());
}

fn error_files_name_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let mut logs = Logs::create(Some(folder.path()), "run").unwrap();
    logs.redirects = enmasse_launch::Selection::parse("3").unwrap();
    // Rank 1 writes why it fails. Rank 0 loses it, writes its file later, and ends first.
    let script = r#"
        record() { printf '{"message": {"message": "%s", "extraInfo": {"py_callstack": "at 7"}}}' "$1" \
            > "$TORCHELASTIC_ERROR_FILE"; }
        if test $RANK = 1; then record 'ValueError: no'; touch -d "1 minute ago" "$TORCHELASTIC_ERROR_FILE"; echo trace >&2
            echo > "$FIFO"; exec tail -f /dev/null; fi
        read line < "$FIFO"; record 'lost rank 1'; exit 5"#;
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let job = Job::new("sh", 2).args(["-c", script]).variable("FIFO", fifo);
    let job = Job { logs: logs.clone(), ..job };
    let Outcome::Failed(failure) = launch_telling(&job, |_, _| {}).unwrap() else { panic!("no failure") };
    let cause = failure.cause.as_ref().unwrap();
    assert_eq!((failure.rank, cause.rank, cause.message.as_str()), (Some(1), Some(1), "ValueError: no"));
    assert_eq!((&failure.stderr[..], &failure.traceback[..]), (&["trace".to_owned()][..], &["at 7".to_owned()][..]));
    assert_eq!(failure.logs.as_deref(), Some(&*logs.folder().unwrap().join("attempt_0/1")));
}

fn attempts_have_their_own_folders() {
    let folder = tempfile::tempdir().unwrap();
    let mut logs = Logs::create(Some(folder.path()), "a/b").unwrap();
    logs.redirects = enmasse_launch::Selection::parse("1").unwrap();
    let script = "echo $TORCHELASTIC_RESTART_COUNT; test $TORCHELASTIC_RESTART_COUNT = 1";
    let job = Job { logs, max_restarts: 3, ..Job::new("sh", 1).args(["-c", script]) };
    assert_eq!(launch_telling(&job, |_, _| {}).unwrap(), Outcome::Done);
    let run = only(folder.path());
    assert!(run.file_name().unwrap().to_str().unwrap().starts_with("a_b_"), "{}", run.display());
    for attempt in ["0", "1"] {
        let log = fs::read_to_string(run.join(format!("attempt_{attempt}/0/stdout.log"))).unwrap();
        assert_eq!(log.trim_end(), attempt);
    }
    assert!(!run.join("attempt_2").exists());
}

fn folders_that_nobody_asked_for_go() {
    let check = |redirects: &str, stays: bool| {
        let mut logs = Logs::create(None, "run").unwrap();
        logs.redirects = enmasse_launch::Selection::parse(redirects).unwrap();
        let folder = logs.folder().unwrap().parent().unwrap().to_owned();
        let script = "test -d $(dirname $TORCHELASTIC_ERROR_FILE)";
        let job = Job { logs: logs.clone(), ..Job::new("sh", 1).args(["-c", script]) };
        assert_eq!(launch_telling(&job, |_, _| {}).unwrap(), Outcome::Done);
        logs.discard_unless_asked_for();
        assert_eq!(folder.exists(), stays, "-r {redirects}");
        if stays {
            fs::remove_dir_all(folder).unwrap();
        }
    };
    check("0", false);
    check("1", true);
    assert_eq!(Logs::create(Some(Path::new("/dev/null")), "run").unwrap().folder(), None);
    let error = Logs::create(Some(Path::new("/dev/null/x")), "run").unwrap_err().to_string();
    assert!(error.starts_with("cannot make /dev/null/x: ") && error.ends_with("name another folder for log files"));
}
