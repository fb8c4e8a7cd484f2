//! Nodes that join and leave: agents as processes of this machine, which meet at a loopback address.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::common::network::Network;
use crate::common::{DEADLINE, enmasse, exists, metrics, pictures, plain_environment, program, send, until};
use enmasse_train::Checkpoint;
use rustix::process::Signal;

/// The agent of one node; killed when it is dropped.
struct Agent {
    process: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl Agent {
    /// `enmasse launch` of `sh -c script` with `workers` ranks.
    fn start(endpoint: &str, nodes: &str, workers: usize, script: &str) -> Self {
        Self::start_by(program(), endpoint, nodes, workers, script)
    }

    /// The same, started by a command that runs its arguments elsewhere.
    fn start_by(mut command: Command, endpoint: &str, nodes: &str, workers: usize, script: &str) -> Self {
        command.args(["launch", "--nnodes", nodes, "--nproc-per-node", &workers.to_string()]);
        command.args(["--rdzv-endpoint", endpoint, "--rdzv-id", "test", "--shutdown-timeout", "5"]);
        // Agents wait for the greatest number of nodes, so that no attempt depends on how fast they join.
        command.args(["--rdzv-conf", "last_call_timeout=100,keep_alive_interval=5,keep_alive_max_attempt=1"]);
        command.args(["--no-python", "sh", "-c", script]);
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let lines = lines_of(process.stdout.take().expect("piped"));
        let errors = lines_of(process.stderr.take().expect("piped"));
        Agent { process, lines, errors }
    }

    /// The next line of a worker.
    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("no line came; errors: {:?}", self.told()))
    }

    fn told(&self) -> Vec<String> {
        self.errors.try_iter().collect()
    }

    /// Kills the agent, and its workers with it.
    fn kill(&mut self) {
        self.process.kill().expect("runs");
        self.process.wait().expect("waits");
    }

    /// Its exit code.
    #[track_caller]
    fn code(&mut self) -> Option<i32> {
        until("the agent's end", || self.process.try_wait().expect("waits")).code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lines_of(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

/// An address without a listener.
fn endpoint() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Workers wait for lines from here.
struct Gate {
    path: PathBuf,
    file: File,
}

impl Gate {
    fn new(folder: &Path) -> Self {
        let path = folder.join("gate");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        // Opened for reading too, so that opening does not wait for a reader.
        let file = File::options().read(true).write(true).open(&path).unwrap();
        Gate { path, file }
    }

    fn open_for(&mut self, workers: usize) {
        self.file.write_all(&vec![b'\n'; workers]).unwrap();
    }
}

/// Prints its process, attempt and place, and waits.
fn waiting(gate: &Gate) -> String {
    let gate = gate.path.display();
    format!(
        "echo $$ $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE; read line < {gate}"
    )
}

/// The lines of all workers, without their process numbers, sorted; and the process numbers.
fn places(agents: &[&Agent], workers: usize) -> (Vec<String>, Vec<i32>) {
    let lines = agents.iter().flat_map(|agent| (0..workers).map(|_| agent.line()));
    let split = |line: String| {
        let (process, place) = line.split_once(' ').expect("two words");
        (place.to_owned(), process.parse::<i32>().expect("a number"))
    };
    let mut found: Vec<_> = lines.map(split).collect();
    found.sort();
    found.into_iter().unzip()
}

fn expected(attempt: usize, nodes: usize, workers: usize) -> Vec<String> {
    let place = |rank| format!("{attempt} rank {rank} of {}, node {} of {nodes}", nodes * workers, rank / workers);
    (0..nodes * workers).map(place).collect()
}

#[test]
fn a_world_shrinks_grows_and_outlives_its_leader() {
    let folder = tempfile::tempdir().unwrap();
    let (endpoint, mut gate) = (endpoint(), Gate::new(folder.path()));
    let start = || Agent::start(&endpoint, "2:3", 2, &waiting(&gate));
    // The first one leads.
    let mut first = start();
    until("the endpoint", || std::net::TcpStream::connect(&endpoint).ok());
    let (second, mut third) = (start(), start());
    let (found, _) = places(&[&first, &second, &third], 2);
    assert_eq!(found, expected(0, 3, 2));

    third.kill();
    let (found, _) = places(&[&first, &second], 2);
    assert_eq!(found, expected(1, 2, 2));

    let fourth = start();
    let (found, _) = places(&[&first, &second, &fourth], 2);
    assert_eq!(found, expected(2, 3, 2));

    // Another agent of this machine takes over the endpoint.
    first.kill();
    let (found, processes) = places(&[&second, &fourth], 2);
    assert_eq!(found, expected(3, 2, 2));

    gate.open_for(4);
    for mut agent in [second, fourth] {
        assert_eq!(agent.code(), Some(0), "{:?}", agent.told());
    }
    assert!(!processes.into_iter().any(exists));
}

#[test]
fn an_agent_that_is_asked_to_stop_leaves_and_a_failure_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let (endpoint, gate) = (endpoint(), Gate::new(folder.path()));
    let script = waiting(&gate);
    let start = |script: &str| Agent::start(&endpoint, "1:3", 1, script);
    let mut first = start(&script);
    until("the endpoint", || std::net::TcpStream::connect(&endpoint).ok());
    let (mut second, mut third) = (start(&script), start(&script));
    assert_eq!(places(&[&first, &second, &third], 1).0, expected(0, 3, 1));

    send(third.process.id() as i32, Signal::TERM);
    assert_eq!(third.code(), Some(143), "{:?}", third.told());
    let (found, processes) = places(&[&first, &second], 1);
    assert_eq!(found, expected(1, 2, 1));
    let told = first.told().join("\n");
    assert!(told.contains(" leaves") && !told.contains("error"), "{told}");

    // Failures of workers may not be restarted.
    send(processes[1], Signal::SEGV);
    assert_eq!((first.code(), second.code()), (Some(139), Some(139)), "{:?} {:?}", first.told(), second.told());
    let told = [&first, &second].map(|agent| agent.errors.iter().collect::<Vec<_>>().join("\n"));
    assert!(told.iter().all(|told| told.contains("SIGSEGV")), "{told:?}");
}

#[test]
fn a_job_without_a_token_stays_on_its_machine() {
    let mut command = program();
    command.args(["launch", "--nnodes", "1:2", "--rdzv-endpoint", "0.0.0.0:1", "--no-python", "true"]);
    let ended = crate::common::finish(&mut command);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("set ENMASSE_TOKEN"), "{}", ended.stderr);
}

