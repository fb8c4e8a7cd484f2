//! Where a run records its figures, besides `metrics.jsonl` and TensorBoard's files: a table, and MLflow's store.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{enmasse, finish, images, metrics};

#[test]
fn a_resumed_run_has_each_epoch_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10).display().to_string();
    let [run, store] = ["run", "mlruns"].map(|name| folder.path().join(name).display().to_string());
    let train = |epochs: &str, others: &[&str]| {
        let fixed = ["train", &data, "--model", "mlp", "--size", "12", "--batch", "4", "--devices", "cpu:1"];
        enmasse(&[&fixed[..], &["--out", &run, "--mlflow", &store, "--epochs", epochs], others].concat()).well();
    };
    train("1", &[]);
    train("3", &["--resume"]);

    let records = metrics(Path::new(&run));
    let table = fs::read_to_string(Path::new(&run).join("metrics.csv")).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| lines[0].iter().position(|column| *column == name).unwrap();
    let losses: Vec<f64> = records.iter().map(|record| record["val_loss"].as_f64().unwrap()).collect();
    let written: Vec<f64> = lines[1..].iter().map(|row| row[column("val_loss")].parse().unwrap()).collect();
    assert_eq!((written, column("epoch"), losses.len()), (losses.clone(), 0, 3), "{table}");

    let id = fs::read_to_string(Path::new(&run).join("mlflow_id.txt")).unwrap();
    let logged = Path::new(&store).join("0").join(id.trim());
    let text = fs::read_to_string(logged.join("metrics/val_loss")).unwrap();
    let values: Vec<(f64, u64)> = text
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .map(|words| (words[1].parse().unwrap(), words[2].parse().unwrap()))
        .collect();
    assert_eq!(values, losses.into_iter().zip(0..).collect::<Vec<_>>());
    assert_eq!(fs::read_to_string(logged.join("params/epochs")).unwrap(), "3");
    assert!(fs::read_to_string(logged.join("meta.yaml")).unwrap().contains("status: 3\n"));
}

/// TensorBoard and MLflow's client themselves read what a run and its resumption have logged.
#[test]
fn loggers_own_programs_read_a_run() {
    let Some(python) = test_support::loggers() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 10).display().to_string();
    let [run, store] = ["run", "mlruns"].map(|name| folder.path().join(name).display().to_string());
    let model = ["--model", "mlp", "--size", "12", "--batch", "4", "--devices", "cpu:2", "--epochs", "2"];
    let logged = ["--out", &run, "--mlflow", &store, "--histograms", "--label-smoothing", "0.125"];
    enmasse(&[&["train", &data], &model[..], &logged[..]].concat()).well();
    enmasse(&["train", "--resume", &run, "--epochs", "3"]).well();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/loggers.py");
    let read = finish(Command::new(python).arg(script).args([&run, &store])).well();
    let read: Value = serde_json::from_str(&read.stdout).unwrap();

    let records = metrics(Path::new(&run));
    let history =
        |name: &str| (0..).zip(&records).map(|(epoch, record)| json!([epoch, record[name]])).collect::<Value>();
    let mlflow = &read["mlflow"];
    assert_eq!(mlflow["metrics"]["val_loss"], history("val_loss"));
    assert_eq!((&mlflow["params"]["label_smoothing"], &mlflow["status"]), (&json!("0.125"), &json!("FINISHED")));
    assert_eq!(mlflow["name"], "run");

    let board = &read["tensorboard"];
    let losses = board["scalars"]["val/loss"].as_array().unwrap();
    let rounded = |value: &Value| value.as_f64().unwrap() as f32;
    let found: Vec<_> = losses.iter().map(|loss| (loss[0].as_u64().unwrap(), rounded(&loss[1]))).collect();
    let expected: Vec<_> = (0..).zip(records.iter().map(|record| rounded(&record["val_loss"]))).collect();
    assert_eq!((found.len(), found), (3, expected));
    let sheet = &board["images"]["augmented"];
    assert_eq!((sheet.as_array().unwrap().len(), &sheet[0]["step"]), (1, &json!(0)));
    assert_eq!(sheet[0]["stated"], sheet[0]["decoded"], "{sheet}");
    let settings = &board["hparams"];
    assert_eq!(
        [&settings["label_smoothing"], &settings["model"], &settings["histograms"]],
        [&json!(0.125), &json!("mlp"), &json!(true)]
    );
    assert_eq!(board["status"], 1);
    let (name, weights) = board["histograms"].as_object().unwrap().iter().next().unwrap();
    assert!(name.starts_with("weights/") && weights.as_array().unwrap().len() == 3, "{name} {weights}");
    let last = &weights[2];
    let numbers =
        |name: &str| last[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!((last["step"].as_u64(), last["num"].as_f64()), (Some(2), Some(numbers("counts").iter().sum())));
    assert!(numbers("limits").is_sorted() && last["min"].as_f64() < last["max"].as_f64(), "{last}");
}
