//! The launcher and the ranks that the tests start: this same program, told its part by its first argument.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use enmasse_comm::{Cause, CauseKind, Rendezvous};
use enmasse_launch::{
    Job, LaunchedRank, Logs, Output, STORE_FD, Selection, TOKEN_FD, launch, report_cause, spawn_processes,
};

use rustix::process::{Signal, getpid, kill_process};

use crate::DEADLINE;

/// Plays a part and returns its exit code; `None` if the arguments name none.
pub fn play(arguments: &[String]) -> Option<ExitCode> {
    let (part, rest) = arguments.split_first()?;
    match part.as_str() {
        "as-launcher" => Some(play_launcher(rest)),
        "as-spawner" => Some(play_spawner(&rest[0])),
        "as-rank" => {
            let place = LaunchedRank::from_environment().unwrap().unwrap();
            play_rank(&place, &rest[0], Path::new(&rest[1]));
            Some(ExitCode::SUCCESS)
        }
        _ => None,
    }
}

/// A launcher of `sh -c script` in a separate process, whose output is read here.
///
/// Its ranks hold its standard output, so the end of that output proves that neither they nor their descendants are
/// left.
pub struct Launcher {
    pub process: Child,
    lines: Receiver<String>,
}

impl Launcher {
    pub fn start(ranks: usize, output: &str, grace: Duration, script: &str) -> Self {
        Self::start_with(Stdio::piped(), ranks, output, grace, script)
    }

    pub fn start_with(stderr: Stdio, ranks: usize, output: &str, grace: Duration, script: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["as-launcher", &ranks.to_string(), output, &grace.as_millis().to_string(), script]);
        Self::run(&mut command, stderr)
    }

    /// Like `nohup`.
    pub fn start_ignoring_hangups(ranks: usize, script: &str) -> Self {
        let mut command = Command::new("sh");
        // A shell does the same for the background jobs of a script.
        command.args(["-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh"]).arg(std::env::current_exe().unwrap());
        Self::run(command.args(["as-launcher", &ranks.to_string(), "all", "1000", script]), Stdio::piped())
    }

    /// With log files in `folder`, and torchrun's options of these names.
    pub fn start_logging(folder: &Path, script: &str, redirects: &str, tee: &str, shown: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["as-launcher", "2", "all", "1000", script]).arg(folder).args([redirects, tee, shown]);
        Self::run(&mut command, Stdio::piped())
    }

    /// With a grace that never ends within a test.
    pub fn start_restarting(ranks: usize, restarts: usize, script: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["as-launcher", &ranks.to_string(), "all", "3600000", script, &restarts.to_string()]);
        Self::run(&mut command, Stdio::piped())
    }

    fn run(command: &mut Command, stderr: Stdio) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let lines = read_lines(process.stdout.take().unwrap());
        Launcher { process, lines }
    }

    /// The next line printed by a rank.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("a rank prints a line")
    }

    /// Waits until no process of the job is left; returns the lines printed meanwhile, sorted.
    pub fn lines_to_end(&self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("processes of the job are left"),
            }
        }
        lines.sort_unstable();
        lines
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The launcher's exit code and standard error, after the end of the job.
    pub fn finish(mut self) -> (Option<i32>, String) {
        let mut stderr = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (self.process.wait().unwrap().code(), stderr)
    }
}

