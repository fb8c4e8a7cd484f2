//! The workers' environment, and the reports of their ends.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use enmasse_comm::TOKEN_BYTES;
use enmasse_launch::{Binding, Job, Nodes, Outcome, Output, Status, Store, launch, launch_telling};
use test_support::{Need, logged};

use crate::parts::{Launcher, rank_job};

pub const TESTS: &[(&str, fn())] = &[
    ("all_succeed", all_succeed),
    ("starts_and_ends_are_logged", starts_and_ends_are_logged),
    ("failures_name_the_culprit", failures_name_the_culprit),
    ("causes_name_the_culprit", causes_name_the_culprit),
    ("a_killed_rank_is_named_whoever_notices", a_killed_rank_is_named_whoever_notices),
    ("usage_is_said_once", usage_is_said_once),
    ("output_goes_where_it_should", output_goes_where_it_should),
    ("launches_that_cannot_be", launches_that_cannot_be),
    ("the_environment_is_torchruns", the_environment_is_torchruns),
    ("nodes_are_numbered_by_hand", nodes_are_numbered_by_hand),
    ("failures_are_tried_again", failures_are_tried_again),
    ("a_program_spawns_itself", a_program_spawns_itself),
    ("ranks_spawn_no_ranks", ranks_spawn_no_ranks),
    ("cores_are_divided", cores_are_divided),
    ("memory_kills_are_told_apart", memory_kills_are_told_apart),
    ("local_ranks_as_arguments", local_ranks_as_arguments),
    ("tokens_arrive_and_differ", tokens_arrive_and_differ),
    ("the_store_is_where_it_is_said", the_store_is_where_it_is_said),
    ("pytorch_runs", pytorch_runs),
];

/// Waits for ever, like a rank that does not notice that its peer has failed.
const HANG: &str = "exec tail -f /dev/null";

fn shell(ranks: usize, script: &str) -> Job {
    Job { output: Output::RankZero, ..Job::new("sh", ranks).args(["-c", script]) }
}

fn all_succeed() {
    for ranks in [1, 2, 5] {
        assert_eq!(launch(&shell(ranks, "exit 0")).unwrap(), Outcome::Done);
    }
}

fn starts_and_ends_are_logged() {
    logged("");
    launch(&shell(2, &format!("test $RANK = 1 && exit 3; {HANG}"))).unwrap();
    let check = |text: &str, expected: usize| assert_eq!(logged(text).len(), expected, "{text}");
    check("INFO enmasse_launch::workers: rank 0 runs as process ", 1);
    check("INFO enmasse_launch::workers: rank 1 runs as process ", 1);
    check("INFO enmasse_launch::supervise: rank 1 exited with code 3", 1);
    check("INFO enmasse_launch::supervise: the ranks are asked to stop by signal 15", 1);
    check("INFO enmasse_launch::supervise: rank 0 was stopped by the launcher", 1);
}

fn failures_name_the_culprit() {
    let check = |script: &str, rank: usize, status: Status, stderr: &[&str]| {
        let Outcome::Failed(failure) = launch(&shell(3, &format!("{script}; {HANG}"))).unwrap() else {
            panic!("{script}: no failure")
        };
        let found = (failure.rank, failure.status, failure.stderr.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found, (Some(rank), Some(status), stderr.to_vec()), "{script}");
    };
    check("test $RANK = 1 && { echo boom >&2; exit 3; }", 1, Status::Code(3), &["boom"]);
    check("test $RANK = 2 && kill -KILL $$", 2, Status::Signal(9), &[]);
    check("test $RANK = 0 && kill -TERM $$", 0, Status::Signal(15), &[]);
    // A rank that succeeded before is not to blame.
    check("test $RANK = 0 && exit 0; test $RANK = 1 && exit 1", 1, Status::Code(1), &[]);
}

fn causes_name_the_culprit() {
    let folder = tempfile::tempdir().unwrap();
    let check = |what: &str, rank: usize, status: Status, cause: &str| {
        let job = Job { output: Output::RankZero, ..rank_job(3, what, folder.path()) };
        let outcome = launch(&job).unwrap();
        assert_eq!(outcome.exit_code(), 1);
        let Outcome::Failed(failure) = outcome else { panic!("{what}: no failure") };
        let found = (failure.rank, failure.status, failure.cause.map(|cause| cause.to_string()));
        assert_eq!(found, (Some(rank), Some(status), Some(cause.into())), "{what}");
    };
    check("fail with a cause", 1, Status::Code(1), "rank 1 on host h failed: no such folder");
    check("blame rank 2", 2, Status::Stopped, "rank 2 on host h fell silent: no heartbeat");
}

