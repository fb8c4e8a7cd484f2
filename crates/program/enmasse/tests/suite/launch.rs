//! `enmasse launch` as users run it: any program, and a real PyTorch script.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Ended, Running, enmasse, finish, plain_environment, program};
use rustix::process::Signal;
use test_support::Need;

/// Runs `enmasse launch` with these words in a folder.
fn launch(folder: &Path, words: &[&str]) -> Ended {
    finish(program().current_dir(folder).arg("launch").args(words))
}

#[test]
fn programs_and_their_codes() {
    let folder = tempfile::tempdir().unwrap();
    let check = |words: &[&str], code: i32, stdout: &[&str], stderr: &[&str]| {
        let ended = launch(folder.path(), words);
        assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
        let mut lines: Vec<&str> = ended.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, stdout, "{words:?}");
        for part in stderr {
            assert!(ended.stderr.contains(part), "{words:?}: {part:?} is not in {}", ended.stderr);
        }
        if code == 0 && stderr.is_empty() {
            assert_eq!(ended.stderr, "", "{words:?}");
        }
    };
    let echo = "echo $RANK of $WORLD_SIZE";
    check(&["sh", "-c", echo], 0, &["0 of 1"], &[]);
    check(&["-n", "2", "sh", "-c", echo], 0, &["0 of 2", "1 of 2"], &[]);
    check(&["--nproc_per_node=2", "--", "sh", "-c", echo], 0, &["0 of 2", "1 of 2"], &[]);
    let waits = "node 1 of 2 waits for node 0 at 127.0.0.1:29500, up to 600 s; it is started with:\n  enmasse launch ";
    check(&["-n", "2", "--nnodes", "2", "--node_rank", "1", "sh", "-c", echo], 0, &["2 of 4", "3 of 4"], &[waits]);
    check(&["--standalone", "-n", "2", "sh", "-c", "exit 7"], 7, &[], &["error: rank ", "exited with code 7"]);
    let killed = ["rank 0 on host ", "was killed by signal 11 (SIGSEGV)", "last lines", "\n  | last word"];
    check(&["sh", "-c", "echo last word >&2; kill -SEGV $$"], 139, &[], &killed);
    let again = ["error: rank 0", "exited with code 3", "\nrestarting all ranks: attempt 1 of 2\n"];
    let once = "test $TORCHELASTIC_RESTART_COUNT = 1 || exit 3";
    check(&["--max-restarts", "2", "sh", "-c", once], 0, &[], &again);
    check(&["--nodes", "2", "sh"], 2, &[], &["error: unexpected argument '--nodes' found; see --help\n"]);
    check(&["--nnodes", "1:2", "sh"], 2, &[], &["set where the nodes meet"]);
    let nothing = "error: --local-ranks-filter 2,9: would show nothing: the local ranks are 0 to 1\n";
    check(&["-n", "2", "--local-ranks-filter", "9,2", "true"], 2, &[], &[nothing]);
    check(&["/no/such/program"], 1, &[], &["error: cannot start \"/no/such/program\" as rank 0: "]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let taken_port = format!("error: cannot listen on 127.0.0.1 port {port}, where rank 0 opens the store: ");
    check(&["--master-port", &port, "true"], 1, &[], &[&taken_port]);
}

/// Without PyTorch's `@record`, like most programs.
#[test]
fn an_unrecorded_exception_is_on_the_first_line() {
    let traceback =
        "echo 'Traceback (most recent call last):\n  File \"a.py\", line 7, in f\nValueError: no\nand more' >&2; exit";
    let first_line = |code: &str| {
        let ended = enmasse(&["launch", "sh", "-c", &format!("{traceback} {code}")]);
        assert_eq!(ended.code, Some(code.parse().unwrap()), "{ended:?}");
        ended.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default().to_owned()
    };
    let line = first_line("1");
    assert!(line.starts_with("error: rank 0 on host ") && line.ends_with(" failed: ValueError: no"), "{line}");
    // A program that exits with another code has caught the exception.
    let line = first_line("3");
    assert!(line.ends_with(" exited with code 3"), "{line}");
}

/// In a new network namespace the loopback interface exists but is down. Listening works there all the same.
#[test]
fn ranks_that_could_never_meet_are_not_started() {
    let namespace = ["--user", "--map-root-user", "--net"];
    if Command::new("unshare").args(namespace).arg("true").status().map_or(true, |status| !status.success()) {
        test_support::skip(Need::Namespaces, "no network namespace can be made");
        return;
    }
    let launch = |ranks: &str| {
        let mut command = Command::new("unshare");
        plain_environment(&mut command);
        let words = [env!("CARGO_BIN_EXE_enmasse"), "launch", "-n", ranks, "sh", "-c", "echo ran"];
        finish(command.args(namespace).args(words))
    };
    let ended = launch("2");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("error: cannot reach 127.0.0.1, where the ranks meet: "), "{ended:?}");
    assert_eq!(launch("1").well().stdout, "ran\n");
}

