//! Nodes that join and leave: agents as processes of this machine, which meet at a loopback address.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::common::network::Network;
use crate::common::{
    DEADLINE, enmasse, exists, images, metrics, plain_environment, program, refused_stranger, send, until,
};
use enmasse_train::Checkpoint;
use rustix::process::Signal;

/// Seconds without an answer after which an agent's lease ends. Tests that kill an agent wait for that. A lease is real time, so
/// it also ends where an agent does not run for as long, and its node comes back in a later attempt: these tests wait for a world of
/// the right size, whatever its number.
const LEASE: u32 = 5;

/// For tests in which no lease may end.
const LONG_LEASE: u32 = 1000;

/// The agent of one node; killed when it is dropped.
struct Agent {
    process: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl Agent {
    /// `enmasse launch` of `sh -c script` with `workers` ranks.
    fn start(endpoint: &str, nodes: &str, workers: usize, lease: u32, script: &str) -> Self {
        Self::start_by(program(), endpoint, nodes, workers, lease, script)
    }

    /// The same, started by a command that runs its arguments elsewhere.
    fn start_by(mut command: Command, endpoint: &str, nodes: &str, workers: usize, lease: u32, script: &str) -> Self {
        command.args(["launch", "--nnodes", nodes, "--nproc-per-node", &workers.to_string()]);
        command.args(["--rdzv-endpoint", endpoint, "--rdzv-id", "test", "--shutdown-timeout", "5"]);
        // Agents wait for the greatest number of nodes, so that no attempt depends on how fast they join.
        let timing = format!("last_call_timeout=100,keep_alive_interval={lease},keep_alive_max_attempt=1");
        command.args(["--rdzv-conf", &timing]);
        command.args(["--no-python", "sh", "-c", script]);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
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
    format!("127.0.0.1:{}", test_support::free_port())
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

    /// Lets all workers through, those of later attempts too.
    fn open(&mut self) {
        self.file.write_all(&[b'\n'; 1000]).unwrap();
    }
}

/// Prints its attempt, process and place, and waits.
fn waiting(gate: &Gate) -> String {
    let gate = gate.path.display();
    format!(
        "echo $TORCHELASTIC_RESTART_COUNT $$ rank $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE; read line < {gate}"
    )
}

/// Waits for an attempt of these agents alone in which every rank has its place. Returns its number, and the workers' processes in the
/// order of ranks.
#[track_caller]
fn world(agents: &[&Agent], workers: usize) -> (usize, Vec<i32>) {
    let nodes = agents.len();
    let place = |rank| format!("rank {rank} of {}, node {} of {nodes}", nodes * workers, rank / workers);
    let expected: Vec<String> = (0..nodes * workers).map(place).collect();
    // Of each agent its latest attempt, and the workers of that.
    let mut latest = vec![(0, Vec::new()); nodes];
    loop {
        let newest = latest.iter().map(|&(attempt, _)| attempt).max().unwrap_or(0);
        let is_behind = |(attempt, found): &(usize, Vec<_>)| *attempt < newest || found.len() < workers;
        let behind = latest.iter().position(is_behind);
        if behind.is_none() {
            let mut found: Vec<(String, i32)> = latest.iter().flat_map(|(_, found)| found.clone()).collect();
            found.sort();
            let (places, processes): (Vec<_>, _) = found.into_iter().unzip();
            if places == expected {
                return (newest, processes);
            }
        }
        // All agents have a place in the attempt that is waited for, so the next line of any of them is on the way to it.
        let behind = behind.unwrap_or(0);
        let line = agents[behind].line();
        let mut parts = line.splitn(3, ' ');
        let mut number = || parts.next().and_then(|part| part.parse::<i32>().ok()).expect("a number");
        let attempt = number() as usize;
        let process = number();
        let (known, found) = &mut latest[behind];
        if attempt > *known {
            (*known, *found) = (attempt, Vec::new());
        }
        found.push((parts.next().expect("a place").to_owned(), process));
    }
}

#[test]
fn a_world_shrinks_grows_and_outlives_its_leader() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint();
    let mut gate = Gate::new(folder.path());
    let start = || Agent::start(&endpoint, "2:3", 2, LEASE, &waiting(&gate));
    // The first one leads.
    let mut first = start();
    until("the endpoint", || std::net::TcpStream::connect(&endpoint).ok());
    let (second, mut third) = (start(), start());
    let (whole, _) = world(&[&first, &second, &third], 2);

    third.kill();
    let (shrunk, _) = world(&[&first, &second], 2);

    let fourth = start();
    let (grown, _) = world(&[&first, &second, &fourth], 2);

    // Another agent of this machine takes over the endpoint.
    first.kill();
    let (orphaned, processes) = world(&[&second, &fourth], 2);
    assert!(whole < shrunk && shrunk < grown && grown < orphaned, "{:?}", [whole, shrunk, grown, orphaned]);

    gate.open();
    for mut agent in [second, fourth] {
        assert_eq!(agent.code(), Some(0), "{:?}", agent.told());
    }
    assert!(!processes.into_iter().any(exists));
}

#[test]
fn an_agent_that_is_asked_to_stop_leaves_and_a_failure_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint();
    let gate = Gate::new(folder.path());
    let script = waiting(&gate);
    let start = |script: &str| Agent::start(&endpoint, "1:3", 1, LONG_LEASE, script);
    let mut first = start(&script);
    until("the endpoint", || std::net::TcpStream::connect(&endpoint).ok());
    let (mut second, mut third) = (start(&script), start(&script));
    assert_eq!(world(&[&first, &second, &third], 1).0, 0);

