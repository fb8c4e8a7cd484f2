//! Ranks as tasks of a real Slurm, on made-up hosts; skipped where these cannot be created.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::cluster::Cluster;
use crate::common::{Ended, assert_whole, enmasse, exists, images, metrics, until};
use enmasse_train::{Checkpoint, NamedTensor};

const ENMASSE: &str = env!("CARGO_BIN_EXE_enmasse");

/// The words of a run on `data` into `run`, including the program.
fn train(data: &Path, run: &Path, others: &[&str]) -> Vec<String> {
    let fixed = ["--size", "8", "--batch", "2", "--threads", "1", "--json", "--out", &run.display().to_string()];
    let program = [ENMASSE, "train", &data.display().to_string()];
    let words =
        program.iter().chain(&fixed).chain(if others.contains(&"--model") { &[][..] } else { &["--model", "mlp"] });
    words.chain(others).map(|word| word.to_string()).collect()
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Runs a step to its end, from the head node.
#[track_caller]
fn srun(cluster: &Cluster, options: &[&str], command: &[String]) -> Ended {
    cluster.head(&[&["srun"], options, &words(command)].concat())
}

fn losses(run: &Path) -> Vec<String> {
    metrics(run).iter().map(|epoch| format!("{} {}", epoch["train_loss"], epoch["val_loss"])).collect()
}

/// The tensors of a run's checkpoint, including optimiser state, as bits.
fn tensors(run: &Path) -> Vec<(String, Vec<u32>)> {
    let checkpoint = Checkpoint::load(&run.join("checkpoints/last.safetensors")).unwrap();
    let bits = |tensor: NamedTensor| (tensor.name, tensor.values.into_iter().map(f32::to_bits).collect());
    checkpoint.tensors.into_iter().map(bits).collect()
}

#[test]
fn two_nodes_of_two_tasks_give_the_bits_of_four_local_ranks() {
    let Some(cluster) = Cluster::start(2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 12);
    let two_by_two = ["--nodes=2", "--ntasks-per-node=2"];
    let check = |name: &str, others: &[&str]| {
        let own = folder.path().join(format!("{name}-own"));
        let run = folder.path().join(name);
        enmasse(&train(&data, &own, &[others, &["--devices", "cpu:4"]].concat())[1..]).well();
        let ended = srun(&cluster, &two_by_two, &train(&data, &run, others)).well();
        assert_eq!(ended.json()[0]["world_size"], 4, "{name}");
        assert_eq!(losses(&run), losses(&own), "{name}");
        assert!(tensors(&run) == tensors(&own), "{name}: weights differ");
        assert_whole(&run);
        assert!(!run.join(".token").exists(), "{name}");
    };
    check("mlp", &["--epochs", "2", "--check-ranks"]);
    // A number of devices equals the number of tasks on a node.
    check("resnet", &["--model", "resnet18", "--size", "32", "--max-steps", "2", "--devices", "cpu:2"]);

    // A step of one task has its node to itself.
    let run = folder.path().join("single");
    let ended =
        srun(&cluster, &["--nodes=1", "--ntasks=1"], &train(&data, &run, &["--epochs", "1", "--devices", "cpu:2"]));
    assert_eq!(ended.well().json()[0]["world_size"], 2);

    agents_in_a_step(&cluster, &data, folder.path());
    mistakes(&cluster, &data, folder.path());
}

/// torchrun as the task of each node: its ranks see the variables of both launchers, of which the inner one counts.
/// They meet on a network through the store of torchrun's agents.
fn agents_in_a_step(cluster: &Cluster, data: &Path, folder: &Path) {
    let Some(interpreter) = test_support::pytorch() else { return };
    let interpreter = interpreter.display().to_string();
    let (own, run) = (folder.join("mlp-own"), folder.join("agents"));
    let torchrun = [&interpreter, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "2"];
    // Every node has its own network, so any port is free.
    let meet = ["--rdzv_backend", "c10d", "--rdzv_endpoint", "node1:29500", "--rdzv_id", "job", "--no_python"];
    let words = torchrun.iter().chain(&meet).map(|word| word.to_string());
    let command: Vec<String> = words.chain(train(data, &run, &["--epochs", "2"])).collect();
    let ended = srun(cluster, &["--nodes=2", "--ntasks-per-node=1"], &command).well();
    assert_eq!(ended.json()[0]["world_size"], 4);
    assert_eq!(losses(&run), losses(&own));
    assert!(tensors(&run) == tensors(&own), "weights differ");
}

/// Likely mistakes are reported at once, in one line that tells what to change.
fn mistakes(cluster: &Cluster, data: &Path, folder: &Path) {
    let run = folder.join("mistaken");
    let said = |ended: &Ended, expected: &str| {
        let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(expected)), "{expected}: {ended:?}");
        lines.len()
    };
    let ended = srun(cluster, &["--nodes=2", "--ntasks-per-node=2"], &train(data, &run, &["--devices", "cpu:4"]));
    // Every rank checks for itself.
    assert_eq!((ended.code, said(&ended, "start the step with --ntasks-per-node=4")), (Some(2), 4));

    let bare = [ENMASSE, "train", &data.display().to_string(), "--model", "mlp"].map(str::to_owned);
    let ended = srun(cluster, &["--nodes=2", "--kill-on-bad-exit=1"], &bare);
    said(&ended, "so the ranks need a token: set ENMASSE_TOKEN to the same secret text for all of them, or");

    // Rank 0 on the second node of the list.
    let hosts = folder.join("hosts");
    fs::write(&hosts, "node2\nnode1\n").unwrap();
    let script = batch(
        folder,
        &format!(
            "export SLURM_HOSTFILE={}\nsrun --kill-on-bad-exit=1 -m arbitrary {}",
            hosts.display(),
            line(&train(data, &run, &[]))
        ),
    );
    let text = ended_batch(cluster, &script, &["--nodes=2", "--ntasks=2"]);
    assert!(text.contains("rank 0 runs on node2, but the others look for it on node1"), "{text}");

    let script = batch(folder, &line(&train(data, &run, &[])));
    let text = ended_batch(cluster, &script, &["--nodes=2", "--ntasks-per-node=2"]);
    let expected = "SLURM_NTASKS is 4, but no launcher started this process";
    assert!(text.contains(expected) && text.contains("srun enmasse train"), "{text}");
    assert!(!run.exists());
}

