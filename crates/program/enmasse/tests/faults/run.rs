//! Runs: their arguments, how one is started under an injector and ends, and what an undisturbed one gives.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use enmasse_train::Checkpoint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::Value;
use test_support::Need;

use crate::fault::{Act, Calls, Fault};
use crate::held_calls;
use crate::injection::{HEARTBEAT, Injector, send};

/// Many times longer than any run here; turns a hang into a failure.
const DEADLINE: Duration = Duration::from_secs(300);

/// For all processes to end after their launcher has.
const SOON: Duration = Duration::from_secs(60);

/// Images of each of the three classes, of which a fifth validates.
const EACH: usize = 20;

/// A variable that all processes of one job have, and no others.
const MARK: &str = "FAULTS_JOB";

/// Ranks of most runs that meet a fault.
const RANKS: usize = 2;

/// How a disturbed run is started.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    Fresh,
    /// Where an earlier start has stopped.
    Resumed,
    /// By a launcher that starts the ranks once more when one fails.
    Restarting,
}

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Processes of the job that had not ended.
    pub left: Vec<i32>,
    /// The call at which the fault happened.
    pub hit: Option<String>,
    pub calls: Calls,
    pub writes: Vec<(&'static str, PathBuf)>,
}

impl Ended {
    /// The lines that state an error.
    pub fn errors(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("error: ")).collect()
    }

    /// Its code and its last lines, for messages.
    pub fn told(&self) -> String {
        let mut lines: Vec<&str> = self.stderr.lines().rev().take(4).collect();
        lines.reverse();
        format!("code {:?}, signal {:?}\n    {}", self.code, self.signal, lines.join("\n    "))
    }

    /// The loss of each step that it printed, digit by digit.
    pub fn losses(&self) -> BTreeMap<u64, String> {
        self.told_steps().collect()
    }

    /// The steps that it printed.
    pub fn steps(&self) -> Vec<u64> {
        self.told_steps().map(|(step, _)| step).collect()
    }

    fn told_steps(&self) -> impl Iterator<Item = (u64, String)> {
        let events = self.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let steps = events.filter(|event| event["event"] == "step");
        steps.filter_map(|event| Some((event["step"].as_u64()?, event["loss"].to_string())))
    }
}

/// What a run leaves, as far as it is the same for all runs.
#[derive(Default, PartialEq)]
pub struct State {
    /// The epochs' records without times.
    pub epochs: Vec<String>,
    pub last: Vec<(String, Vec<u32>)>,
    pub best: Vec<(String, Vec<u32>)>,
}

impl State {
    pub fn of(run: &Path) -> Result<Self, String> {
        let records = fs::read_to_string(run.join("metrics.jsonl")).map_err(|error| error.to_string())?;
        let epoch = |line: &str| {
            let record: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line:?}"))?;
            let keys = ["epoch", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "learning_rate"];
            Ok(keys.map(|key| record[key].to_string()).join(" "))
        };
        Ok(State {
            epochs: records.lines().map(epoch).collect::<Result<_, String>>()?,
            last: tensors(&run.join("checkpoints/last.safetensors"))?,
            best: tensors(&run.join("checkpoints/best.safetensors"))?,
        })
    }
}

/// The tensors of a whole checkpoint, including optimiser state, as bits.
fn tensors(path: &Path) -> Result<Vec<(String, Vec<u32>)>, String> {
    let checkpoint = Checkpoint::load(path).map_err(|error| error.to_string())?;
    let bits =
        |tensor: enmasse_train::NamedTensor| (tensor.name, tensor.values.into_iter().map(f32::to_bits).collect());
    Ok(checkpoint.tensors.into_iter().map(bits).collect())
}

/// Images, and the run without a fault to which all others are compared.
pub struct Reference {
    folder: tempfile::TempDir,
    /// Ranks of a run that meets a fault, and shards of all.
    ranks: usize,
    pub losses: BTreeMap<u64, String>,
    pub state: State,
    /// The calls of a run over shared memory, and of one over TCP.
    pub calls: [Calls; 2],
    /// The calls of such a run on files of the run folder, in order.
    pub writes: Vec<(&'static str, PathBuf)>,
    next: AtomicU64,
}

impl Reference {
    /// `None` if the kernel holds no calls for other processes; the test is then in the table.
    pub fn open() -> Option<Self> {
        Self::of_ranks(RANKS)
    }

