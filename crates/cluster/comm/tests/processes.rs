//! Ranks as real processes, and the messages of the others when one is killed or stopped. Where all are stopped and
//! continued, none is blamed. The program starts itself: with RANK set it is a rank, without it is the test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use enmasse_comm::{Rendezvous, TransportChoice};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};

/// Limit for events that must happen.
const DEADLINE: Duration = Duration::from_secs(300);
/// Limit for telling the others, on however busy a machine.
const SOON: Duration = Duration::from_secs(60);
/// After which an endless rank is silent. No busy machine keeps a thread from running for as long.
const HEARTBEAT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    if std::env::var_os("RANK").is_some() {
        return rank();
    }
    // Most of the time they wait for a heartbeat that does not come.
    std::thread::scope(|scope| {
        for transport in ["shared", "tcp", "nodes"] {
            scope.spawn(move || case("clean end", transport, None, &[]));
            scope.spawn(move || all_are_stopped_and_continued(transport));
            scope.spawn(move || a_rank_without_descriptors_is_named(0, transport));
            scope.spawn(move || a_rank_without_descriptors_is_named(1, transport));
            for victim in 0..3 {
                scope.spawn(move || {
                    // Regression test: rank 0's host was the address of the rendezvous.
                    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                    let of = format!("rank {victim} on host {host} ");
                    case("killed", transport, Some((victim, Signal::KILL)), &[&of, "exited"]);
                    case("stopped", transport, Some((victim, Signal::STOP)), &[&of, "fell silent"]);
                });
            }
        }
    });
    ExitCode::SUCCESS
}

/// A rank: sums in the whole group and in a group of two, until something goes wrong, or for 200 steps if nothing
/// should.
fn rank() -> ExitCode {
    let sockets = open_sockets();
    let mut rendezvous = Rendezvous::from_environment().expect("the test sets the environment");
    if let Ok(few) = std::env::var("FEW_FILES") {
        let (rank, count) = few.split_once(' ').expect("a rank and a number");
        if rank == rendezvous.rank.to_string() {
            allow_files(count.parse().expect("a number"));
        }
    }
    match std::env::var("TRANSPORT").as_deref() {
        Ok("shared") => rendezvous.transport = TransportChoice::Shared,
        Ok("tcp") => rendezvous.transport = TransportChoice::Tcp,
        _ => rendezvous.node = Some((rendezvous.rank == 2).to_string()),
    }
    let endless = std::env::var_os("ENDLESS").is_some();
    let talks = std::env::var_os("TALKS").is_some();
    if endless {
        rendezvous.heartbeat = HEARTBEAT;
    }
    let (rank, transport) = (rendezvous.rank, rendezvous.transport);
    let group = match rendezvous.join() {
        Ok(group) => group,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if rank == 0 && transport == TransportChoice::Shared {
        // Regression test: the connections to the store remained. Each other rank has one for control.
        let deadline = Instant::now() + DEADLINE;
        while open_sockets() != sockets + 2 {
            assert!(Instant::now() < deadline, "{sockets} sockets became {}", open_sockets());
            std::thread::yield_now();
        }
    }
    // Ranks 2 and 0, in this order; rank 1 waits for them in the whole group.
    let pair = match group.split((group.rank() != 1).then_some(0), -(group.rank() as i64)) {
        Ok(pair) => pair,
        Err(cause) => {
            println!("{cause}");
            return ExitCode::FAILURE;
        }
    };
    let mut data = vec![1f32; 300_000];
    let mut steps = 0;
    let result = loop {
        data.fill(1.0);
        let sums =
            pair.as_ref().map_or(Ok(()), |pair| pair.all_reduce(&mut data)).and_then(|()| group.all_reduce(&mut data));
        if let Err(cause) = sums {
            break Err(cause);
        }
        assert!(data.iter().all(|&sum| sum == 2.0 + 1.0 + 2.0));
        if steps == 0 {
            println!("ready");
        } else if steps % 100 == 0 && talks {
            println!("step {steps}");
        }
        steps += 1;
        if !endless && steps == 200 {
            break Ok(());
        }
    };
    drop((pair, group));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            println!("{cause}");
            ExitCode::FAILURE
        }
    }
}

/// The number of sockets that this process has.
fn open_sockets() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("a process reads of itself").flatten();
    let links = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// Lets this process open so many more files. The limit is one of numbers, of which the process may have inherited any.
fn allow_files(count: usize) {
    // A file for each of those, and one for the first that is too many.
    let files: Vec<_> = (0..=count).map(|_| std::fs::File::open("/dev/null").expect("it is there")).collect();
    let limit = files.last().map(|file| file.as_raw_fd() as u64);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("it may be lowered");
}

/// Regression test: rank 0 dropped connections without a word, or did not accept them, until others were blamed. Where the
/// limit was met at the start of a thread, the rank was not named. Whichever descriptor is the first that is missing, the
/// rank that lacks it says so.
fn a_rank_without_descriptors_is_named(rank: usize, transport: &str) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let named = format!("rank {rank} on host {host} failed");
    let enough = (0..).find(|count| {
        let (ranks, _listener) = start_with(transport, &[("FEW_FILES", &format!("{rank} {count}")), ("ENDLESS", "1")]);
        let story = ranks[rank].line(DEADLINE);
        for expected in [&named, "too many open files", "ulimit -n"] {
            assert!(story == "ready" || story.contains(expected), "{count} files over {transport}: {story}");
        }
        story == "ready"
    });
    println!("rank {rank} needs {} descriptors over {transport}, and says so", enough.expect("some number is enough"));
}