/// A command for a shell; no word here needs quoting.
fn line(words: &[String]) -> String {
    words.join(" ")
}

fn batch(folder: &Path, body: &str) -> PathBuf {
    let script = folder.join("batch.sh");
    fs::write(&script, format!("#!/bin/sh\n{body}\n")).unwrap();
    script
}

/// The output of a batch script, once it has ended.
fn ended_batch(cluster: &Cluster, script: &Path, options: &[&str]) -> String {
    let output = script.with_extension("out");
    let output = output.display().to_string();
    let script = script.display().to_string();
    cluster.head(&[&["sbatch", "--wait", "--output", &output], options, &[&script]].concat());
    fs::read_to_string(output).unwrap()
}

#[test]
fn scancel_leaves_nothing() {
    let Some(cluster) = Cluster::start(2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let script =
        batch(folder.path(), &format!("srun {}", line(&train(&data, &run, &["--epochs", "1000000", "--lr", "0.001"]))));
    let output = folder.path().join("job.out").display().to_string();
    let job = cluster.submit(&script, &["--nodes=2", "--ntasks-per-node=2", "--output", &output]);
    until("a first epoch", || fs::read_to_string(&output).ok().filter(|text| text.contains("\"epoch\":0")));
    let mark = run.display().to_string();
    let ranks = cluster.processes(&mark);
    assert!(ranks.len() >= 4, "{ranks:?}");
    cluster.head(&["scancel", &job]).well();
    cluster.wait_for(&job, &["CANCELLED"]);
    until("the end of every process", || cluster.processes(&mark).is_empty().then_some(()));
    until("the end of every rank", || ranks.iter().all(|pid| !exists(*pid)).then_some(()));
    assert_whole(&run);
    assert!(!run.join(".token").exists());
}