    send(third.process.id() as i32, Signal::TERM);
    assert_eq!(third.code(), Some(143), "{:?}", third.told());
    let (attempt, processes) = world(&[&first, &second], 1);
    assert_eq!(attempt, 1);
    let told = first.told().join("\n");
    assert!(told.contains(" leaves") && !told.contains("error"), "{told}");

    // Failures of workers may not be restarted.
    send(processes[1], Signal::SEGV);
    assert_eq!((first.code(), second.code()), (Some(139), Some(139)), "{:?} {:?}", first.told(), second.told());
    let told = [&first, &second].map(|agent| agent.errors.iter().collect::<Vec<_>>().join("\n"));
    assert!(told.iter().all(|told| told.contains("SIGSEGV")), "{told:?}");
}

/// Those of a node that holds another token may be among them.
#[test]
fn refused_strangers_were_not_told_by_the_leader() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint();
    let mut gate = Gate::new(folder.path());
    let start = || Agent::start(&endpoint, "1:2", 1, LONG_LEASE, &waiting(&gate));
    // The first one leads.
    let mut first = start();
    refused_stranger(&endpoint);
    let mut second = start();
    world(&[&first, &second], 1);
    refused_stranger(&endpoint);
    gate.open();
    assert_eq!((first.code(), second.code()), (Some(0), Some(0)), "{:?} {:?}", first.told(), second.told());
    let told =
        [first, second].map(|agent| agent.errors.iter().filter(|line| line.contains("refused")).collect::<Vec<_>>());
    let expected = format!("refused at {endpoint}: 2 connections from 127.0.0.1, of another program");
    assert_eq!(told, [vec![expected], vec![]]);
}

/// Regression test: a request to stop was lost while a failure was handled.
#[test]
fn an_agent_that_is_asked_to_stop_after_a_failure_does_not_restart() {
    // Rank 0 ends once it has heard of the request, and rank 1 has failed before.
    let script = "case $RANK in
        0) trap 'echo asked' TERM; trap '' USR2; trap 'kill -9 $!; exit 0' USR1;;
        1) trap 'kill -9 $!; exit 7' USR2;;
        esac; exec 2> /dev/null; echo ready; while :; do tail -f /dev/null & wait; kill -9 $!; done";
    let mut command = program();
    command.args(["launch", "--nnodes", "1:2", "--nproc-per-node", "2", "--rdzv-endpoint", &endpoint()]);
    // No other agent comes.
    command.args(["--rdzv-conf", "last_call_timeout=1", "--max-restarts", "1", "--no-python", "sh", "-c", script]);
    let mut agent = Agent::spawn(command);
    assert_eq!([agent.line(), agent.line()], ["ready", "ready"]);
    send(agent.process.id() as i32, Signal::USR2);
    assert_eq!(agent.line(), "asked");
    send(agent.process.id() as i32, Signal::TERM);
    send(agent.process.id() as i32, Signal::USR1);
    assert_eq!(agent.code(), Some(143), "{:?}", agent.told());
    assert_eq!(agent.lines.iter().collect::<Vec<_>>(), [""; 0]);
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
    let start = |host| Agent::start_by(program_on(host), "h1:29400", "2:3", 1, LEASE, &waiting(&gate));
    let agents = ["h1", "h2", "h3"].map(start);
    let (whole, processes) = world(&agents.each_ref(), 1);
    // The order of joining varies, and with it the ranks.
    let of_third = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
            parent == Some(agents[2].process.id().to_string().as_str())
        })
    };
    let third = *processes.iter().find(|pid| of_third(pid)).expect("a worker of h3");

    network.cut("h3");
    let (cut, _) = world(&[&agents[0], &agents[1]], 1);
    assert!(!exists(third), "the worker that was cut off still runs");

    network.heal("h3");
    let (healed, _) = world(&agents.each_ref(), 1);
    assert!(whole < cut && cut < healed, "{:?}", [whole, cut, healed]);
    gate.open();
    for mut agent in agents {
        assert_eq!(agent.code(), Some(0), "{:?}", agent.told());
    }
}