/// A rank's process, killed when the test ends for any reason.
struct Rank {
    child: Child,
    lines: Receiver<String>,
}

impl Rank {
    fn start(rank: usize, transport: &str, modes: &[(&str, &str)], listener: &TcpListener, token: &OwnedFd) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the own path"));
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "3")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", listener.local_addr().expect("it listens").port().to_string())
            .env("ENMASSE_TOKEN_FD", token.as_raw_fd().to_string())
            .env("TRANSPORT", transport)
            .stdout(Stdio::piped());
        if rank == 0 {
            command.env("ENMASSE_STORE_FD", listener.as_raw_fd().to_string());
        }
        command.envs(modes.iter().copied());
        let mut child = command.spawn().expect("the program starts itself");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Rank { child, lines }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the rank runs");
    }

    fn line(&self, limit: Duration) -> String {
        self.lines.recv_timeout(limit).expect("a rank prints nothing in time")
    }

    fn exit_code(&mut self, limit: Duration) -> Option<i32> {
        let deadline = Instant::now() + limit;
        // The output ends with the process, so waiting for its end is enough.
        while self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        assert!(Instant::now() < deadline, "a rank does not end");
        self.child.wait().expect("it was started here").code()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three ranks are stopped for longer than a heartbeat, and take it for no one's fault. Afterwards one is killed, which
/// the others still notice.
fn all_are_stopped_and_continued(transport: &str) {
    let mut ranks = start(transport, &[("ENDLESS", "1"), ("TALKS", "1")]);
    for again in 0..2 {
        for rank in &ranks {
            rank.signal(Signal::STOP);
        }
        for rank in &ranks {
            // Until it has been quiet for a heartbeat.
            while rank.lines.recv_timeout(HEARTBEAT).is_ok() {}
        }
        for rank in &ranks {
            rank.signal(Signal::CONT);
        }
        let began = Instant::now();
        while began.elapsed() < HEARTBEAT {
            for (number, rank) in ranks.iter().enumerate() {
                let line = rank.line(DEADLINE);
                assert!(line.starts_with("step "), "rank {number}, continued {again}: {line}");
            }
        }
    }
    ranks[2].signal(Signal::KILL);
    for rank in &mut ranks[..2] {
        let last = std::iter::from_fn(|| rank.lines.recv_timeout(SOON).ok()).last().unwrap_or_default();
        assert!(last.contains("rank 2 on host") && last.contains("exited"), "{last}");
        assert_eq!(rank.exit_code(SOON), Some(1));
    }
    println!("all stopped and continued over {transport}");
}

/// Three ranks, and the listener of the first.
fn start_with(transport: &str, modes: &[(&str, &str)]) -> (Vec<Rank>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let token = rustix::fs::memfd_create("token", rustix::fs::MemfdFlags::empty()).expect("memory");
    rustix::io::write(&token, &[42; 32]).expect("memory");
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).expect("it is open");
    ((0..3).map(|rank| Rank::start(rank, transport, modes, &listener, &token)).collect(), listener)
}

/// Three ranks that have done their first step.
fn start(transport: &str, modes: &[(&str, &str)]) -> Vec<Rank> {
    let (ranks, _listener) = start_with(transport, modes);
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(rank.line(DEADLINE), "ready");
        let mapped = shared_mappings(&rank.child);
        assert_eq!(!mapped.is_empty(), transport == "shared" || transport == "nodes" && number < 2, "{mapped:?}");
        // Without a name, nothing can be left behind, however the ranks end.
        assert!(mapped.iter().all(|path| path == "/memfd:enmasse (deleted)"), "{mapped:?}");
    }
    ranks
}

/// Three ranks, one of which may get a signal; the others must end soon and name it.
fn case(name: &str, transport: &str, victim: Option<(usize, Signal)>, expected: &[&str]) {
    let mut ranks = start(transport, if victim.is_some() { &[("ENDLESS", "1")] } else { &[] });
    let Some((victim, signal)) = victim else {
        assert!(ranks.iter_mut().all(|rank| rank.exit_code(DEADLINE) == Some(0)));
        println!("{name} over {transport}");
        return;
    };
    ranks[victim].signal(signal);
    let began = Instant::now();
    let mut stories = vec![];
    for (number, rank) in ranks.iter_mut().enumerate().filter(|(number, _)| *number != victim) {
        let story = rank.line(SOON);
        for expected in expected {
            assert!(story.contains(expected), "rank {number} printed {story:?}, which lacks {expected:?}");
        }
        stories.push(story);
        assert_eq!(rank.exit_code(SOON), Some(1));
    }
    println!("rank {victim} {name} over {transport}: the others ended within {} ms", began.elapsed().as_millis());
    // Each rank notices rank 0's death by itself, at its own moment; rank 0 reports everything else.
    assert!(victim == 0 || stories[0] == stories[1], "{stories:?}");
}

/// What a process maps and shares with others.
fn shared_mappings(child: &Child) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("the rank runs");
    let shared = |line: &str| {
        let mut words = line.splitn(6, ' ').map(str::trim);
        words.nth(1)?.ends_with('s').then(|| words.nth(3).unwrap_or_default().to_owned())
    };
    maps.lines().filter_map(shared).collect()
}
