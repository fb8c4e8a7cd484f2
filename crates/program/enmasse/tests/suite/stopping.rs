//! A run that is told to stop: it saves at the end of a step on all ranks, exits with its own code, and later resumes
//! with the same bits.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::lease::Lease;
use crate::common::runs::{Folder, assert_same};
use crate::common::{Ended, Running, assert_whole, enmasse, exists, finish, plain_environment, program, send, until};
use rustix::process::Signal;

/// Enough epochs that a signal after the first one comes in time.
const EPOCHS: &str = "60";

/// The receiver of the signal.
#[derive(Clone, Copy, Debug)]
enum To {
    /// The process that was started.
    Program,
    /// One of its ranks.
    Rank(usize),
    /// All of them, as when a scheduler stops a whole job.
    Everybody,
}

impl Folder {
    /// Starts a run, sends a signal once its first epoch is done, and waits for its end.
    fn stop(&self, command: &mut Command, to: To, signal: Signal) -> Ended {
        let mut running = Running::start(command);
        let line = running.line();
        assert!(line.contains("\"epoch\":0"), "{line}");
        let ranks = running.children();
        match to {
            To::Program => running.signal(signal),
            To::Rank(rank) => send(ranks[rank], signal),
            To::Everybody => {
                running.signal(signal);
                ranks.iter().for_each(|&rank| send(rank, signal));
            }
        }
        let ended = running.finish();
        assert!(ranks.iter().all(|&rank| !exists(rank)), "ranks are left");
        ended
    }
}

/// The run prints that it stopped, and nothing else besides epochs.
#[track_caller]
fn assert_stopped(ended: &Ended, code: i32, run: &Path) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(!ended.stderr.contains("error: "), "{}", ended.stderr);
    let last = ended.json().pop().unwrap();
    assert_eq!((&last["event"], last["run"].as_str()), (&"stopped".into(), run.to_str()), "{last}");
    assert_whole(run);
}

#[test]
fn terminated_runs_resume_with_the_same_bits() {
    let folder = Folder::new(EPOCHS);
    let check = |name: &str, others: &[&str], receivers: &[To]| {
        let whole = folder.path(&format!("{name}-whole"));
        enmasse(&folder.arguments(&whole, others)).well();
        for &to in receivers {
            let run = folder.path(&format!("{name}-{to:?}"));
            let words = folder.arguments(&run, others);
            let stopped = folder.stop(program().args(&words), to, Signal::TERM);
            assert_stopped(&stopped, 143, &run);
            // Launched ranks take a repetition for the scheduler's.
            let is_launched = name == "processes" || name == "others";
            assert_eq!(stopped.stderr.contains("send it again to end at once"), !is_launched, "{}", stopped.stderr);
            let resumed = enmasse(&[&words[..], &["--resume".to_owned()]].concat()).well();
            assert!(resumed.stderr.contains("resume:   epoch"), "{}", resumed.stderr);
            assert_same(&whole, &run);
        }
    };
    check("alone", &["--devices", "cpu:1"], &[To::Program]);
    check("threads", &["--devices", "cpu:3", "--ranks", "thread"], &[To::Program]);
    check("processes", &["--devices", "cpu:2"], &[To::Program, To::Rank(1)]);
    if test_support::time() {
        check("others", &["--devices", "cpu:2"], &[To::Rank(0), To::Everybody]);
    }
}

/// The command that a stopped run prints, as this program's.
fn printed_command(ended: &Ended) -> Command {
    let line = ended.stderr.lines().find(|line| line.starts_with("stopped in epoch ")).unwrap();
    let (_, words) = line.split_once("; continue with: enmasse ").unwrap();
    let mut command = Command::new("sh");
    plain_environment(&mut command);
    command.arg("-c").arg(format!("exec {} {words}", env!("CARGO_BIN_EXE_enmasse")));
    command
}

#[test]
fn an_interrupted_run_is_saved_and_prints_the_command_that_continues_it() {
    let folder = Folder::new(EPOCHS);
    let check = |name: &str, start: &[&str], others: &[&str], receivers: &[To]| {
        let whole = folder.path(&format!("{name}-whole"));
        enmasse(&folder.arguments(&whole, others)).well();
        for &to in receivers {
            let run = folder.path(&format!("{name}-{to:?}"));
            let mut command = program();
            if !start.is_empty() {
                command.args(start).arg(env!("CARGO_BIN_EXE_enmasse"));
            }
            let others = if start.is_empty() { others } else { &[] };
            command.args(folder.arguments(&run, others));
            let ended = folder.stop(&mut command, to, Signal::INT);
            assert_stopped(&ended, 130, &run);
            let told = ended.stderr.matches("interrupted: saving at the end of this step").count();
            assert_eq!(told, usize::from(!matches!(to, To::Rank(1..))), "{to:?}: {}", ended.stderr);
            finish(&mut printed_command(&ended)).well();
            assert_same(&whole, &run);
        }
    };
    let launch = ["launch", "-n", "2"];
    check("alone", &[], &["--devices", "cpu:1"], &[To::Program]);
    check("processes", &[], &["--devices", "cpu:2"], &[To::Rank(1), To::Everybody]);
    check("launched", &launch, &["--devices", "cpu:2"], &[To::Program]);
    if test_support::time() {
        check("threads", &[], &["--devices", "cpu:2", "--ranks", "thread"], &[To::Program]);
        check("from-outside", &[], &["--devices", "cpu:2"], &[To::Program]);
        check("launched-all", &launch, &["--devices", "cpu:2"], &[To::Everybody]);
    }
}