/// A node that is drained is saved with its last step, and the others go on from there. It may come back.
#[test]
fn a_node_that_is_drained_leaves_with_the_run_saved() {
    let Some(network) = Network::up(&["h1", "h2", "h3"]) else { return };
    let command_on = |host: &str| {
        let mut command = network.command(host, env!("CARGO_BIN_EXE_enmasse"));
        command.env("ENMASSE_TOKEN", "a secret of the tests");
        command
    };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let executable = env!("CARGO_BIN_EXE_enmasse");
    let train = format!(
        "exec {executable} train {} --out {} --model mlp --size 8 --batch 2 --shards 6 --threads 1 --epochs 1000000 --lr 1e-3 \
         --resume --json --log-every 1",
        data.display(),
        run.display()
    );
    let start = |host| Agent::start_by(command_on(host), "h1:29400", "2:3", 1, LONG_LEASE, &train);
    let [mut first, mut second, mut third] = ["h1", "h2", "h3"].map(start);
    // Waits for a step after `after` in a world of `ranks`, which the agent of rank 0 tells of.
    let mut events: Vec<serde_json::Value> = Vec::new();
    let mut steps = |agents: &[&Agent], ranks: usize, after: u64| {
        until("a step", || {
            let lines = agents.iter().flat_map(|agent| agent.lines.try_iter().collect::<Vec<_>>());
            events.extend(lines.filter_map(|line| serde_json::from_str(&line).ok()));
            let begun = events.iter().rposition(|event| event["event"] == "start" && event["world_size"] == ranks)?;
            let mut steps = events[begun..].iter().filter(|event| event["event"] == "step");
            steps.find(|event| event["step"].as_u64() > Some(after)).map(drop)
        });
    };
    steps(&[&first, &second, &third], 3, 3);

    let drain = |node: &str| {
        let mut command = command_on("h2");
        command.args(["drain", node, "--rdzv-endpoint", "h1:29400", "--rdzv-id", "test"]);
        crate::common::finish(&mut command)
    };
    let unknown = drain("h4");
    let expected = "error: h4 is no node of the job: its nodes are h1, h2, h3\n";
    assert_eq!((unknown.code, unknown.stderr.as_str()), (Some(1), expected));
    let leads = drain("h1");
    let expected = "error: h1 leads the job: the others meet there, and cannot go on without it\n";
    assert_eq!((leads.code, leads.stderr.as_str()), (Some(1), expected));

    let drained = drain("h3");
    let expected = "h3 finishes its step and leaves\nh3 has left the job\n";
    assert_eq!((drained.code, drained.stderr.as_str()), (Some(0), expected));
    assert_eq!(third.code(), Some(0), "{:?}", third.told());
    let told: Vec<String> = third.errors.iter().collect();
    assert!(told.iter().any(|line| line == "drained: this node has left the job"), "{told:?}");
    let saved = Checkpoint::load(&run.join("checkpoints/last.safetensors")).unwrap().meta.optimizer_step;
    assert!(saved > 3, "only step {saved} was saved");

    // The others go on after it, and a node that comes back takes part again.
    steps(&[&first, &second], 2, saved);
    let fourth = start("h3");
    steps(&[&first, &second, &fourth], 3, saved);
    for agent in [&mut first, &mut second] {
        send(agent.process.id() as i32, Signal::TERM);
    }
    assert_eq!(first.code(), Some(143), "{:?}", first.told());
}