#[test]
fn a_node_that_is_cut_off_has_no_workers_when_the_others_go_on() {
    let Some(network) = Network::up(&["h1", "h2", "h3"]) else { return };
    // The program on a host.
    let program_on = |host: &str| {
        let mut command = network.command(host, env!("CARGO_BIN_EXE_enmasse"));
        command.env("ENMASSE_TOKEN", "a secret of the tests");
        command
    };
    let folder = tempfile::tempdir().unwrap();
    let mut gate = Gate::new(folder.path());
    let start = |host| Agent::start_by(program_on(host), "h1:29400", "2:3", 1, &waiting(&gate));
    let agents = ["h1", "h2", "h3"].map(start);
    let (found, processes) = places(&agents.each_ref(), 1);
    assert_eq!(found, expected(0, 3, 1));
    // The order of joining varies, and with it the ranks.
    let of_third = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
            parent == Some(agents[2].process.id().to_string().as_str())
        })
    };
    let third = *processes.iter().find(|pid| of_third(pid)).expect("a worker of h3");

    network.cut("h3");
    let (found, _) = places(&[&agents[0], &agents[1]], 1);
    assert_eq!(found, expected(1, 2, 1));
    assert!(!exists(third), "the worker that was cut off still runs");

    network.heal("h3");
    let (found, _) = places(&agents.each_ref(), 1);
    assert_eq!(found, expected(2, 3, 1));
    gate.open_for(3);
    for mut agent in agents {
        assert_eq!(agent.code(), Some(0), "{:?}", agent.told());
    }
}

#[test]
fn a_node_says_that_it_waits_for_a_leader_that_has_ended() {
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut gate = Gate::new(folder.path());
    let start = |host: &str| {
        let mut command = network.command(host, env!("CARGO_BIN_EXE_enmasse"));
        command.env("ENMASSE_TOKEN", "a secret of the tests");
        Agent::start_by(command, "h1:29400", "2:2", 1, &waiting(&gate))
    };
    // Also at the start, if it comes before the leader.
    let mut second = start("h2");
    let waits = || second.errors.recv_timeout(DEADLINE).expect("a line");
    let check = |line: String| {
        let said = line.starts_with("waiting for the leading node, up to ") && line.contains(" s: h1:29400: ");
        assert!(said, "{line}");
    };
    check(waits());
    let mut first = start("h1");
    assert_eq!(places(&[&first, &second], 1).0, expected(0, 2, 1));
    first.kill();
    while waits() != "stopping the workers: the connection to the leader broke" {}
    check(waits());

    let mut first = start("h1");
    assert_eq!(places(&[&first, &second], 1).0, expected(1, 2, 1));
    gate.open_for(2);
    assert_eq!((first.code(), second.code()), (Some(0), Some(0)));
}