/// Before the first step there is nothing to save, and no folder is left.
#[test]
fn a_run_that_is_stopped_before_it_begins_leaves_no_folder() {
    let folder = Folder::new("1");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        // Rank 1 does not come.
        let runs = folder.path(&format!("ranks-{code}"));
        fs::create_dir(&runs).unwrap();
        let mut command = program();
        command.args(folder.arguments(&runs.join("run"), &[])).env("RANK", "0").env("WORLD_SIZE", "2");
        let port = test_support::free_port();
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        let running = Running::start(&mut command);
        // It waits for the other rank.
        until("a token", || runs.join("run/.token").exists().then_some(()));
        running.signal(signal);
        let ended = running.finish();
        assert_eq!((ended.code, fs::read_dir(&runs).unwrap().count()), (Some(code), 0), "{ended:?}");
    }
}

/// While it reads an image that does not arrive, no step ends.
#[test]
fn asked_twice_it_ends_at_once() {
    let folder = Folder::new(EPOCHS);
    // An epoch is one step.
    let arguments = folder.arguments(&folder.path("run"), &["--devices", "cpu:1", "--batch", "48"]);
    let mut command = program();
    let mut child = command
        .args(arguments)
        .args(["--epochs", "1000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("epoch ")));
    let lease = Lease::replace(&folder.data.join("red/000.png"));
    until("a reader", || lease.is_awaited().then_some(()));
    send(child.id() as i32, Signal::TERM);
    let told = lines.find(|line| !line.starts_with("epoch "));
    assert_eq!(told.as_deref(), Some("terminated: saving at the end of this step; send it again to end at once"));
    send(child.id() as i32, Signal::TERM);
    assert_eq!((lines.next().as_deref(), lines.next()), (Some("terminated"), None));
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// A folder with a `scontrol` that writes its arguments to a file, and runs `script`.
fn scontrol(folder: &Folder, name: &str, script: &str) -> (PathBuf, PathBuf) {
    let bin = folder.path(&format!("{name}-bin"));
    let asked = folder.path(&format!("{name}-asked"));
    fs::create_dir(&bin).unwrap();
    let file = bin.join("scontrol");
    fs::write(&file, format!("#!/bin/sh\necho \"$@\" >> '{}'\n{script}\n", asked.display())).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    (bin, asked)
}

/// The program in the second element of a job array.
fn in_slurm(bin: &Path) -> Command {
    let mut command = program();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("SLURM_JOB_ID", "71");
    command.env("SLURM_ARRAY_JOB_ID", "70").env("SLURM_ARRAY_TASK_ID", "2");
    command
}

#[test]
fn a_warned_run_is_saved_and_requeued_once() {
    let folder = Folder::new(EPOCHS);
    let check = |name: &str, others: &[&str], to: To, signal: Signal| {
        // Slurm stops a job that it requeues.
        let (bin, asked) = scontrol(&folder, name, "kill -TERM $PPID");
        let whole = folder.path(&format!("{name}-whole"));
        let run = folder.path(name);
        enmasse(&folder.arguments(&whole, others)).well();
        let words = folder.arguments(&run, others);
        assert_stopped(&folder.stop(in_slurm(&bin).args(&words), to, signal), 75, &run);
        assert_eq!(fs::read_to_string(&asked).unwrap(), "requeue 70_2\n");
        enmasse(&[&words[..], &["--resume".to_owned()]].concat()).well();
        assert_same(&whole, &run);
    };
    check("alone", &["--devices", "cpu:1"], To::Program, Signal::USR1);
    check("processes", &["--devices", "cpu:2", "--requeue-signal", "USR2"], To::Rank(1), Signal::USR2);
    check("passed-on", &["--devices", "cpu:2"], To::Program, Signal::USR1);
}

#[test]
fn a_run_that_cannot_be_requeued_says_so() {
    let folder = Folder::new(EPOCHS);
    let check = |name: &str, command: &mut Command, devices: &str, to: To, expected: Result<(), &str>| {
        let run = folder.path(name);
        let words = folder.arguments(&run, &["--devices", devices]);
        let ended = folder.stop(command.args(words), to, Signal::USR1);
        assert!(run.join("checkpoints/last.safetensors").exists());
        match expected {
            Ok(()) => assert_stopped(&ended, 75, &run),
            Err(reason) => {
                let errors: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
                assert_eq!((ended.code, errors.len()), (Some(1), 1), "{ended:?}");
                assert!(errors[0].contains(reason) && errors[0].contains("--resume"), "{reason}: {errors:?}");
            }
        }
    };
    let (bin, _) = scontrol(&folder, "refusing", "echo 'Invalid job id specified' >&2; exit 1");
    let reason = "saved, but job 70_2 is not requeued: scontrol requeue: Invalid job id specified (exit status: 1)";
    check("refused", &mut in_slurm(&bin), "cpu:1", To::Program, Err(reason));
    check("refused-ranks", &mut in_slurm(&bin), "cpu:2", To::Rank(0), Err(reason));
    let mut lacking = in_slurm(&bin);
    lacking.env("PATH", folder.path("empty"));
    check("lacking", &mut lacking, "cpu:1", To::Program, Err("scontrol is not installed"));
    // Outside Slurm the exit code asks the launcher for a restart.
    check("nobody", &mut program(), "cpu:1", To::Program, Ok(()));
}

#[test]
fn a_signal_without_meaning_has_its_default_action() {
    let folder = Folder::new(EPOCHS);
    let run = folder.path("run");
    let words = folder.arguments(&run, &["--devices", "cpu:1", "--requeue-signal", "none"]);
    let ended = folder.stop(program().args(words), To::Program, Signal::USR1);
    assert_eq!(ended.code, None, "{ended:?}");
}
