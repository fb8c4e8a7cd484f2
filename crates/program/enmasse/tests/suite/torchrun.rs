//! Ranks started by the real torchrun, with one agent and with two, and restarted after a failure.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Ended, Running, assert_whole, enmasse, finish, images, metrics, plain_environment};

/// `torchrun` with these options, if it is installed.
fn torchrun(options: &[&str]) -> Option<Command> {
    let mut command = Command::new(test_support::pytorch()?);
    plain_environment(&mut command);
    // No socket may be reachable from other machines.
    command.args(["-m", "torch.distributed.run"]).args(options);
    Some(command)
}

const ENMASSE: &str = env!("CARGO_BIN_EXE_enmasse");

/// The words of a run on `data` into `run`.
fn train(data: &Path, run: &Path, others: &[&str]) -> Vec<String> {
    let fixed = ["--model", "mlp", "--size", "8", "--batch", "2", "--threads", "1", "--json"];
    let mut words = vec!["train".to_owned(), data.display().to_string(), "--out".to_owned(), run.display().to_string()];
    words.extend(fixed.iter().chain(others).map(|word| word.to_string()));
    words
}

/// Every loss of a run, digit by digit.
fn losses(run: &Path) -> Vec<String> {
    metrics(run).iter().map(|epoch| format!("{} {}", epoch["train_loss"], epoch["val_loss"])).collect()
}

#[test]
fn one_agent() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let own = folder.path().join("own");
    enmasse(&train(&data, &own, &["--epochs", "2", "--devices", "cpu:2"])).well();
    let port = test_support::free_port().to_string();
    // The agent's store is found in both ways; neither passes a token.
    let ways: [&[&str]; 2] = [&["--standalone"], &["--master_addr", "127.0.0.1", "--master_port", &port]];
    for (number, way) in ways.into_iter().enumerate() {
        let run = folder.path().join(format!("run{number}"));
        let Some(mut command) = torchrun(&[way, &["--nproc_per_node", "2", "--no_python", ENMASSE]].concat()) else {
            return;
        };
        let ended = finish(command.args(train(&data, &run, &["--epochs", "2"]))).well();
        assert_eq!(ended.json()[0]["world_size"], 2);
        assert_eq!(losses(&run), losses(&own), "{way:?}");
        assert_whole(&run);
        assert!(!run.join(".token").exists());
    }

    // One program after another is not a restart: the second run is separate.
    let script = format!("{ENMASSE} train \"$@\" && exec {ENMASSE} train \"$@\"");
    let Some(mut command) = torchrun(&["--standalone", "--nproc_per_node", "2", "--no_python", "sh", "-c", &script])
    else {
        return;
    };
    let data = data.display().to_string();
    let words =
        ["sh", &data, "--model", "mlp", "--size", "8", "--batch", "2", "--threads", "1", "--epochs", "1", "--json"];
    let ended = finish(command.args(words).current_dir(folder.path())).well();
    let runs: Vec<_> =
        ended.json().into_iter().filter_map(|line| Some(line.get("run")?.as_str()?.to_owned())).collect();
    assert!(runs.len() == 2 && runs[0] != runs[1], "{runs:?}");
}

/// Regression test: the restarted job took the newest run of anybody for its own.
#[test]
fn a_restarted_job_without_a_name_finds_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let words = |run: &str, epochs: &str| train(&data, Path::new(run), &["--epochs", epochs]);
    let in_folder = |command: &mut Command| finish(command.current_dir(folder.path())).well();
    in_folder(Command::new(ENMASSE).args(words("runs/zoo", "1")).args(["--devices", "cpu:1"]));
    let zoo = folder.path().join("runs/zoo/checkpoints/last.safetensors");
    let tomorrow = std::time::SystemTime::now() + std::time::Duration::from_secs(86400);
    fs::File::options().write(true).open(zoo).unwrap().set_modified(tomorrow).unwrap();

    let script = "if [ -d failed ]; then exec \"$@\" --epochs 2; fi; \"$@\" --epochs 1 || exit 4
        if [ $RANK = 0 ]; then exec tail -f /dev/null; fi; mkdir failed; exit 3";
    let port = test_support::free_port().to_string();
    let options =
        ["--master_addr", "127.0.0.1", "--master_port", &port, "--nproc_per_node", "2", "--max_restarts", "1"];
    let Some(mut command) = torchrun(&[&options[..], &["--no_python", "sh", "-c", script, "sh", ENMASSE]].concat())
    else {
        return;
    };
    let fixed = ["--model", "mlp", "--size", "8", "--batch", "2", "--threads", "1"];
    in_folder(command.arg("train").arg(&data).args(fixed));
    let runs = fs::read_dir(folder.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let mut epochs: Vec<usize> = runs.map(|run| metrics(&run).len()).collect();
    epochs.sort_unstable();
    assert_eq!(epochs, [1, 2]);
}

