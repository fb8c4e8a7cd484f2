//! Where a run records its figures, besides `metrics.jsonl` and TensorBoard's files: a table, and MLflow's store.

use std::fs;
use std::path::Path;

use crate::common::{enmasse, images, metrics};

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