/// The others notice through their group, and may end before the launcher looks.
fn a_killed_rank_is_named_whoever_notices() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        let job = rank_job(4, "work until rank 2 is killed", folder.path());
        let job = Job { store: Store::Inherited, output: Output::RankZero, ..job };
        let Outcome::Failed(failure) = launch(&job).unwrap() else { panic!("no failure") };
        assert_eq!((failure.rank, failure.status), (Some(2), Some(Status::Signal(9))));
        // Ranks that were stopped before they noticed report nothing; no rank blames another.
        assert!(failure.cause.is_none_or(|cause| cause.rank == Some(2)));
    }
    let job = rank_job(4, "work until rank 2 panics", folder.path()).variable("RUST_BACKTRACE", "0");
    let job = Job { store: Store::Inherited, output: Output::RankZero, ..job };
    let Outcome::Failed(failure) = launch(&job).unwrap() else { panic!("no failure") };
    assert_eq!(failure.rank, Some(2));
    assert!(failure.stderr.iter().any(|line| line.contains("a defect")), "{failure}");
}

fn usage_is_said_once() {
    let outcome = launch(&shell(2, "test $RANK = 1 && { echo 'error: --batch 0' >&2; exit 2; }; exit 0")).unwrap();
    assert_eq!((outcome.exit_code(), outcome.report().as_deref()), (2, Some("error: --batch 0")));
}

fn output_goes_where_it_should() {
    let check = |output: &str, stdout: &[&str], stderr: &[&str]| {
        let script = "echo out $RANK; echo err $RANK >&2";
        let launcher = Launcher::start(2, output, Duration::from_millis(50), script);
        assert_eq!(launcher.lines_to_end(), stdout, "{output}");
        let (code, text) = launcher.finish();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!((code, lines.as_slice()), (Some(0), stderr), "{output}");
    };
    check("rank zero", &["out 0"], &["err 0"]);
    check("rank zero and errors", &["out 0"], &["err 0", "err 1"]);
    check("all", &["out 0", "out 1"], &["err 0", "err 1"]);
}

fn launches_that_cannot_be() {
    let check = |job: Job, expected: &str| assert_eq!(launch(&job).unwrap_err().to_string(), expected);
    check(shell(0, ""), "cannot launch 0 processes: ask for at least 1");
    check(
        Job::new("/no/such/program", 2),
        "cannot start \"/no/such/program\" as rank 0: No such file or directory (os error 2): check that it exists, \
         as well as the interpreter in a script's first line",
    );
}

fn the_environment_is_torchruns() {
    let folder = tempfile::tempdir().unwrap();
    let script = "env > \"$FOLDER\"/$RANK";
    let job = shell(2, script)
        .variable("FOLDER", folder.path())
        .variable("OMP_NUM_THREADS", "")
        // Leftovers of an outer launcher.
        .variable("RANK", "7")
        .variable("ENMASSE_STORE_FD", "99");
    assert_eq!(launch(&job).unwrap(), Outcome::Done);
    let mut ports = Vec::new();
    for rank in ["0", "1"] {
        let text = fs::read_to_string(folder.path().join(rank)).unwrap();
        let found = |name: &str| text.lines().filter_map(|line| line.split_once('=')).find(|(n, _)| *n == name);
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(found(name).map(|(_, value)| value), expected, "{name} of rank {rank}");
        };
        check("RANK", Some(rank));
        check("WORLD_SIZE", Some("2"));
        check("LOCAL_RANK", Some(rank));
        check("LOCAL_WORLD_SIZE", Some("2"));
        check("GROUP_RANK", Some("0"));
        check("GROUP_WORLD_SIZE", Some("1"));
        check("ROLE_RANK", Some(rank));
        check("ROLE_WORLD_SIZE", Some("2"));
        check("ROLE_NAME", Some("default"));
        check("MASTER_ADDR", Some("127.0.0.1"));
        check("TORCHELASTIC_RESTART_COUNT", Some("0"));
        check("TORCHELASTIC_MAX_RESTARTS", Some("0"));
        check("TORCHELASTIC_USE_AGENT_STORE", Some("False"));
        check("OMP_NUM_THREADS", Some("1"));
        check("TORCH_NCCL_ASYNC_ERROR_HANDLING", Some("1"));
        check("ENMASSE_STORE_FD", None);
        ports.push((found("MASTER_PORT").unwrap().1.to_owned(), found("TORCHELASTIC_RUN_ID").unwrap().1.to_owned()));
    }
    assert_eq!(ports[0], ports[1]);
}

