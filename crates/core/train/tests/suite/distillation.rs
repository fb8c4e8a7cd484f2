//! Runs that imitate a teacher: the same weights on any number of ranks and after a stop, what they leave alone, and what is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_datasets::DataKind;
use enmasse_graph::Tensor;
use enmasse_train::{
    Checkpoint, Classifier, NamedTensor, Preparation, RunPaths, TrainConfig, TrainError, Trainer, TrainingData,
};

/// A small model of the zoo, and the student.
const MODEL: &str = "lenet";

fn net(x: Tensor, classes: usize) -> Tensor {
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", classes)
}

fn zoo(x: Tensor, classes: usize) -> Tensor {
    enmasse_models::find(MODEL).unwrap().forward(x, classes)
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        batch: Some(4),
        shards: Some(2),
        size: Some(28),
        lr: 0.02,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

fn fit(
    config: &TrainConfig,
    ranks: usize,
    model: &(dyn Fn(Tensor, usize) -> Tensor + Sync),
    name: &str,
) -> Result<Checkpoint, String> {
    let data = data();
    let done = enmasse_launch::spawn(ranks, |group| {
        let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let result: Result<_, TrainError> = Trainer::new(config.clone(), device).group(group).fit(name, &model, &data);
        result.map(drop)
    });
    done.map_err(|error| error.to_string())?;
    Ok(Checkpoint::load(&RunPaths::new(config.out.as_ref().unwrap()).last_checkpoint()).unwrap())
}

/// A run of the zoo's model that keeps averages, for a teacher.
fn taught(folder: &Path) -> PathBuf {
    let out = folder.join("teacher");
    fit(&TrainConfig { ema: Some(0.5), epochs: 4, ..config(&out) }, 1, &zoo, MODEL).unwrap();
    out
}

fn student(folder: &Path, name: &str, teacher: &Path) -> TrainConfig {
    TrainConfig { teacher: Some(teacher.to_owned()), mixup: 0.4, ema: Some(0.9), ..config(&folder.join(name)) }
}

#[test]
fn a_teacher_changes_the_weights_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = taught(folder.path());
    let before = std::fs::read(RunPaths::new(&teacher).best_checkpoint()).unwrap();
    let with = fit(&student(folder.path(), "with", &teacher), 1, &net, "net").unwrap();
    let plain = TrainConfig { teacher: None, ..student(folder.path(), "without", &teacher) };
    let without = fit(&plain, 1, &net, "net").unwrap();
    let names = |of: &Checkpoint| of.tensors.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&with), names(&without));
    assert_ne!(with.tensors, without.tensors);
    assert!(with.meta.teacher.is_some() && without.meta.teacher.is_none());
    let idle = TrainConfig { distillation_alpha: 0.0, ..student(folder.path(), "idle", &teacher) };
    assert_eq!(fit(&idle, 1, &net, "net").unwrap().tensors, without.tensors);
    assert!(before == std::fs::read(RunPaths::new(&teacher).best_checkpoint()).unwrap());
    let two = fit(&student(folder.path(), "two", &teacher), 2, &net, "net").unwrap();
    assert_eq!(two.tensors, with.tensors, "two ranks");
}

#[test]
fn a_resumed_run_has_its_teacher() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = taught(folder.path());
    let whole = fit(&student(folder.path(), "whole", &teacher), 1, &net, "net").unwrap();
    let parts = student(folder.path(), "parts", &teacher);
    let resumed = TrainConfig { resume: true.into(), ..parts.clone() };
    fit(&TrainConfig { max_steps: Some(9), ..parts.clone() }, 1, &net, "net").unwrap();
    let other = folder.path().join("other");
    fit(&TrainConfig { seed: 9, ..config(&other) }, 1, &zoo, MODEL).unwrap();
    let error = fit(&TrainConfig { teacher: Some(other), ..resumed.clone() }, 1, &net, "net").unwrap_err();
    assert!(error.contains("learns from a teacher with other weights than `teacher` has now"), "{error}");
    assert_eq!(fit(&resumed, 2, &net, "net").unwrap().tensors, whole.tensors);
    let plain = TrainConfig { teacher: None, ..student(folder.path(), "plain", &teacher) };
    fit(&TrainConfig { max_steps: Some(9), ..plain.clone() }, 1, &net, "net").unwrap();
    let late = TrainConfig { teacher: Some(teacher), resume: true.into(), ..plain };
    let error = fit(&late, 1, &net, "net").unwrap_err();
    assert!(error.contains("began without a teacher"), "{error}");
}