    /// The same, of runs with this number of ranks.
    pub fn of_ranks(ranks: usize) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        write_images(&folder.path().join("images"));
        let calls = [Calls::new(), Calls::new()];
        let losses = BTreeMap::new();
        let next = AtomicU64::new(0);
        let mut reference = Reference { folder, ranks, losses, state: State::default(), calls, writes: vec![], next };
        for tcp in [false, true] {
            let run = reference.new_run();
            let ended = match reference.start(&run, reference.train(ranks, &run, &[]), tcp, None) {
                Ok(ended) => ended,
                Err(error) => {
                    test_support::skip(Need::HeldCalls, error);
                    return None;
                }
            };
            assert_eq!((ended.code, &ended.left[..]), (Some(0), &[][..]), "{ended:?}");
            let state = State::of(&run).expect("a whole run");
            let losses = ended.losses();
            if tcp {
                assert!(state == reference.state && losses == reference.losses, "shared memory and TCP differ");
            }
            (reference.losses, reference.state) = (losses, state);
            (reference.calls[usize::from(tcp)], reference.writes) = (ended.calls, ended.writes);
        }
        Some(reference)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    /// A folder for a new run.
    pub fn new_run(&self) -> PathBuf {
        self.folder.path().join(format!("run-{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }

    /// Trains for three epochs of twelve steps each, with a checkpoint after every fifth step.
    fn train(&self, ranks: usize, run: &Path, others: &[&str]) -> Command {
        let mut command = self.train_by(program(), run);
        command.args(["--devices", &format!("cpu:{ranks}")]).args(others);
        command
    }

    /// The same, started by a command that runs its arguments as ranks.
    fn train_by(&self, mut command: Command, run: &Path) -> Command {
        command.arg("train").arg(self.data()).arg("--out").arg(run);
        command.args(["--model", "mlp", "--size", "8", "--batch", "2", "--lr", "0.01", "--epochs", "3"]);
        command.args(["--shards", &self.ranks.to_string()]);
        command.args(["--threads", "1", "--loader-threads", "1", "--save-every", "5", "--log-every", "1", "--json"]);
        command.args(["--on-bad-sample", "error"]);
        command
    }

    /// Starts a run and lets a fault happen.
    pub fn disturb(&self, run: &Path, fault: Fault, tcp: bool, how: Start) -> Ended {
        let mut command = match how {
            Start::Fresh => self.train(self.ranks, run, &[]),
            Start::Resumed => self.train(self.ranks, run, &["--resume"]),
            Start::Restarting => {
                let mut launch = program();
                let ranks = self.ranks.to_string();
                launch.args(["launch", "-n", &ranks, "--max-restarts", "1", env!("CARGO_BIN_EXE_enmasse")]);
                launch = self.train_by(launch, run);
                launch.arg("--resume");
                launch
            }
        };
        if matches!(fault.act, Act::Hang | Act::Freeze) {
            command.args(["--heartbeat", &HEARTBEAT.to_string()]);
        }
        self.start(run, command, tcp, Some(fault)).expect("held calls, as before")
    }

    /// Goes on with a run, without a fault.
    pub fn resume(&self, run: &Path, ranks: usize) -> Ended {
        let command = self.train(ranks, run, &["--resume"]);
        self.start(run, command, false, None).expect("held calls, as before")
    }

    /// Goes on with a run by the command that it would print, which names no settings.
    pub fn resume_bare(&self, run: &Path) -> Ended {
        let mut command = program();
        command.args(["train", "--resume", "--json", "--log-every", "1", "--out"]).arg(run);
        self.start(run, command, false, None).expect("held calls, as before")
    }

    fn start(
        &self,
        run: &Path,
        mut command: Command,
        tcp: bool,
        fault: Option<Fault>,
    ) -> Result<Ended, rustix::io::Errno> {
        let mark = format!("{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        command.env(MARK, &mark).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let injector = Injector::new(run.to_owned(), self.data(), tcp, fault);
        let (mut child, answering) = held_calls::start(&mut command, injector, Injector::answer)?;
        let stdout = read_all(child.stdout.take().expect("piped"));
        let stderr = read_all(child.stderr.take().expect("piped"));
        let pid = Pid::from_raw(child.id() as i32).expect("a process");
        let ended = pidfd_open(pid, PidfdFlags::empty()).expect("a child exists until it is waited for");
        let wait = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&wait)).expect("polls") == 0 {
            marked(&mark).into_iter().for_each(|process| send(process, Signal::ABORT));
        }
        let status = child.wait().expect("waits");
        // Nothing of a job outlives its launcher for long, and what does is a finding, and must not disturb the next run.
        let deadline = Instant::now() + SOON;
        let left = loop {
            let left = marked(&mark);
            if left.is_empty() || Instant::now() > deadline {
                break left;
            }
            thread::yield_now();
        };
        left.iter().for_each(|&process| send(process, Signal::KILL));
        let injector = answering.join().expect("no panic");
        Ok(Ended {
            code: status.code(),
            signal: status.signal(),
            stdout: stdout.join().expect("no panic"),
            stderr: stderr.join().expect("no panic"),
            left,
            hit: injector.hit,
            calls: injector.calls,
            writes: injector.writes,
        })
    }
}

/// The program, without variables of a launcher or of a user.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_enmasse"));
    let kept = ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"].map(|name| (name, std::env::var_os(name)));
    command.env_clear().envs(kept.into_iter().filter_map(|(name, value)| Some((name, value?))));
    command
}

fn read_all(mut stream: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What a killed process leaves is text up to there.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The processes of a job. One that has ended but was not waited for has no environment any more.
fn marked(mark: &str) -> Vec<i32> {
    let variable = format!("{MARK}={mark}");
    let has_it = |process: &i32| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|other| other == variable.as_bytes())
    };
    let entries = fs::read_dir("/proc").expect("readable").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_it).collect()
}

/// Three classes that differ in brightness and colour.
fn write_images(folder: &Path) {
    for (label, class) in ["dark", "light", "red"].into_iter().enumerate() {
        fs::create_dir_all(folder.join(class)).expect("creates");
        for number in 0..EACH {
            let shade = |pixel: usize| (pixel * 31 + number * 17) as u8 % 60;
            let pixel = |pixel: usize| match label {
                0 => [shade(pixel); 3],
                1 => [190 + shade(pixel); 3],
                _ => [200, shade(pixel), shade(pixel)],
            };
            let file = fs::File::create(folder.join(class).join(format!("{number:02}.png"))).expect("creates");
            let mut encoder = png::Encoder::new(file, 12, 14);
            encoder.set_color(png::ColorType::Rgb);
            let mut writer = encoder.write_header().expect("writes");
            writer.write_image_data(&(0..12 * 14).flat_map(pixel).collect::<Vec<_>>()).expect("writes");
        }
    }
}
