//! A run of two ranks on a terminal that a person stops: its output (Ctrl-S), background output (`stty tostop`), or the
//! job itself (Ctrl-Z). The run goes on, with all of its results.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use crate::common::terminal::Terminal;
use crate::common::{images, program, send, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

const EPOCHS: usize = 20;
/// In seconds. Every standstill here is twice as long.
const HEARTBEAT: i64 = 2;

/// A run of two ranks in a folder, killed if the test ends early.
struct Run {
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Run {
    fn start(start: impl FnOnce(&mut Command) -> Child) -> Self {
        let folder = tempfile::tempdir().unwrap();
        images(folder.path(), 20);
        let fixed =
            ["train", "images", "--model", "mlp", "--size", "8", "--batch", "2", "--threads", "1", "--out", "run"];
        let mut command = program();
        command.args(fixed).args(["--devices", "cpu:2", "--epochs", &EPOCHS.to_string()]);
        command.args(["--heartbeat", &HEARTBEAT.to_string()]).current_dir(folder.path());
        let child = start(&mut command);
        Run { folder, child: Some(child) }
    }

    fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().id() as i32
    }

    /// Waits until this many epochs are recorded.
    fn epochs(&self, count: usize) {
        let records = self.folder.path().join("run/metrics.jsonl");
        // A line that is being written has no end yet.
        let recorded = || fs::read_to_string(&records).map_or(0, |text| text.matches('\n').count());
        until("an epoch", || (recorded() >= count).then_some(()));
    }

    /// Lets time pass for longer than a heartbeat, in which the program must not end.
    fn stands_still(&self) {
        let process = pidfd_open(Pid::from_raw(self.pid()).unwrap(), PidfdFlags::empty()).unwrap();
        let time = Timespec { tv_sec: 2 * HEARTBEAT, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time)).unwrap();
        assert_eq!(ended, 0, "the program has ended");
    }

    fn end(mut self) -> ExitStatus {
        self.child.take().unwrap().wait().unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The run ended well, and each epoch has its line.
#[track_caller]
fn assert_complete(run: Run, seen: &str) {
    let status = run.end();
    assert!(status.success(), "{status}: {seen}");
    for epoch in 1..=EPOCHS {
        let line = format!("epoch {epoch:>2}/{EPOCHS}  loss ");
        assert_eq!(seen.matches(&line).count(), 1, "{line:?} in {seen}");
    }
    assert!(seen.contains("done in ") && !seen.contains("error: ") && !seen.contains("warning: "), "{seen}");
}

#[test]
fn a_terminal_that_is_not_read_holds_nothing_up() {
    let terminal = Terminal::open(80);
    terminal.freeze();
    let run = Run::start(|command| terminal.start(command));
    // All of the training takes place without a reader.
    run.epochs(EPOCHS);
    run.stands_still();
    terminal.thaw();
    let seen = terminal.read();
    assert_complete(run, &seen);
}

#[test]
fn ranks_may_write_to_a_terminal_that_stops_background_jobs() {
    let terminal = Terminal::open(80);
    terminal.stop_background_output();
    let run = Run::start(|command| terminal.start_session(command));
    let seen = terminal.read();
    assert_complete(run, &seen);
}

/// The state of a process, as `ps` shows it.
fn state(process: i32) -> char {
    let stat = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('X')
}

#[test]
fn ctrl_z_stops_all_ranks_and_fg_continues_them() {
    let mut terminal = Terminal::open(80);
    let run = Run::start(|command| terminal.start_session(command));
    run.epochs(1);
    let ranks = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).unwrap();
    let ranks: Vec<i32> = ranks.split_whitespace().map(|rank| rank.parse().unwrap()).collect();
    assert_eq!(ranks.len(), 2);
    terminal.press(0x1a);
    let all = [&ranks[..], &[run.pid()]].concat();
    until("the stop", || all.iter().all(|&process| state(process) == 'T').then_some(()));
    run.stands_still();
    // As a shell's `fg` does.
    send(run.pid(), Signal::CONT);
    let seen = terminal.read();
    assert_complete(run, &seen);
}