/// A student of the teacher's own architecture, which begins with its weights and learns from it alone, has nothing to learn.
#[test]
fn a_model_has_nothing_to_learn_from_itself() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = taught(folder.path());
    let preparation = Preparation::new(&config(&teacher), DataKind::Folder);
    let classifier = Classifier::open(&teacher, None, &preparation, &[]).unwrap();
    assert!(classifier.averaged);
    let weights = folder.path().join("weights.safetensors");
    let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
    let mut program = classifier.program(&zoo, device.as_ref(), 1).unwrap();
    let tensors: Vec<NamedTensor> = enmasse_train::read_tensors(program.as_mut()).unwrap();
    Checkpoint {
        meta: Checkpoint::load(&RunPaths::new(&teacher).best_checkpoint()).unwrap().meta,
        tensors: tensors.clone(),
    }
    .save(&weights)
    .unwrap();
    let config = TrainConfig {
        weights: Some(weights),
        teacher: Some(teacher),
        distillation_alpha: 1.0,
        weight_decay: 0.0,
        ..config(&folder.path().join("self"))
    };
    let found = fit(&config, 1, &zoo, MODEL).unwrap();
    for own in &tensors {
        let other = found.tensors.iter().find(|tensor| tensor.name == own.name).unwrap();
        let far = own.values.iter().zip(&other.values).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(far < 1e-5, "{}: {far}", own.name);
    }
}

#[test]
fn teachers_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = taught(folder.path());
    let check = |name: &str, change: &dyn Fn(TrainConfig) -> TrainConfig, expected: &str| {
        let config = change(student(folder.path(), name, &teacher));
        let error = fit(&config, 1, &net, "net").unwrap_err();
        assert!(error.contains(expected) && !error.contains('\n'), "{name}: {error}");
        assert!(!config.out.unwrap().exists(), "{name} left a folder");
    };
    check("missing", &|c| TrainConfig { teacher: Some("no/such/run".into()), ..c }, "no/such/run");
    check("folder", &|c| TrainConfig { teacher: Some(folder.path().into()), ..c }, "is not a run folder");
    check("size", &|c| TrainConfig { size: Some(36), ..c }, "was trained with images of 28 pixels");
    let grey = |c| TrainConfig { mean: Some(vec![0.5]), std: Some(vec![0.5]), channels: Some(1), ..c };
    check("grey", &grey, "sees images of 3 channels, and this run of 1: use `channels = 3`");
    let own = folder.path().join("own");
    fit(&config(&own), 1, &net, "net").unwrap();
    check("zoo", &|c| TrainConfig { teacher: Some(own.clone()), ..c }, "is a net, which is no model of the zoo");
    let mut checkpoint = Checkpoint::load(&RunPaths::new(&teacher).last_checkpoint()).unwrap();
    let names = checkpoint.meta.classes.clone();
    let other = folder.path().join("other.safetensors");
    checkpoint.meta.classes = [&names[1..], &names[..1]].concat();
    checkpoint.save(&other).unwrap();
    let order = format!("has the class {:?} where the data have {:?} (number 0)", names[1], names[0]);
    check("order", &|c| TrainConfig { teacher: Some(other.clone()), ..c }, &order);
    checkpoint.meta.classes = [names.clone(), names].concat();
    checkpoint.save(&other).unwrap();
    check("more", &|c| TrainConfig { teacher: Some(other.clone()), ..c }, "knows 6 classes, and the data have 3");
}