#[test]
fn a_node_says_that_it_waits_for_a_leader_that_has_ended() {
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut gate = Gate::new(folder.path());
    let start = |host: &str| {
        let mut command = network.command(host, env!("CARGO_BIN_EXE_enmasse"));
        command.env("ENMASSE_TOKEN", "a secret of the tests");
        Agent::start_by(command, "h1:29400", "2:2", 1, LEASE, &waiting(&gate))
    };
    // Also at the start, if it comes before the leader.
    let mut second = start("h2");
    let waits = || second.errors.recv_timeout(DEADLINE).expect("a line");
    let is_waiting =
        |line: &str| line.starts_with("waiting for the leading node, up to ") && line.contains(" s: h1:29400: ");
    let line = waits();
    assert!(is_waiting(&line), "{line}");
    let mut first = start("h1");
    let (before, _) = world(&[&first, &second], 1);
    first.kill();
    while waits() != "stopping the workers: the connection to the leader broke" {}
    let line = waits();
    assert!(is_waiting(&line), "{line}");

    let mut first = start("h1");
    let (after, _) = world(&[&first, &second], 1);
    assert!(before < after, "{:?}", [before, after]);
    gate.open();
    assert_eq!((first.code(), second.code()), (Some(0), Some(0)));
}

/// A number from a run's first epoch.
fn first_loss(run: &Path) -> f64 {
    metrics(run)[0]["train_loss"].as_f64().expect("a number")
}

#[test]
fn training_goes_on_in_mid_epoch_at_another_world_size() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 20);
    let run = folder.path().join("run");
    let alone = folder.path().join("alone");
    let endpoint = endpoint();
    let gate = Gate::new(folder.path());
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
    // The number of steps to take before a pause, in the middle of the first epoch; without it training goes on to the end.
    let steps = folder.path().join("steps");
    let gate_path = gate.path.display();
    let script = format!(
        "n=$(cat {}) || exec {train} --save-every 1; {train} --save-every 1 --max-steps $n || exit; \
         echo paused: $n, $WORLD_SIZE ranks; read line < {gate_path}",
        steps.display()
    );
    fs::write(&steps, "3").unwrap();
    let start = || Agent::start(&endpoint, "2:3", 1, LEASE, &script);
    let first = start();
    until("the endpoint", || std::net::TcpStream::connect(&endpoint).ok());
    let (second, mut third) = (start(), start());
    let last = run.join("checkpoints").join("last.safetensors");
    // Its samples so far, of 60.
    let paused = |agents: &[&Agent], steps: usize| {
        let line = format!("paused: {steps}, {} ranks", agents.len());
        agents.iter().for_each(|agent| while agent.line() != line {});
        let meta = Checkpoint::load(&last).unwrap().meta;
        assert_eq!(meta.epoch, 0);
        meta.samples_consumed
    };
    let whole = paused(&[&first, &second, &third], 3);
    fs::write(&steps, "6").unwrap();
    third.kill();
    let shrunk = paused(&[&first, &second], 6);
    // Two samples of each rank a step. A node that came back late has left some steps to the two others.
    for samples in [whole, shrunk - whole] {
        assert!((3 * 2 * 2..=3 * 3 * 2).contains(&samples) && samples % 2 == 0, "{whole} {shrunk}");
    }
    fs::remove_file(&steps).unwrap();
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
    let Some(python) = test_support::pytorch() else { return };
    let mut check = Command::new(&python);
    plain_environment(&mut check);
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint();
    let mut gate = Gate::new(folder.path());
    let script = folder.path().join("script.py");
    let text = format!(
        "import os, torch, torch.distributed as dist\n\
         dist.init_process_group('gloo')\n\
         ones = torch.ones(1)\n\
         dist.all_reduce(ones)\n\
         print('sum', int(ones), flush=True)\n\
         os.read(os.open({:?}, os.O_RDONLY), 1)\n",
        gate.path
    );
    fs::write(&script, text).unwrap();
    let script = format!("exec {} {}", python.display(), script.display());
    let start = || Agent::start(&endpoint, "1:2", 1, LEASE, &script);
    let mut first = start();
    until("the endpoint", || std::net::TcpStream::connect(&endpoint).ok());
    let mut second = start();
    for agent in [&first, &second] {
        while agent.line() != "sum 2" {}
    }
    second.kill();
    while first.line() != "sum 1" {}
    gate.open();
    assert_eq!(first.code(), Some(0), "{:?}", first.told());
}