/// A node's ranks follow those of the nodes before it.
fn nodes_are_numbered_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR \
                  $MASTER_PORT $TORCHELASTIC_RUN_ID ${ENMASSE_TOKEN_FD-none} > \"$FOLDER\"/$RANK";
    for node in 0..3 {
        let nodes = Nodes { rank: node, count: 3, master: Some(("localhost".into(), 29511)) };
        let job = shell(2, script).variable("FOLDER", folder.path());
        let job = Job { nodes, run_id: Some("tale".into()), ..job };
        assert_eq!(launch(&job).unwrap(), Outcome::Done);
    }
    for rank in 0..6 {
        let found = fs::read_to_string(folder.path().join(rank.to_string())).unwrap();
        assert_eq!(found, format!("{rank} 6 {} 2 {} 3 localhost 29511 tale none\n", rank % 2, rank / 2));
    }
    let job = Job { nodes: Nodes { rank: 3, count: 3, master: None }, ..shell(2, script) };
    let expected = "node rank 3 of 3 nodes is impossible: node ranks start at 0";
    assert_eq!(launch(&job).unwrap_err().to_string(), expected);
}

/// Every rank starts again, and finds the attempt in its variables.
fn failures_are_tried_again() {
    let check = |max_restarts: usize, expected: Result<(), i32>| {
        let script = "test $TORCHELASTIC_MAX_RESTARTS = 2 -o $RANK = 0 || exit 9
                      test $TORCHELASTIC_RESTART_COUNT = 2 && exit 0; test $RANK = 1 && exit 3; exec tail -f /dev/null";
        let mut told = Vec::new();
        let job = Job { max_restarts, ..shell(2, script) };
        let outcome = launch_telling(&job, |failure, attempt| told.push((failure.rank, failure.status, attempt)));
        let code = i32::from(outcome.unwrap().exit_code());
        assert_eq!(if code == 0 { Ok(()) } else { Err(code) }, expected);
        assert_eq!(told.len(), max_restarts.min(2));
        for (index, told) in told.into_iter().enumerate() {
            let code = if max_restarts == 2 { 3 } else { 9 };
            assert_eq!(told, (Some(1), Some(Status::Code(code)), index + 1));
        }
    };
    check(0, Err(9));
    check(1, Err(9));
    check(2, Ok(()));
}

/// Read from the kernel, not from the launcher.
fn cores_are_divided() {
    let available = rustix::thread::sched_getaffinity(None).unwrap().count() as usize;
    let folder = tempfile::tempdir().unwrap();
    let ranks = available.max(2);
    let script = "{ grep Cpus_allowed_list /proc/self/status | tail -c +20; echo $OMP_NUM_THREADS; } > $FOLDER/$RANK";
    let job = shell(ranks, script).variable("FOLDER", folder.path()).variable("OMP_NUM_THREADS", "");
    assert_eq!(launch(&Job { binding: Binding::Exclusive, ..job.clone() }).unwrap(), Outcome::Done);
    let read = |rank: usize| fs::read_to_string(folder.path().join(rank.to_string())).unwrap();
    let mut found: Vec<_> = (0..ranks).map(read).collect();
    found.sort_unstable();
    found.dedup();
    if available == ranks {
        // One core each, all different.
        assert_eq!(found.len(), ranks, "{found:?}");
        assert!(found.iter().all(|text| text.ends_with("\n1\n") && !text.contains(['-', ','])), "{found:?}");
    }
    assert_eq!(launch(&Job { binding: Binding::Free, ..job }).unwrap(), Outcome::Done);
    assert!(read(0).ends_with("\n1\n") && read(0) == read(1), "{}", read(0));
}