#[test]
fn signals_give_their_codes() {
    // SIGHUP is left out: the tests may run with it ignored, as under nohup.
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let words = ["launch", "-n", "2", "sh", "-c", "echo ready; exec tail -f /dev/null"];
        let mut running = Running::start(program().args(words));
        assert_eq!([running.line(), running.line()], ["ready\n", "ready\n"]);
        running.signal(signal);
        assert_eq!(running.finish().code, Some(code));
    }
}

#[test]
fn what_would_be_done() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["-n", "2", "--master-port", "29555", "--rdzv-id", "tale", "--numa-binding", "none"];
    let ended = launch(folder.path(), &[&words[..], &["--dry-run", "--", "sh", "-c", "echo $RANK"]].concat()).well();
    let expected = "# 2 ranks on node 0 of 1, 2 in all; rank 0 opens the store at 127.0.0.1:29555\n\
                    # rank 0\nsh -c 'echo $RANK'\n# rank 1\nsh -c 'echo $RANK'\n";
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), (expected, ""));
    let ended = launch(folder.path(), &[&words[..], &["--print-env", "false"]].concat()).well();
    let rank_1 = ended.stdout.split("# rank 1\n").nth(1).unwrap();
    let of_torchrun = [
        "GROUP_RANK=0",
        "GROUP_WORLD_SIZE=1",
        "LOCAL_RANK=1",
        "LOCAL_WORLD_SIZE=2",
        "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=29555",
        "OMP_NUM_THREADS=1",
        "RANK=1",
        "ROLE_NAME=default",
        "ROLE_RANK=1",
        "ROLE_WORLD_SIZE=2",
        "TORCHELASTIC_ERROR_FILE=''",
        "TORCHELASTIC_MAX_RESTARTS=0",
        "TORCHELASTIC_RESTART_COUNT=0",
        "TORCHELASTIC_RUN_ID=tale",
        "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_USE_AGENT_STORE=False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "WORLD_SIZE=2",
    ];
    let found: Vec<&str> = rank_1.lines().filter(|line| !line.starts_with("OMP_NUM_THREADS")).collect();
    let expected: Vec<&str> = of_torchrun.into_iter().filter(|line| !line.starts_with("OMP_NUM_THREADS")).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_old_launcher_passes_local_ranks() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("show"), "#!/bin/sh\necho $RANK \"$@\"\n").unwrap();
    let check = |launcher: &[&str], expected: [&str; 2]| {
        let words = [launcher, &["--nproc_per_node=2", "sh", "show", "-x"]].concat();
        let words: Vec<&str> = words.into_iter().collect();
        let ended = finish(program().current_dir(folder.path()).args(words)).well();
        let mut lines: Vec<&str> = ended.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, expected, "{launcher:?}");
    };
    check(&["launch"], ["0 -x", "1 -x"]);
    check(&["launch", "--use_env"], ["0 -x", "1 -x"]);
    check(&["torch.distributed.launch", "--use_env"], ["0 -x", "1 -x"]);
    let words = ["--nproc_per_node=2", "./show", "-x"];
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path().join("show"), permissions).unwrap();
    // `--use_env=False`, as Python writes it, was refused.
    for launcher in [&["torch.distributed.launch"][..], &["launch", "--use-env=false"], &["launch", "--use_env=False"]]
    {
        let ended = finish(program().current_dir(folder.path()).args(launcher).args(words)).well();
        let mut lines: Vec<&str> = ended.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["0 --local-rank=0 -x", "1 --local-rank=1 -x"], "{launcher:?}");
    }
}

/// A launcher inside a launched rank reports to the outer one.
#[test]
fn error_files_travel_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("error.json");
    let script = r#"printf '{"message": {"message": "ValueError: no"}}' > "$TORCHELASTIC_ERROR_FILE"; exit 4"#;
    let ended = finish(program().env("TORCHELASTIC_ERROR_FILE", &file).args(["launch", "sh", "-c", script]));
    assert_eq!(ended.code, Some(4));
    assert!(
        ended.stderr.starts_with("error: rank 0 on host ") && ended.stderr.contains(": ValueError: no\n"),
        "{ended:?}"
    );
    let record: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let message = &record["message"];
    assert!(message["message"].as_str().unwrap().ends_with(": ValueError: no"), "{record}");
    assert_eq!(message["errorCode"], 4);
    assert!(message["extraInfo"]["timestamp"].as_str().unwrap().parse::<u64>().unwrap() > 1 << 30, "{record}");
}