/// A number from a run's first epoch.
fn first_loss(run: &Path) -> f64 {
    metrics(run)[0]["train_loss"].as_f64().expect("a number")
}

#[test]
fn training_goes_on_in_mid_epoch_at_another_world_size() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run, alone) = (pictures(folder.path(), 20), folder.path().join("run"), folder.path().join("alone"));
    let (endpoint, gate) = (endpoint(), Gate::new(folder.path()));
    // At such a small rate no weight changes, so the mean loss of an epoch shows which samples were in it, and how
    // often.
    let fixed = ["--model", "mlp", "--size", "8", "--batch", "2", "--threads", "1", "--epochs", "2", "--lr", "1e-30"];
    let arguments = |out: &Path| {
        let (data, out) = (data.display().to_string(), out.display().to_string());
        [&["train", &data, "--out", &out], &fixed[..]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    enmasse(&arguments(&alone)).well();

    let executable = env!("CARGO_BIN_EXE_enmasse");
    let train = format!("{executable} {} --resume --json", arguments(&run).join(" "));
    let gate_path = gate.path.display();
    // Attempts 0 and 1 stop in the middle of the first epoch, and wait there for their fault.
    let script = format!(
        "case $TORCHELASTIC_RESTART_COUNT in 0) n=3;; 1) n=6;; *) exec {train} --save-every 1;; esac; \
         {train} --save-every 1 --max-steps $n || exit; echo {{\\\"paused\\\":$n}}; read line < {gate_path}"
    );
    let start = || Agent::start(&endpoint, "2:3", 1, &script);
    let first = start();
    until("the endpoint", || std::net::TcpStream::connect(&endpoint).ok());
    let (second, mut third) = (start(), start());
    let paused = |agent: &Agent, steps: usize| {
        until("a pause", || (agent.line() == format!("{{\"paused\":{steps}}}")).then_some(()));
    };
    let last = run.join("checkpoints").join("last.safetensors");
    let position = || Checkpoint::load(&last).map(|last| (last.meta.epoch, last.meta.samples_consumed)).unwrap();
    [&first, &second, &third].into_iter().for_each(|agent| paused(agent, 3));
    assert_eq!(position(), (0, 3 * 3 * 2));
    third.kill();
    [&first, &second].into_iter().for_each(|agent| paused(agent, 6));
    assert_eq!(position(), (0, 3 * 3 * 2 + 3 * 2 * 2));
    let fourth = start();
    for (name, mut agent) in [("first", first), ("second", second), ("fourth", fourth)] {
        assert_eq!(agent.code(), Some(0), "{name}: {:?}", agent.told());
    }

    let records = metrics(&run);
    assert_eq!(records.len(), 2);
    let (found, expected) = (first_loss(&run), first_loss(&alone));
    assert!((found - expected).abs() < 1e-6 * expected, "{found} is not {expected}");
}

/// An unmodified script of PyTorch, over gloo.
#[test]
fn a_pytorch_script_shrinks_too() {
    let Some(python) = needs::pytorch() else { return };
    let mut check = Command::new(&python);
    plain_environment(&mut check);
    let folder = tempfile::tempdir().unwrap();
    let (endpoint, gate) = (endpoint(), Gate::new(folder.path()));
    let script = folder.path().join("script.py");
    let text = format!(
        "import os, torch, torch.distributed as dist\n\
         dist.init_process_group('gloo')\n\
         ones = torch.ones(1)\n\
         dist.all_reduce(ones)\n\
         print('sum', int(ones), 'attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n\
         if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    open({:?}).read(1)\n",
        gate.path
    );
    fs::write(&script, text).unwrap();
    let script = format!("exec {} {}", python.display(), script.display());
    let start = || Agent::start(&endpoint, "1:2", 1, &script);
    let mut first = start();
    until("the endpoint", || std::net::TcpStream::connect(&endpoint).ok());
    let mut second = start();
    assert_eq!([first.line(), second.line()], ["sum 2 attempt 0", "sum 2 attempt 0"]);
    second.kill();
    assert_eq!(first.line(), "sum 1 attempt 1");
    assert_eq!(first.code(), Some(0), "{:?}", first.told());
}
