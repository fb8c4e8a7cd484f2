//! The collectives over MPI, with ranks that Open MPI's mpirun or MPICH's mpiexec has started, and what becomes of a group
//! when one of them dies, stalls or is started wrongly. The program starts itself: with a part to play it is a rank, without
//! it is the test.
//!
//! Ranks that are to use MPI for what they exchange are given nodes of their own, on one machine.

mod cases;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use cases::Shards;
use enmasse_comm::{
    Algorithm, CauseKind, Compression, Group, GroupOptions, MpiFamily, Reduction, Rendezvous, TransportChoice,
};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use test_support::Need;

/// Limit for a whole job.
const DEADLINE: Duration = Duration::from_secs(300);
/// Limit for what happens at once, on however busy a machine.
const SOON: Duration = Duration::from_secs(60);

/// What a rank does.
const PART: &str = "ENMASSE_TEST_PART";
/// The rendezvous: its ports.
const PORTS: &str = "ENMASSE_TEST_PORTS";
/// The ranks of a node.
const NODE: &str = "ENMASSE_TEST_NODE";
/// A folder for what ranks have to say.
const SAID: &str = "ENMASSE_TEST_SAID";

fn main() -> ExitCode {
    if let Ok(part) = std::env::var(PART) {
        return rank(&part);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // As the standard harness does: a word selects the tests whose names contain it.
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).map_or("", String::as_str);
    let tests: [Test; 7] = [
        ("collectives", collectives),
        ("algorithms", algorithms),
        ("death", death),
        ("stall", stall),
        ("out_of_step", out_of_step),
        ("missing_library", missing_library),
        ("another_library", another_library),
    ];
    let mut all_passed = true;
    for (of, need) in [("open_mpi", Need::OpenMpi), ("mpich", Need::Mpich)] {
        for (name, test) in tests {
            let name = format!("{of}::{name}");
            if name.contains(filter) {
                let body =
                    move || test_support::mpirun(need).into_iter().for_each(|program| test(Mpirun { need, program }));
                let thread = thread::Builder::new().name(name.clone()).spawn(body);
                let passed = thread.is_ok_and(|thread| thread.join().is_ok());
                println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
                all_passed &= passed;
            }
        }
    }
    if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A name, and what it does with the program that starts ranks.
type Test = (&'static str, fn(Mpirun));

/// The program that starts ranks.
#[derive(Clone, Copy)]
struct Mpirun {
    need: Need,
    program: &'static str,
}

/// How a job ended.
struct Ended {
    success: bool,
    output: String,
    /// What each rank said, with its number.
    said: Vec<(usize, String)>,
    took: Duration,
}

impl Mpirun {
    /// Runs ranks that play a part, so many to a node.
    fn run(self, ranks: usize, to_a_node: usize, part: &str, more: &[(&str, &str)]) -> Ended {
        let folder = tempfile::tempdir().expect("a folder");
        // Free when they are chosen. Rank 0 takes the first that still is.
        let ports = [(); 4].map(|()| test_support::free_port().to_string());
        let mut command = Command::new(self.program);
        match self.need {
            // A rank that dies must not take the others along before they have said what they noticed. mpiexec tells them of
            // it by a signal, which ends in the shell.
            Need::OpenMpi => command.args(["--oversubscribe", "--enable-recovery", "-n", &ranks.to_string()]),
            _ => command.args([
                "-disable-auto-cleanup",
                "-n",
                &ranks.to_string(),
                "sh",
                "-c",
                "trap : USR1; \"$0\"; exit $?",
            ]),
        };
        command
            .arg(std::env::current_exe().expect("the own path"))
            .envs([(PART, part), (PORTS, &ports.join(",")), (NODE, &to_a_node.to_string())])
            .env(SAID, folder.path())
            .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
            .envs(more.iter().copied())
            .stdin(Stdio::null());
        let began = Instant::now();
        let (success, output) = finish(command, folder.path());
        let said = (0..ranks).filter_map(|rank| Some((rank, fs::read_to_string(said_by(folder.path(), rank)).ok()?)));
        Ended { success, output, said: said.collect(), took: began.elapsed() }
    }

    /// What the ranks that survive say: the same, which they have from each other.
    #[track_caller]
    fn check(self, ranks: usize, part: &str, more: &[(&str, &str)], survivors: &[usize], expected: &[&str]) {
        let Ended { said, output, .. } = self.run(ranks, 1, part, more);
        assert_eq!(said.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), survivors, "{part}: {output}");
        for (rank, said) in &said {
            for expected in expected {
                assert!(said.contains(expected), "rank {rank} said {said:?}, which lacks {expected:?}; {output}");
            }
        }
    }
}

/// The end of a program, which is killed if it takes too long, and all that it has printed.
fn finish(mut command: Command, folder: &Path) -> (bool, String) {
    use std::os::unix::process::CommandExt;
    let log = folder.join("log");
    let file = fs::File::create(&log).expect("a file");
    command.process_group(0).stdout(file.try_clone().expect("a descriptor")).stderr(file);
    let mut child = command.spawn().expect("mpirun starts");
    let group = Pid::from_child(&child);
    let (ended, end) = channel();
    let waiter = thread::spawn(move || {
        let status = child.wait().expect("it was started here");
        // The test may have given up.
        let _ = ended.send(());
        status
    });
    let is_late = end.recv_timeout(DEADLINE).is_err();
    if is_late {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = waiter.join().expect("it waits");
    let output = fs::read_to_string(&log).unwrap_or_default();
    assert!(!is_late, "the job does not end: {output}");
    (status.success(), output)
}

fn said_by(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("said-{rank}"))
}

/// Sums by every algorithm, for which ranks are connected with all of other nodes.
fn algorithms(mpirun: Mpirun) {
    for (ranks, to_a_node) in [(3, 1), (4, 2)] {
        let Ended { success, output, said, .. } = mpirun.run(ranks, to_a_node, "algorithms", &[]);
        assert!(success && said.len() == ranks, "{output}");
    }
}

fn collectives(mpirun: Mpirun) {
    for (ranks, to_a_node) in [(2, 1), (4, 1), (4, 2)] {
        let Ended { success, output, said, .. } = mpirun.run(ranks, to_a_node, "collectives", &[]);
        let way = match to_a_node {
            1 => "ranks exchange data over ",
            _ => "ranks share memory on 2 nodes, which exchange data over ",
        };
        let name = match mpirun.need {
            Need::OpenMpi => "Open MPI ",
            _ => "MPICH ",
        };
        assert!(success && said.len() == ranks, "{ranks} ranks, {to_a_node} to a node: {output}");
        assert!(said.iter().all(|(_, said)| said.starts_with(&format!("{way}{name}"))), "{said:?}");
    }
    // On one node there is nothing for MPI to do, and it is not even loaded.
    let nowhere = [("ENMASSE_MPI_LIBRARY", "/nowhere/libmpi.so")];
    let Ended { success, output, said, .. } = mpirun.run(2, 2, "collectives", &nowhere);
    assert!(success, "{output}");
    let expected = "ranks share memory, and MPI, which is for several nodes, is not used";
    assert_eq!(said, [(0, expected.to_owned()), (1, expected.to_owned())]);
}

fn death(mpirun: Mpirun) {
    for victim in ["0", "1", "2"] {
        let survivors: Vec<_> = (0..3).filter(|rank| rank.to_string() != victim).collect();
        let of = format!("rank {victim} on host ");
        // UCX ends a process that reads or maps memory of one that is gone.
        let no_copies = [("UCX_TLS", "tcp,self"), ("OMPI_MCA_btl_vader_single_copy_mechanism", "none")];
        let variables = [&no_copies[..], &[("ENMASSE_TEST_VICTIM", victim)]].concat();
        mpirun.check(3, "death", &variables, &survivors, &[&of, "exited", "its connection closed"]);
    }
}

fn stall(mpirun: Mpirun) {
    let of = ["rank 2 on host ", "during all_reduce(sum) of 8 f32 #2: ", "it had not joined the operation after "];
    mpirun.check(3, "stall", &[], &[0, 1, 2], &of);
}

fn out_of_step(mpirun: Mpirun) {
    let of = "rank 0 runs barrier #2 while rank 1 runs all_reduce(sum) of 9 f32 #2";
    mpirun.check(2, "out of step", &[], &[0, 1], &[of]);
}

fn missing_library(mpirun: Mpirun) {
    let library = [("ENMASSE_MPI_LIBRARY", "/nowhere/libmpi.so.40")];
    let of =
        ["MPI cannot be used: on rank 0, ", " is missing: there is no /nowhere/libmpi.so.40 in ENMASSE_MPI_LIBRARY"];
    mpirun.check(2, "join", &library, &[0, 1], &of);
    let Ended { said, took, .. } = mpirun.run(2, 1, "join", &[("ENMASSE_MPI_LIBRARY", "/lib/libmpi")]);
    assert!(said.len() == 2 && took < SOON, "{took:?}");
    mpirun.check(2, "join", &[("ENMASSE_MPI_LIBRARY", "libmpi.so")], &[0, 1], &["which is not an absolute path"]);
}

/// The mpirun of one library, and the other library.
fn another_library(mpirun: Mpirun) {
    let (other, name) = match mpirun.need {
        Need::OpenMpi => (Need::Mpich, "MPICH"),
        _ => (Need::OpenMpi, "Open MPI"),
    };
    if test_support::mpirun(other).is_none() {
        return;
    }
    let of =
        [format!("to {name} "), "rank 0 is process 0 of 1: start the ranks with the mpirun of that library".into()];
    let Ended { said, output, .. } = mpirun.run(2, 1, "join the other", &[]);
    assert_eq!(said.len(), 2, "{output}");
    for (_, said) in said {
        assert!(of.iter().all(|part| said.contains(part)), "{said:?}");
    }
}

/// One rank.
fn rank(part: &str) -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    let (family, rank, ranks) = match (variable("OMPI_COMM_WORLD_RANK"), variable("OMPI_COMM_WORLD_SIZE")) {
        (Some(rank), Some(ranks)) => (MpiFamily::OpenMpi, rank, ranks),
        _ => (MpiFamily::Mpich, variable("PMI_RANK").expect("a rank"), variable("PMI_SIZE").expect("a size")),
    };
    let (rank, ranks): (usize, usize) = (rank.parse().expect("a number"), ranks.parse().expect("a number"));
    let ports = variable(PORTS).expect("the test sets it");
    let mut ports = ports.split(',').map(|port| port.parse::<u16>().expect("a port"));
    let address = format!("tcp://127.0.0.1:{}", ports.next().expect("a port"));
    let mut rendezvous = Rendezvous::tcp(&address, rank, ranks).expect("an address");
    rendezvous.more_ports = ports.collect();
    let to_a_node: usize = variable(NODE).expect("the test sets it").parse().expect("a number");
    rendezvous.node = Some((rank / to_a_node).to_string());
    rendezvous.transport = TransportChoice::Mpi(match (part, family) {
        ("join the other", MpiFamily::OpenMpi) => MpiFamily::Mpich,
        ("join the other", MpiFamily::Mpich) => MpiFamily::OpenMpi,
        _ => family,
    });
    if part == "algorithms" {
        rendezvous.options = GroupOptions { all_reduce: Algorithm::Direct.into(), ..GroupOptions::default() };
    }
    if part == "stall" {
        let timeout = Duration::from_secs(5);
        rendezvous.options = GroupOptions { timeout, stall_warning: timeout / 4, ..GroupOptions::default() };
    }
    let say = |words: &str| {
        let folder = PathBuf::from(std::env::var_os(SAID).expect("the test sets it"));
        fs::write(folder.join("new").with_extension(rank.to_string()), words).expect("a file");
        fs::rename(folder.join("new").with_extension(rank.to_string()), said_by(&folder, rank)).expect("a file");
        // A rank that ends early would take the others along.
        let victim = std::env::var("ENMASSE_TEST_VICTIM").ok();
        let began = Instant::now();
        let is_silent =
            |rank: &usize| victim.as_deref() != Some(&rank.to_string()) && !said_by(&folder, *rank).exists();
        while let Some(silent) = (0..ranks).find(is_silent) {
            assert!(began.elapsed() < SOON, "rank {silent} says nothing");
            thread::yield_now();
        }
    };
    let group = match rendezvous.join() {
        Ok(group) => group,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    if part == "collectives" {
        play_all(&group);
        say(&group.ways()[0]);
        return ExitCode::SUCCESS;
    }
    if part == "algorithms" {
        let nodes: Vec<Vec<usize>> =
            (0..ranks).step_by(to_a_node).map(|rank| (rank..rank + to_a_node).collect()).collect();
        for algorithm in Algorithm::ALL {
            [0, 1, 999].into_iter().for_each(|len| cases::algorithms::same_bits(&group, algorithm, &nodes, 3, len));
            // Several chunks of a round, where a rank is a node.
            cases::algorithms::same_bits_of_f32(&group, algorithm, &nodes, 3_500_001);
        }
        for to in Compression::ALL {
            [0, 1, 999, 300_001].into_iter().for_each(|len| cases::compressed::same_bits(&group, to, &nodes, 3, len));
        }
        say("done");
        return ExitCode::SUCCESS;
    }
    let cause = play_failure(part, &group);
    say(&cause.to_string());
    ExitCode::FAILURE
}

/// The cases of the other transports.
fn play_all(group: &Group) {
    for (seed, len) in [0, 1, 31, 1000, 2049, 4999].into_iter().enumerate() {
        for reduction in [Reduction::Sum, Reduction::Max, Reduction::Min] {
            cases::same_bits(group, seed as u64, len, reduction);
        }
        for shards in [group.world_size(), 6, 9] {
            cases::sums_over_shards(group, Shards { shards, len, gap: 3, seed: seed as u64 });
        }
    }
    cases::same_bits(group, 7, 600_001, Reduction::Sum);
    for shards in [4, 16] {
        let case = Shards { shards, len: 600_001, gap: 3, seed: 7 };
        cases::sums_of(group, case, |x| x as f32, |x| x.to_bits().into());
    }
    [0, 1, 100_000, 1_100_001].into_iter().for_each(|len| cases::copies(group, len));
    [0, 1, 2048, 65_537, 200_001].into_iter().for_each(|len| cases::every_operation(group, len));
    [1, 60_000, 2_500_001].into_iter().for_each(|len| cases::on_lent_memory(group, len));
    for (seed, len) in [0, 1, 699].into_iter().enumerate() {
        cases::exchanges::of_every_type(group, seed as u64, len, group.world_size() - 1);
    }
    cases::started_in_order(group);
    if group.world_size() == 4 {
        cases::groups_of_groups(group);
        cases::two_groups_at_once(group);
    }
    cases::exchanges::between_two(group, 300_001);
}

/// Parts that end with a cause.
fn play_failure(part: &str, group: &Group) -> std::sync::Arc<enmasse_comm::Cause> {
    group.barrier().expect("all are here");
    let rank = group.rank();
    match part {
        "death" => {
            let victim = std::env::var("ENMASSE_TEST_VICTIM").expect("the test sets it") == rank.to_string();
            let mut data = vec![1f32; 300_000];
            for step in 0.. {
                if let Err(cause) = group.all_reduce(&mut data) {
                    return cause;
                }
                if victim && step == 5 {
                    let _ = kill_process(getpid(), Signal::KILL);
                }
            }
            unreachable!("the group fails")
        }
        "stall" if rank == 2 => {
            let (failed, heard) = channel();
            group.observe(move |event| {
                // The rank itself may be gone.
                let _ = failed.send(event.clone());
            });
            heard.recv_timeout(DEADLINE).expect("the group fails");
            group.cause().expect("it has failed")
        }
        "stall" => {
            let cause = group.all_reduce(&mut [1f32; 8]).expect_err("rank 2 does not come");
            assert_eq!(cause.kind, CauseKind::Timeout);
            cause
        }
        "out of step" if rank == 0 => group.barrier().expect_err("rank 1 does something else"),
        "out of step" => group.all_reduce(&mut [0f32; 9]).expect_err("rank 0 does something else"),
        other => panic!("no part {other:?}"),
    }
}