const TORCH: &str = "
import os, sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group('gloo')
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    sys.stdout.write(' '.join([str(dist.get_rank()), str(value.item()), *sys.argv[1:]]) + '\\n')
    if 'fail' in sys.argv and dist.get_rank() == 1:
        raise ValueError('no such sample')
    dist.all_reduce(value)
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
";

/// The same script, unmodified, as a file, as a module, and on two nodes.
#[test]
fn pytorch_scripts_run_unmodified() {
    let Some(python) = test_support::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("train.py"), TORCH).unwrap();
    let run = |words: &[&str]| {
        let mut command = program();
        command.env("PYTHON_EXEC", &python).current_dir(folder.path()).arg("launch").args(words);
        command
    };
    let check = |ended: &[Ended], expected: &[&str]| {
        let mut lines: Vec<&str> = ended.iter().flat_map(|ended| ended.stdout.lines()).collect();
        lines.sort_unstable();
        assert_eq!(lines, expected, "{ended:?}");
    };
    check(&[finish(&mut run(&["-n", "2", "train.py", "--lr", "1"])).well()], &["0 3.0 --lr 1", "1 3.0 --lr 1"]);
    check(&[finish(&mut run(&["-n", "2", "-m", "train"])).well()], &["0 3.0", "1 3.0"]);
    let port = test_support::free_port().to_string();
    let node = |rank: &str| {
        let words = ["-n", "2", "--nnodes", "2", "--node-rank", rank, "--master-port", &port, "train.py"];
        Running::start(&mut run(&words))
    };
    let nodes = [node("0"), node("1")].map(|node| node.finish().well());
    check(&nodes, &["0 10.0", "1 10.0", "2 10.0", "3 10.0"]);
    // The exception of the rank that raised it comes first, not the others' lost connections.
    let ended = finish(&mut run(&["-n", "3", "--log-dir", "logs", "--redirects", "3", "train.py", "fail"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let error = ended.stderr.lines().find(|line| line.starts_with("error: ")).unwrap();
    assert!(error.starts_with("error: rank 1 on host ") && error.ends_with(": ValueError: no such sample"), "{error}");
    assert!(
        ended.stderr.lines().any(|line| line.starts_with("  | ") && line.ends_with("ValueError: no such sample")),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("/attempt_0/1\n"), "{}", ended.stderr);
}

/// Ranks of enmasse under its own launcher.
#[test]
fn training_under_the_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let data = crate::common::images(folder.path(), 10).display().to_string();
    let run = |name: &str| folder.path().join(name).display().to_string();
    let fixed = ["train", &data, "--model", "mlp", "--size", "8", "--batch", "2", "--epochs", "2", "--json", "--out"];
    let own = env!("CARGO_BIN_EXE_enmasse");
    let alone = enmasse(&[&fixed[..], &[&run("a"), "--devices", "cpu:2"]].concat()).well();
    let launched = enmasse(&[&["launch", "-n", "2", own], &fixed[..], &[&run("b")]].concat()).well();
    let figures = |ended: &Ended| -> Vec<String> {
        let epochs = ended.json().into_iter().filter(|line| line["event"] == "epoch");
        epochs.map(|epoch| format!("{} {}", epoch["train_loss"], epoch["val_loss"])).collect()
    };
    assert_eq!(figures(&alone), figures(&launched));
    assert_eq!(figures(&alone).len(), 2);
}

/// The other node does not come: the launcher says at once how to start it, and its ranks wait as long as they are told to.
#[test]
fn a_node_that_waits_for_another_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = crate::common::images(folder.path(), 10).display().to_string();
    let port = test_support::free_port().to_string();
    let own = env!("CARGO_BIN_EXE_enmasse");
    let flags = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", &port];
    let conf = ["--rdzv-conf", "join_timeout=0.5"];
    let run = folder.path().join("run").display().to_string();
    let train = [own, "train", &data, "--model", "mlp", "--out", &run];
    let ended = launch(folder.path(), &[&flags[..], &conf, &train].concat());
    assert_eq!((ended.code, Path::new(&run).exists()), (Some(1), false), "{ended:?}");
    let first: Vec<&str> = ended.stderr.lines().take(2).collect();
    let waits = format!("node 0 of 2 waits for node 1 at 127.0.0.1:{port}, up to 0.5 s; start it with:");
    let command = format!(
        "  enmasse launch --nnodes 2 --node-rank 1 {} {} {}",
        flags[2..].join(" "),
        conf.join(" "),
        train.join(" ")
    );
    assert_eq!(first, [waits, command]);
    let missing = format!("rank 1 of 2 did not join at 127.0.0.1:{port} within 0.5 s");
    assert!(ended.stderr.contains(&missing), "{}", ended.stderr);
}
