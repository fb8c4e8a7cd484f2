//! The timeline of ranks that are processes: of one machine, and of two hosts that exchange data over TCP.

use std::fs;
use std::path::Path;

use crate::common::network::Network;
use crate::common::{Running, enmasse, images};
use serde_json::Value;

/// The operations of a rank: their numbers, and from when to when they took in microseconds.
fn operations(trace: &Value, rank: u64) -> Vec<(u64, [f64; 2])> {
    let events = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["pid"] == rank + 1);
    let operations = events.filter_map(|event| Some((event, event["args"]["number"].as_u64()?)));
    let times = operations.map(|(event, number)| (number, ["ts", "dur"].map(|key| event[key].as_f64().unwrap())));
    times.map(|(number, [began, took])| (number, [began, began + took])).collect()
}

/// A run of 13 steps has left a timeline of two of them, in which both ranks are in every sum at the same time.
fn check(run: &Path, told: &str) {
    let path = run.join("logs/trace.json");
    let line = format!("trace: steps 11 to 12 are in {}; open it in ui.perfetto.dev", path.display());
    assert!(told.contains(&line) && told.contains("\nsums of gradients: "), "{told}");
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let about = &trace["otherData"];
    assert_eq!((&about["ranks"], &about["steps"]), (&2.into(), &2.into()), "{about}");
    let accuracy = about["clock_accuracy_us"].as_f64().unwrap();
    let (first, second) = (operations(&trace, 0), operations(&trace, 1));
    assert!(!first.is_empty() && first.len() == second.len(), "{first:?} {second:?}");
    for ((number, first), (also, second)) in first.iter().zip(&second) {
        let (latest, earliest) = (first[0].max(second[0]), first[1].min(second[1]));
        assert!(number == also && latest <= earliest + accuracy + 0.01, "{number}: {first:?} {second:?} {accuracy}");
    }
}

const FLAGS: [&str; 14] = [
    "--model",
    "mlp",
    "--size",
    "8",
    "--batch",
    "1",
    "--threads",
    "1",
    "--epochs",
    "9",
    "--max-steps",
    "13",
    "--trace-steps",
    "2",
];

#[test]
fn processes_are_on_one_clock() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10).display().to_string();
    let run = folder.path().join("run");
    let fixed = ["train", &data, "--devices", "cpu:2", "--out", run.to_str().unwrap()];
    check(&run, &enmasse(&[&fixed[..], &FLAGS].concat()).well().stderr);
}

#[test]
fn hosts_are_on_one_clock() {
    let Some(network) = Network::up(&["h1", "h2"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10);
    let run = folder.path().join("run");
    let own = env!("CARGO_BIN_EXE_enmasse");
    let host = |rank: &str, host: &str| {
        let mut command = network.command(host, own);
        command.args(["launch", "--nnodes", "2", "--node-rank", rank, "--master-addr", "h1", "-n", "1", own, "train"]);
        command.arg(&data).arg("--out").arg(&run).args(FLAGS);
        Running::start(command.env("ENMASSE_TOKEN", "a secret that both hosts know"))
    };
    let [first, second] = [host("0", "h1"), host("1", "h2")].map(Running::finish);
    second.well();
    check(&run, &first.well().stderr);
}