/// The lines of a stream, as they arrive.
pub fn read_lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    let stream = BufReader::new(stream);
    std::thread::spawn(move || stream.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

/// A failing test leaves no process behind.
impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the tests run with SIGHUP ignored, which the processes here inherit.
pub fn hangups_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

fn play_launcher(arguments: &[String]) -> ExitCode {
    let [ranks, output, grace, script, more @ ..] = arguments else { panic!("{arguments:?}") };
    let output = match output.as_str() {
        "all" => Output::All,
        "rank zero and errors" => Output::RankZeroAndErrors,
        _ => Output::RankZero,
    };
    let grace = Duration::from_millis(grace.parse().unwrap());
    let job = Job::new("sh", ranks.parse().unwrap()).args(["-c", script]);
    let mut job = Job { output, grace, signal_grace: grace, ..job };
    match more {
        [folder, redirects, tee, shown] => {
            let mut logs = Logs::create(Some(Path::new(folder)), "run").unwrap();
            logs.redirects = Selection::parse(redirects).unwrap();
            logs.tee = Selection::parse(tee).unwrap();
            logs.shown = Some(shown.split(',').filter_map(|rank| rank.parse().ok()).collect());
            logs.stdout_filters = vec!["1".to_owned()];
            job.logs = logs;
        }
        [restarts] => job.max_restarts = restarts.parse().unwrap(),
        _ => {}
    }
    let outcome = launch(&job).unwrap();
    if let Some(report) = outcome.report() {
        eprintln!("{report}");
    }
    outcome.exit_code().into()
}

/// Spawns ranks of this program twice, and reports the results.
fn play_spawner(what: &str) -> ExitCode {
    let first = spawn_processes(1, |group| match group.world_size() {
        1 => {
            println!("one alone");
            Ok(())
        }
        _ => Err("a rank has ranks of its own"),
    });
    let second = spawn_processes(3, |group| {
        let mut sum = [group.rank() as f32];
        group.all_reduce(&mut sum).map_err(|cause| cause.to_string())?;
        if group.rank() == 1 {
            match what {
                "fails" => return Err("no more disk".to_owned()),
                "panics" => panic!("a defect"),
                _ => println!("the sum is {}", sum[0]),
            }
        }
        group.barrier().map_err(|cause| cause.to_string())
    });
    for result in [first, second] {
        println!("{}", result.err().map_or("well".to_owned(), |error| error.to_string()));
    }
    ExitCode::SUCCESS
}

/// The part of a rank of [`rank_job`], which leaves its findings in `folder`.
fn play_rank(place: &LaunchedRank, what: &str, folder: &Path) {
    let rank = place.rank;
    match what {
        "keep the token" => {
            let mut token = Vec::new();
            inherited(TOKEN_FD).map(fs::File::from).unwrap().read_to_end(&mut token).unwrap();
            fs::write(folder.join(rank.to_string()), token).unwrap();
        }
        "meet on the inherited listener" => match inherited(STORE_FD).map(TcpListener::from) {
            Some(listener) => {
                assert_eq!(rank, 0);
                let mut greeting = String::new();
                listener.accept().unwrap().0.read_to_string(&mut greeting).unwrap();
                fs::write(folder.join("greeting"), greeting).unwrap();
            }
            None => {
                let is_socket = |path: &fs::DirEntry| {
                    fs::read_link(path.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
                };
                let sockets = fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok).filter(is_socket);
                assert_eq!(sockets.count(), 0, "rank {rank} holds the listener of rank 0");
                let (host, port) = place.master.clone().unwrap();
                write!(TcpStream::connect((host.as_str(), port)).unwrap(), "from rank {rank}").unwrap();
            }
        },
        "bind the port" => {
            let (host, port) = place.master.clone().unwrap();
            assert!(inherited(STORE_FD).is_none());
            if rank == 0 {
                TcpListener::bind((host.as_str(), port)).unwrap();
            }
        }
        // Rank 2 hangs, rank 1 notices, rank 0 knows nothing.
        "blame rank 2" => {
            if rank == 1 {
                assert!(report_cause(&Cause::new(CauseKind::Silent, "no heartbeat").of_rank(2).on_host("h")));
                std::process::exit(1);
            }
            hang();
        }
        "fail with a cause" => {
            if rank == 1 {
                assert!(report_cause(&Cause::new(CauseKind::Error, "no such folder").of_rank(1).on_host("h")));
                std::process::exit(1);
            }
            hang();
        }
        "eat memory" => {
            let eaten: Vec<Vec<u8>> = (0..1024).map(|_| vec![1; 1 << 20]).collect();
            panic!("nobody minded {} MiB", eaten.len());
        }
        "work until rank 2 is killed" | "work until rank 2 panics" => {
            let group = Rendezvous::from_environment().unwrap().join().unwrap();
            let mut sum = [1.0f32; 1000];
            for round in 0.. {
                if (rank, round) == (2, 10) {
                    assert!(what.ends_with("killed"), "a defect");
                    kill_process(getpid(), Signal::KILL).unwrap();
                }
                if let Err(cause) = group.all_reduce(&mut sum) {
                    report_cause(&cause);
                    std::process::exit(1);
                }
            }
        }
        other => panic!("no such part: {other}"),
    }
}

/// A job of this program's ranks.
pub fn rank_job(ranks: usize, what: &str, folder: &Path) -> Job {
    let program = std::env::current_exe().unwrap();
    Job::new(program, ranks).args(["as-rank".into(), what.into(), folder.as_os_str().to_owned()])
}

fn inherited(name: &str) -> Option<OwnedFd> {
    let number = std::env::var(name).ok()?.parse().unwrap();
    // SAFETY: the launcher opened this descriptor for this process, and nothing else here uses it.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}
