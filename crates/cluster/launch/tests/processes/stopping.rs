//! However a job ends, none of its processes remains.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use test_support::Need;

use crate::DEADLINE;
use crate::parts::{Launcher, hangups_are_ignored, read_lines};

pub const TESTS: &[(&str, fn())] = &[
    ("a_killed_launcher_leaves_no_rank", a_killed_launcher_leaves_no_rank),
    ("a_killed_launcher_leaves_no_grandchild", a_killed_launcher_leaves_no_grandchild),
    ("a_closed_terminal_leaves_nothing", a_closed_terminal_leaves_nothing),
    ("an_interrupt_stops_everybody", an_interrupt_stops_everybody),
    ("a_second_interrupt_kills", a_second_interrupt_kills),
    ("a_scheduler_may_repeat_itself", a_scheduler_may_repeat_itself),
    ("a_job_that_was_asked_to_stop_does_not_restart", a_job_that_was_asked_to_stop_does_not_restart),
    ("what_ends_nothing_is_passed_on", what_ends_nothing_is_passed_on),
    ("what_was_ignored_stays_ignored", what_was_ignored_stays_ignored),
    ("ranks_that_take_too_long_are_named", ranks_that_take_too_long_are_named),
    ("the_stubborn_are_killed", the_stubborn_are_killed),
    ("grandchildren_go_too", grandchildren_go_too),
    ("grandchildren_may_finish", grandchildren_may_finish),
    ("a_full_standard_error_stops_nothing", a_full_standard_error_stops_nothing),
    ("a_launcher_that_nobody_reads_can_be_stopped", a_launcher_that_nobody_reads_can_be_stopped),
];

const SHORT: Duration = Duration::from_millis(50);
/// A grace that never ends within a test.
const ENDLESS: Duration = Duration::from_secs(3600);

const HANG: &str = "echo ready; exec tail -f /dev/null";
/// Waits for the signals that a script handles. A process that the shell has just forked still has the shell's handlers, so every
/// signal but SIGKILL may be lost there. Some shells report a process that is killed.
const WAIT: &str = "exec 2> /dev/null; echo ready; while :; do tail -f /dev/null & wait; kill -9 $!; done";
/// Ends a script that waits, from a handler.
const END: &str = "kill -9 $!; exit 0";
/// Prints that it was asked to stop, and continues.
const STUBBORN: &str = "trap 'echo asked' INT TERM USR1; echo ready; while true; do tail -f /dev/null & wait; done";

fn wait_until_ready(launcher: &Launcher, ranks: usize) {
    (0..ranks).for_each(|_| assert_eq!(launcher.line(), "ready"));
}

fn a_killed_launcher_leaves_no_rank() {
    let mut launcher = Launcher::start(3, "all", ENDLESS, HANG);
    wait_until_ready(&launcher, 3);
    launcher.signal(Signal::KILL);
    assert_eq!(launcher.lines_to_end(), [""; 0]);
    assert_eq!(launcher.process.wait().unwrap().signal(), Some(9));
}

/// The kernel ends the ranks, but not the processes they have started.
fn a_killed_launcher_leaves_no_grandchild() {
    let script = "sh -c \"trap '' HUP INT TERM; echo ready; tail -f /dev/null\" & wait";
    let launcher = Launcher::start(2, "all", ENDLESS, script);
    wait_until_ready(&launcher, 2);
    launcher.signal(Signal::KILL);
    assert_eq!(launcher.lines_to_end(), [""; 0]);
}

/// Ranks receive it like any other request to stop.
fn a_closed_terminal_leaves_nothing() {
    if hangups_are_ignored() {
        test_support::skip(Need::Terminal, "the tests run with SIGHUP ignored");
        return;
    }
    if std::process::Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        test_support::skip(Need::Terminal, "there is no program \"script\"");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("rank");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let ranks = format!("exec > {}; trap 'echo hung up; {END}' HUP; {WAIT}", fifo.display());
    let launcher = std::env::current_exe().unwrap();
    let launcher = format!("exec {} as-launcher 2 all 3600000 \"$RANKS\"", launcher.display());
    let mut terminal = std::process::Command::new("script")
        .args(["--quiet", "--command", &launcher, "/dev/null"])
        .env("RANKS", ranks)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = read_lines(std::fs::File::open(fifo).unwrap());
    let next = || lines.recv_timeout(DEADLINE).unwrap();
    assert_eq!([next(), next()], ["ready", "ready"]);
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    assert_eq!([next(), next()], ["hung up", "hung up"]);
    // The end of the pipe proves that none is left.
    assert_eq!(lines.recv_timeout(DEADLINE), Err(RecvTimeoutError::Disconnected));
}

