//! `enmasse status`: GPUs and their owners, and the runs of this machine.

use rustix::process::Signal;
use serde_json::Value;

use crate::common::runs::arguments;
use crate::common::{Running, finish, images, program};

fn record(text: &str) -> Value {
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

#[test]
fn gpus_and_their_owners() {
    let Some(libraries) = enmasse_emulation::folder() else { return };
    let status = |flags: &[&str]| {
        let mut command = program();
        command.env("CUDA_VISIBLE_DEVICES", "1").env("ENMASSE_CUDA_LIBRARIES", libraries);
        command.env("EMULATED_GPUS", "2").env("EMULATED_UTILIZATION", "37");
        let own = format!("0:{}:8589934592", std::process::id());
        finish(command.env("EMULATED_BUSY", own).arg("status").args(flags)).well().stdout
    };
    let text = status(&[]);
    let lines: Vec<&str> = text.lines().collect();
    let own = format!(" (pid {}) with 8192 MiB", std::process::id());
    assert!(lines[0].starts_with("gpu 0: Emulated GPU 0, 37 % busy, 8.0 of 80.0 GiB, 40 °C, "), "{text}");
    assert!(lines[0].ends_with(&own), "{text}");
    assert_eq!(lines[1], "gpu 1: Emulated GPU 1, 37 % busy, 0.0 of 80.0 GiB, 41 °C, idle");
    let found = record(&status(&["--json"]));
    let gpu = &found["gpus"][0];
    assert_eq!((&gpu["utilization"], &gpu["temperature"]), (&0.37.into(), &40.into()), "{gpu}");
    assert_eq!((&gpu["used_bytes"], &gpu["bytes"]), (&(8_u64 << 30).into(), &(80_u64 << 30).into()), "{gpu}");
    assert_eq!(gpu["processes"][0]["pid"], std::process::id(), "{gpu}");
    assert!(gpu["processes"][0]["name"].is_string() && gpu["processes"][0]["user"].is_string(), "{gpu}");
    assert_eq!(found["gpus"].as_array().map(Vec::len), Some(2), "hidden ones are there too");
}

#[test]
fn runs_are_found_while_they_train() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 8);
    let run = folder.path().join("run");
    let status = || record(&finish(program().args(["status", "--json"])).well().stdout);
    let own = |status: &Value| {
        let runs = status["runs"].as_array().unwrap();
        runs.iter().find(|found| found["run"] == run.to_str().unwrap()).cloned()
    };
    let flags = ["--epochs", "100000", "--devices", "cpu:2"];
    let mut training = Running::start(program().args(arguments(&data, &run, &flags)));
    // Two epochs.
    training.line();
    training.line();
    let found = own(&status()).expect("the run");
    assert_eq!((&found["ranks"], &found["epochs_asked"]), (&2.into(), &100_000.into()), "{found}");
    assert!(found["epochs"].as_u64() >= Some(1) && found["images_per_second"].as_f64() > Some(0.0), "{found}");
    training.signal(Signal::INT);
    training.finish();
    assert_eq!(own(&status()), None);
}
