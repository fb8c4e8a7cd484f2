//! Settings as fields of a configuration: the trainer obeys them, or says that it cannot.

use std::sync::Arc;

use crate::common::Colours;
use crate::fit::{cpu, net};
use enmasse_graph::Tensor;
use enmasse_train::{ModelFn, OptimizerKind, RunConfig, RunPaths, TrainConfig, TrainError, Trainer, TrainingData};

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(10)), Arc::new(Colours(5)))
}

fn config() -> TrainConfig {
    TrainConfig { epochs: 1, batch: Some(5), size: Some(8), ..TrainConfig::default() }
}

fn fit(config: TrainConfig, name: &str, model: &ModelFn) -> Result<(), TrainError> {
    Trainer::new(config, cpu(1)).fit(name, model, &data()).map(drop)
}

/// Regression test: such values were taken without a word, and the run trained on, with or without them.
#[test]
fn values_that_cannot_be_obeyed_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let check = |change: &dyn Fn(&mut TrainConfig), expected: &str| {
        let mut config = TrainConfig { out: Some(folder.path().join("run")), ..config() };
        change(&mut config);
        let error = fit(config, "net", &net).unwrap_err();
        assert!(matches!(error, TrainError::Config(_)), "{error}");
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(!folder.path().join("run").exists());
    };
    check(&|config| config.lr = -1.0, "lr -1: must be a finite number, above 0");
    check(&|config| config.lr = f64::NAN, "lr NaN: must be a finite number, above 0");
    check(&|config| config.epochs = 0, "epochs 0: must be 1 or more");
    check(&|config| config.momentum = 5.0, "momentum 5: must be a finite number, from 0 to below 1");
    check(&|config| config.timeout = -1.0, "timeout -1: must be a finite number, above 0");
    check(&|config| config.num_classes = Some(99), "num_classes 99: the data have 3 classes");
    // What a trainer does not obey is no field of its configuration.
    for name in ["devices", "isa", "threads", "stage", "json", "transport"] {
        let error = config().set(name, "cpu").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name} cpu: a trainer does not obey it")), "{error}");
    }
}

/// Regression test: the run of a model of the caller's was recorded as one of resnet18, and could not be opened.
#[test]
fn a_run_records_what_was_used() {
    let folder = tempfile::tempdir().unwrap();
    let mlp = |x: Tensor, classes| enmasse_models::find("mlp").unwrap().forward(x, classes);
    let check = |config: TrainConfig, name: &str, model: &ModelFn, expected: Result<(), &str>| {
        let out = folder.path().join(format!("{name}-{}", config.model));
        let fitted = fit(TrainConfig { out: Some(out.clone()), ..config }, name, model);
        assert_eq!(fitted.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{name}");
        assert_eq!(out.exists(), expected.is_ok(), "{name}");
        if expected.is_ok() {
            let text = RunPaths::new(&out).saved_config().unwrap().unwrap();
            let found = RunConfig::from_toml(&text).unwrap();
            assert_eq!((found.train.model.as_str(), found.train.size), (name, Some(8)));
            assert_eq!(found.get("devices").as_deref(), Some("cpu:1"));
        }
    };
    check(config(), "net", &net, Ok(()));
    check(TrainConfig { model: "mlp".into(), optimizer: OptimizerKind::AdamW, ..config() }, "mlp", &mlp, Ok(()));
    let other = "model lenet: the zoo has a model of this name with other tensors; give this one a name of its own";
    check(config(), "lenet", &mlp, Err(other));
    let contradiction = TrainConfig { model: "lenet".into(), ..config() };
    check(contradiction, "mlp", &mlp, Err("model lenet: the trainer was given mlp"));
}