/// Each agent has one rank. Together they train an epoch, one rank fails, and after the restart they train the second
/// one.
#[test]
fn two_agents_and_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let (own, run) = (folder.path().join("own"), folder.path().join("run"));
    enmasse(&train(&data, &own, &["--epochs", "1", "--devices", "cpu:2"])).well();
    enmasse(&train(&data, &own, &["--epochs", "2", "--devices", "cpu:2", "--resume"])).well();

    let failed = folder.path().join("failed");
    let counts = folder.path().join("counts");
    let script = format!(
        "if [ -d {failed} ]; then echo $RANK $TORCHELASTIC_RESTART_COUNT >> {counts}; exec \"$@\" --epochs 2; fi\n\
         \"$@\" --epochs 1 || exit 4\n\
         if [ $RANK = 0 ]; then exec tail -f /dev/null; fi\n\
         mkdir {failed}; exit 3",
        failed = failed.display(),
        counts = counts.display(),
    );
    let endpoint = format!("127.0.0.1:{}", test_support::free_port());
    let agents: Vec<Running> = (0..2)
        .filter_map(|_| {
            let mut command = torchrun(&["--nnodes", "2", "--nproc_per_node", "1", "--max_restarts", "2"])?;
            command.args(["--rdzv_backend", "c10d", "--rdzv_endpoint", &endpoint, "--rdzv_id", "job"]);
            // The name of this machine may not resolve to it. Before 2.0 torchrun trusts that it does.
            if finish(&mut torchrun(&["--help"])?).stdout.contains("--local-addr") {
                command.args(["--local-addr", "127.0.0.1"]);
            }
            command.args(["--no_python", "sh", "-c", &script, "sh", ENMASSE]);
            Some(Running::start(command.args(train(&data, &run, &[]))))
        })
        .collect();
    if agents.is_empty() {
        return;
    }
    for agent in agents {
        Ended::well(agent.finish());
    }
    assert_eq!(losses(&run), losses(&own));
    assert_eq!(metrics(&run).len(), 2);
    assert_whole(&run);
    // The difficulty: only the agent whose rank failed has counted the restart.
    let counts = fs::read_to_string(counts).unwrap();
    let mut counts: Vec<&str> =
        counts.lines().filter_map(|line| line.split_once(' ')).map(|(_, count)| count).collect();
    counts.sort_unstable();
    assert_eq!(counts, ["0", "1"]);
}

/// An agent's store requires no secret, so ranks of several machines need a token.
#[test]
fn several_machines_need_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let mut command = crate::common::program();
    let words = ["train", &data.display().to_string(), "--model", "mlp"];
    command.args(words).current_dir(folder.path()).env("RANK", "1").env("WORLD_SIZE", "2");
    command.env("LOCAL_RANK", "0").env("LOCAL_WORLD_SIZE", "1").env("TORCHELASTIC_USE_AGENT_STORE", "True");
    let ended = finish(command.env("MASTER_ADDR", "192.0.2.1").env("MASTER_PORT", "29500"));
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(1), 1), "{ended:?}");
    assert!(ended.stderr.contains("set ENMASSE_TOKEN") && ended.stderr.contains("--out DIR"), "{}", ended.stderr);
}