fn an_interrupt_stops_everybody() {
    for (signal, code, report) in [
        (Signal::INT, 130, "interrupted: all ranks are stopped\n"),
        (Signal::TERM, 143, "terminated: all ranks are stopped\n"),
        (Signal::HUP, 129, "stopped by SIGHUP: all ranks are stopped\n"),
        (Signal::QUIT, 131, "stopped by SIGQUIT: all ranks are stopped\n"),
    ] {
        if signal == Signal::HUP && hangups_are_ignored() {
            println!("an_interrupt_stops_everybody leaves SIGHUP out: the tests run with it ignored");
            continue;
        }
        let launcher = Launcher::start(3, "all", ENDLESS, HANG);
        wait_until_ready(&launcher, 3);
        launcher.signal(signal);
        assert_eq!(launcher.lines_to_end(), [""; 0]);
        assert_eq!(launcher.finish(), (Some(code), report.into()));
    }
}

fn a_second_interrupt_kills() {
    let launcher = Launcher::start(2, "all", ENDLESS, STUBBORN);
    wait_until_ready(&launcher, 2);
    launcher.signal(Signal::INT);
    assert_eq!((launcher.line(), launcher.line()), ("asked".into(), "asked".into()));
    launcher.signal(Signal::INT);
    launcher.lines_to_end();
    assert_eq!(launcher.finish().0, Some(130));
}

/// A second SIGTERM does not take away the ranks' time for saving.
fn a_scheduler_may_repeat_itself() {
    let script = format!("trap 'echo asked' TERM; trap 'echo saved; {END}' USR1; {WAIT}");
    let launcher = Launcher::start(1, "all", ENDLESS, &script);
    wait_until_ready(&launcher, 1);
    launcher.signal(Signal::TERM);
    assert_eq!(launcher.line(), "asked");
    launcher.signal(Signal::TERM);
    launcher.signal(Signal::USR1);
    assert_eq!(launcher.lines_to_end(), ["saved"]);
    assert_eq!(launcher.finish().0, Some(143));
}

/// Regression test: a request to stop was lost while a failure was handled.
fn a_job_that_was_asked_to_stop_does_not_restart() {
    for signal in [Signal::TERM, Signal::INT] {
        // Rank 1 fails, and rank 0 takes its time to stop.
        let script = format!(
            "case $RANK in 0) trap 'echo asked' TERM; trap '' USR2; trap '{END}' USR1;; 1) trap 'kill -9 $!; exit 7' USR2;; esac; {WAIT}"
        );
        let launcher = Launcher::start_restarting(2, 1, &script);
        wait_until_ready(&launcher, 2);
        launcher.signal(Signal::USR2);
        assert_eq!(launcher.line(), "asked");
        launcher.signal(signal);
        launcher.signal(Signal::USR1);
        assert_eq!(launcher.lines_to_end(), [""; 0]);
        assert_eq!(launcher.finish().0, Some(7), "{signal:?}");
    }
}

fn what_ends_nothing_is_passed_on() {
    let script = format!("trap 'echo one' USR1; trap 'echo two; {END}' USR2; {WAIT}");
    let launcher = Launcher::start(2, "all", ENDLESS, &script);
    wait_until_ready(&launcher, 2);
    launcher.signal(Signal::USR1);
    assert_eq!((launcher.line(), launcher.line()), ("one".into(), "one".into()));
    launcher.signal(Signal::USR2);
    assert_eq!(launcher.lines_to_end(), ["two", "two"]);
    assert_eq!(launcher.finish(), (Some(0), String::new()));
}

/// `nohup` starts a program with SIGHUP ignored.
fn what_was_ignored_stays_ignored() {
    let launcher = Launcher::start_ignoring_hangups(1, &format!("trap 'echo one; {END}' USR1; {WAIT}"));
    wait_until_ready(&launcher, 1);
    launcher.signal(Signal::HUP);
    launcher.signal(Signal::USR1);
    assert_eq!(launcher.lines_to_end(), ["one"]);
    assert_eq!(launcher.finish().0, Some(0));
    // A Ctrl-C that reaches the launcher is meant for it, and ranks have the default action.
    let launcher = Launcher::start_ignoring_hangups(1, HANG);
    wait_until_ready(&launcher, 1);
    launcher.signal(Signal::INT);
    assert_eq!(launcher.lines_to_end(), [""; 0]);
    assert_eq!(launcher.finish().0, Some(130));
}