/// A real kill by the kernel, if this user may create a control group for it.
fn memory_kills_are_told_apart() {
    let group = Path::new("/sys/fs/cgroup/memory").join(format!("enmasse-test-{}", std::process::id()));
    let limited = fs::create_dir(&group).and_then(|()| fs::write(group.join("memory.limit_in_bytes"), "64M"));
    if limited.is_err() {
        test_support::skip(Need::ControlGroup, "no control group can be made");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let launch = "echo $$ > \"$1\"/cgroup.procs && shift && exec \"$@\"";
    let eat = "test $RANK = 0 && exec tail -f /dev/null; echo eating >&2; exec \"$EATER\" as-rank 'eat memory' /";
    let ended = Command::new("sh")
        .args(["-c", launch, "sh"])
        .args([group.as_os_str(), program.as_os_str()])
        .args(["as-launcher", "2", "all", "100", eat])
        .env("EATER", &program)
        .output();
    // The group is removed as soon as it is empty, whether or not the test passes.
    let removed = fs::remove_dir(&group);
    let ended = ended.unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(137), "{text}");
    assert!(text.contains("rank 1 on host "), "{text}");
    assert!(text.contains("was killed by the kernel for memory: signal 9 (SIGKILL)\n"), "{text}");
    assert!(text.ends_with("  | eating\n"), "{text}");
    removed.unwrap();
}

/// Each rank is this program, which proceeds to the call that started it.
fn a_program_spawns_itself() {
    let check = |what: &str, expected: &[&str]| {
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args(["as-spawner", what]).env("RUST_BACKTRACE", "0").output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let lines: Vec<String> = text.lines().map(|line| line.replace(&host, "H")).collect();
        assert_eq!(lines, expected, "{what}: {}", String::from_utf8_lossy(&ended.stderr));
    };
    check("succeeds", &["one alone", "the sum is 3", "well", "well"]);
    check("fails", &["one alone", "well", "rank 1 on host H failed: no more disk"]);
    check("panics", &["one alone", "well", "rank 1 on host H failed: panicked: a defect"]);
}

fn ranks_spawn_no_ranks() {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["as-spawner", "succeeds"]).env("RANK", "1").env("WORLD_SIZE", "2");
    let text = String::from_utf8(command.env("MASTER_ADDR", "h").env("MASTER_PORT", "1").output().unwrap().stdout);
    for line in text.unwrap().lines() {
        assert!(line.starts_with("this process is rank 1 of 2 already (RANK and WORLD_SIZE are set)"), "{line}");
    }
}

/// The arguments of a script that reads no variables.
fn local_ranks_as_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let job =
        Job::new("sh", 2).args(["-c", "echo \"$*\" > \"$FOLDER\"/$RANK", "sh"]).local_rank_argument().args(["-x"]);
    assert_eq!(launch(&job.variable("FOLDER", folder.path())).unwrap(), Outcome::Done);
    for rank in ["0", "1"] {
        assert_eq!(fs::read_to_string(folder.path().join(rank)).unwrap(), format!("--local-rank={rank} -x\n"));
    }
}

fn tokens_arrive_and_differ() {
    let tokens = || -> Vec<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(launch(&rank_job(2, "keep the token", folder.path())).unwrap(), Outcome::Done);
        ["0", "1"].iter().map(|rank| fs::read(folder.path().join(rank)).unwrap()).collect()
    };
    let (first, second) = (tokens(), tokens());
    assert_eq!((first[0].len(), &first[0]), (TOKEN_BYTES, &first[1]));
    assert_ne!(first[0], second[0]);
}

fn the_store_is_where_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let job = rank_job(2, "meet on the inherited listener", folder.path());
    let job = Job { store: Store::Inherited, ..job };
    assert_eq!(launch(&job).unwrap(), Outcome::Done);
    assert_eq!(fs::read_to_string(folder.path().join("greeting")).unwrap(), "from rank 1");
    let job = Job { store: Store::BoundByRankZero, ..rank_job(2, "bind the port", folder.path()) };
    assert_eq!(launch(&job).unwrap(), Outcome::Done);
}

/// An unchanged PyTorch program, if PyTorch is installed.
fn pytorch_runs() {
    let Some(python) = test_support::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "
import os, torch, torch.distributed as dist
dist.init_process_group('gloo')
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
open(os.path.join(os.environ['FOLDER'], str(dist.get_rank())), 'w').write(str(value.item()))
dist.destroy_process_group()
";
    let job = Job::new(python, 3).args(["-c", script]).variable("FOLDER", folder.path());
    assert_eq!(launch(&job).unwrap(), Outcome::Done);
    for rank in ["0", "1", "2"] {
        assert_eq!(fs::read_to_string(folder.path().join(rank)).unwrap(), "6.0");
    }
}
