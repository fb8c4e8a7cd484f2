//! A live rank stalls: the others wait until a deadline, and the error names its activity. A run that stands still as a
//! whole is nobody's fault, and goes on.

use std::fs;
use std::time::Duration;

use crate::common::lease::Lease;
use crate::common::runs::{Folder, arguments, assert_same};
use crate::common::{Running, enmasse, exists, failed, files, images, program, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

/// A leased file acts like one on a disk that does not answer.
#[test]
fn a_rank_that_waits_for_its_disk_is_named() {
    let temporary = tempfile::tempdir().unwrap();
    let (data, run) = (temporary.path().join("data"), temporary.path().join("run"));
    fs::create_dir(&data).unwrap();
    for part in ["train", "val"] {
        fs::rename(images(temporary.path(), 8), data.join(part)).unwrap();
    }
    // Longer than a heartbeat of five seconds, so that the late rank has reported its activity.
    let others = ["--epochs", "1000000", "--devices", "cpu:2", "--timeout", "12"];
    let mut running = Running::start(program().args(arguments(&data, &run, &others)));
    let line = running.line();
    assert!(line.contains("\"epoch\":0"), "{line}");
    let ranks = running.children();
    let _lease = Lease::replace(&files(&data.join("train"))[0]);
    let ended = running.finish();

    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ranks.iter().all(|&rank| !exists(rank)), "ranks are left");
    let says = |begin: &str, parts: &[&str]| {
        let mut lines = ended.stderr.lines();
        let is_it = |line: &str| line.starts_with(begin) && parts.iter().all(|part| line.contains(part));
        assert!(lines.any(is_it), "{begin} {parts:?}: {}", ended.stderr);
    };
    let waiting = ["kept the others waiting during all_reduce(sum) of", "it had not joined the operation after "];
    says("warning: rank ", &waiting);
    says("error: rank ", &[&waiting[..], &[" s; it has been reading a batch for"]].concat());

    let page = enmasse(&["doctor", run.to_str().unwrap()]);
    let page = page.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["kept the others waiting during", "was reading a batch for", "was in all_reduce(sum) of"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

/// Where no rank waits for another, a run waited for its disk for ever.
#[test]
fn a_disk_that_answers_no_rank_ends_the_run() {
    let temporary = tempfile::tempdir().unwrap();
    let (data, run) = (temporary.path().join("data"), temporary.path().join("run"));
    fs::create_dir(&data).unwrap();
    for part in ["train", "val"] {
        fs::rename(images(temporary.path(), 8), data.join(part)).unwrap();
    }
    let one = ["--devices", "cpu:1", "--timeout", "2"];
    let two = ["--devices", "cpu:2", "--timeout", "2"];
    enmasse(&arguments(&data, &run, &["--epochs", "1", "--devices", "cpu:1"])).well();
    let check = |part: &str, arguments: &[String], seconds: &str| {
        let part = data.join(part);
        let _leases: Vec<_> = files(&part).iter().map(|file| Lease::replace(file)).collect();
        let part = part.display().to_string();
        let limit = format!("could be read for {seconds} s; check its disk or file server, or raise the timeout");
        failed(&enmasse(arguments), 1, &[&part, &limit]);
    };
    check("train", &arguments(&data, &run.with_extension("one"), &one), "2");
    check("train", &arguments(&data, &run.with_extension("two"), &two), "4");
    let eval = [&["eval", run.to_str().unwrap(), data.to_str().unwrap()][..], &one].concat();
    check("val", &eval.into_iter().map(str::to_owned).collect::<Vec<_>>(), "2");
}

/// Like `docker pause` and `scontrol suspend`, for longer than a heartbeat.
#[test]
fn a_run_that_is_frozen_as_a_whole_goes_on() {
    const HEARTBEAT: Duration = Duration::from_secs(2);
    let folder = Folder::new("30");
    let others = ["--devices", "cpu:2", "--heartbeat", "2"];
    let whole = folder.path("whole");
    enmasse(&folder.arguments(&whole, &others)).well();

    let run = folder.path("frozen");
    let mut running = Running::start(program().args(folder.arguments(&run, &others)));
    let line = running.line();
    assert!(line.contains("\"epoch\":0"), "{line}");
    let all = [&[running.pid()][..], &running.children()].concat();
    all.iter().for_each(|&process| send(process, Signal::STOP));
    let program = pidfd_open(Pid::from_raw(running.pid()).unwrap(), PidfdFlags::empty()).unwrap();
    let freeze = Timespec { tv_sec: 2 * HEARTBEAT.as_secs() as i64, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&program, PollFlags::IN)], Some(&freeze)).unwrap();
    assert_eq!(ended, 0, "a frozen program has ended");
    all.iter().for_each(|&process| send(process, Signal::CONT));
    let ended = running.finish().well();
    assert!(!ended.stderr.contains("warning: "), "{}", ended.stderr);
    assert_same(&whole, &run);
}