/// Regression test: the report was that of ranks that had ended by themselves, which may have saved.
fn ranks_that_take_too_long_are_named() {
    let launcher = Launcher::start(1, "all", SHORT, &format!("trap '' TERM; {WAIT}"));
    wait_until_ready(&launcher, 1);
    launcher.signal(Signal::TERM);
    assert_eq!(launcher.lines_to_end(), [""; 0]);
    let report = "terminated: all ranks are stopped; rank 0 had not ended after 0.05 s and was killed\n";
    assert_eq!(launcher.finish(), (Some(143), report.into()));
}

fn the_stubborn_are_killed() {
    // Rank 1 fails once rank 0 has set its trap, which rank 0 announces through the file system.
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("trapped");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let fifo = fifo.display();
    let script = format!(
        "test $RANK = 1 && {{ read line < {fifo}; exit 3; }}; trap '' TERM; echo set > {fifo}; tail -f /dev/null"
    );
    let launcher = Launcher::start(2, "all", SHORT, &script);
    launcher.lines_to_end();
    let (code, stderr) = launcher.finish();
    assert_eq!(code, Some(3));
    assert!(stderr.starts_with("rank 1 on host ") && stderr.ends_with(" exited with code 3\n"), "{stderr}");
}

fn grandchildren_go_too() {
    // A process that ignores SIGTERM, left behind by a rank that succeeds, fails, or is stopped.
    let check = |rank_ends: &str, expected: i32| {
        let script = format!("sh -c \"trap '' TERM; echo ready; tail -f /dev/null\" & {rank_ends}");
        let launcher = Launcher::start(2, "all", SHORT, &script);
        if rank_ends == "wait" {
            wait_until_ready(&launcher, 2);
            launcher.signal(Signal::INT);
        }
        launcher.lines_to_end();
        assert_eq!(launcher.finish().0, Some(expected), "{rank_ends}");
    };
    check("exit 0", 0);
    check("exit 3", 3);
    check("wait", 130);
}

/// Helpers that clean up after a rank, such as Python's resource tracker, ignore SIGTERM and end by themselves.
fn grandchildren_may_finish() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("rank");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let fifo = fifo.display();
    // The helper sees the rank's end as the end of a pipe, then cleans up.
    let script = format!("sh -c \"trap '' TERM; cat < {fifo}; echo cleaned\" & exec 3> {fifo}; kill -KILL $$");
    let launcher = Launcher::start(1, "all", ENDLESS, &script);
    assert_eq!(launcher.lines_to_end(), ["cleaned"]);
    assert_eq!(launcher.finish().0, Some(137));
}

/// A pipe that accepts no more until it is read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

fn wait_for_the_end_of(pidfd: &OwnedFd) {
    let deadline = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&deadline)), Ok(1));
}

/// Its ranks are gone, and their last lines find no room.
fn a_launcher_that_nobody_reads_can_be_stopped() {
    let (_reader, writer) = full_pipe();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["as-launcher", "1", "all", "1000", "echo last words; echo $$ >&2", "/dev/null", "0", "1", "0"]);
    let mut launcher = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let pid = |number: &str| Pid::from_raw(number.parse().unwrap()).unwrap();
    let lines = read_lines(launcher.stderr.take().unwrap());
    let rank = pidfd_open(pid(&lines.recv_timeout(DEADLINE).unwrap()), PidfdFlags::empty()).unwrap();
    wait_for_the_end_of(&rank);
    let own = pidfd_open(pid(&launcher.id().to_string()), PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&own, Signal::TERM).unwrap();
    wait_for_the_end_of(&own);
    assert_eq!(launcher.wait().unwrap().code(), Some(143));
}

fn a_full_standard_error_stops_nothing() {
    // The launcher's standard error is not read.
    let (mut reader, writer) = full_pipe();
    let script = "test $RANK = 0 && echo message >&2; echo $$; exec tail -f /dev/null";
    let mut launcher = Launcher::start_with(writer.into(), 2, "all", SHORT, script);
    let pids = [launcher.line(), launcher.line()].map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
    let pidfds = pids.map(|pid| pidfd_open(pid, PidfdFlags::empty()).unwrap());
    pidfd_send_signal(&pidfds[0], Signal::KILL).unwrap();
    // The job is over before the output is read.
    pidfds.iter().for_each(wait_for_the_end_of);
    let mut stderr = String::new();
    reader.read_to_string(&mut stderr).unwrap();
    assert_eq!(launcher.process.wait().unwrap().code(), Some(137));
    let report = stderr.trim_start_matches('x');
    assert!(report.starts_with("message\nrank ") && report.contains("(SIGKILL)"), "{report}");
}
