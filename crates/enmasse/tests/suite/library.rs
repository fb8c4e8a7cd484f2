//! The library beside the program: inference by a run, and errors as a user's `main` prints them.

use std::path::Path;

use crate::common::{enmasse, finish, pictures, program};
use enmasse::prelude::*;

#[test]
fn a_program_predicts_as_the_command_does() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run) = (pictures(folder.path(), 10), folder.path().join("run"));
    let picture = data.join("red/001.jpg");
    let [data, text, image] = [&data, &run, &picture].map(|path| path.display().to_string());
    enmasse(&["train", &data, "--model", "mlp", "--size", "12", "--batch", "4", "--epochs", "1", "--out", &text])
        .well();
    let mut model = TrainedModel::open(&run).unwrap();
    assert_eq!(model.classes(), ["dark", "light", "red"]);
    let command = enmasse(&["predict", &text, &image, "--json"]).well().json().remove(0);
    for _ in 0..2 {
        let found = model.predict(&picture).unwrap();
        let probabilities = |top: &serde_json::Value| -> Vec<f64> {
            top.as_array().unwrap().iter().map(|guess| guess["probability"].as_f64().unwrap()).collect()
        };
        let own: Vec<f64> = found.top.iter().map(|guess| guess.probability).collect();
        assert_eq!(own, probabilities(&command["top"]));
    }
    assert!(model.predict(folder.path().join("none.jpg")).unwrap_err().to_string().contains("none.jpg"));
}

#[test]
fn a_run_of_an_own_model_is_for_its_own_program() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run) = (pictures(folder.path(), 10), folder.path().join("run"));
    let own = |x: Tensor, classes: usize| x.flatten().linear("own", classes);
    let config = TrainConfig {
        model: "own".to_owned(),
        epochs: 1,
        size: Some(12),
        batch: Some(8),
        out: Some(run.clone()),
        ..TrainConfig::default()
    };
    let picture = data.join("red/001.jpg");
    let data = TrainingData::open(&data, &config.open_options()).unwrap();
    let device = device("cpu", 1).unwrap();
    Trainer::new(config, device.as_ref()).fit(&own, &data).unwrap();
    assert_eq!(TrainedModel::open_own(&run, &own).unwrap().predict(&picture).unwrap().top.len(), 3);
    let error = TrainedModel::open(&run).err().unwrap();
    // What `main() -> Result<(), TrainError>` prints.
    let printed = format!("{error:?}");
    assert_eq!(printed, error.to_string());
    assert!(printed.contains("its model \"own\" was defined by the program that trained it"), "{printed}");
    let refused = |command: &str, others: &[&Path]| {
        let ended = finish(program().arg(command).arg(&run).args(others));
        let line = format!(
            "error: {}: its model \"own\" was trained by your own program: use the library there \
             (TrainedModel::open_own to predict, Classifier::program and evaluate to evaluate)\n",
            run.display()
        );
        assert_eq!((ended.code, ended.stdout, ended.stderr), (Some(1), String::new(), line), "{command}");
    };
    refused("predict", &[&picture]);
    refused("eval", &[&folder.path().join("pictures")]);
    // The configuration names no data, and the run's own are not the embedded ones.
    refused("eval", &[]);
    // Weights need no model to be written.
    let file = folder.path().join("own.safetensors");
    let ended = finish(program().arg("export").arg(&run).args(["--to", "safetensors", "--out"]).arg(&file)).well();
    assert!(ended.stdout.starts_with("wrote ") && ended.stdout.contains("2 tensors"), "{ended:?}");
    assert!(TrainedModel::open_own(&run, &|x, classes| x.flatten().linear("other", classes)).is_err());
}
