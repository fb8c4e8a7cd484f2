//! Runs that imitate a teacher: the same weights on any number of ranks and after a stop, what they leave alone, and what is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::{DataError, Dataset};
use enmasse_datasets::{DataKind, TaskKind};
use enmasse_graph::Tensor;
use enmasse_image::Image;
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

/// Without its teacher for some steps, it is still the run of this teacher.
#[test]
fn a_run_without_its_teacher_for_a_while_does_not_take_another() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = taught(folder.path());
    let other = folder.path().join("other");
    fit(&TrainConfig { seed: 9, ..config(&other) }, 1, &zoo, MODEL).unwrap();
    let run = student(folder.path(), "run", &teacher);
    let first = fit(&TrainConfig { max_steps: Some(3), ..run.clone() }, 1, &net, "net").unwrap();
    let resumed = TrainConfig { resume: true.into(), ..run };
    let idle = TrainConfig { distillation_alpha: 0.0, max_steps: Some(6), ..resumed.clone() };
    let second = fit(&idle, 1, &net, "net").unwrap();
    assert!(second.meta.teacher.is_some());
    assert_eq!(second.meta.teacher, first.meta.teacher);
    let error = fit(&TrainConfig { teacher: Some(other), ..resumed.clone() }, 1, &net, "net").unwrap_err();
    assert!(error.contains("learns from a teacher with other weights than `teacher` has now"), "{error}");
    fit(&resumed, 1, &net, "net").unwrap();
}

/// Images of which several things are known.
struct Known {
    images: Colours,
    targets: fn(usize) -> Vec<f32>,
}

impl Dataset for Known {
    fn len(&self) -> usize {
        self.images.len()
    }
    fn label(&self, index: usize) -> usize {
        self.images.label(index)
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.images.read(index)
    }
    fn targets(&self, index: usize) -> Vec<f32> {
        (self.targets)(index % 3)
    }
}

fn known(task: TaskKind, targets: fn(usize) -> Vec<f32>) -> TrainingData {
    let part = |count| Arc::new(Known { images: Colours(count), targets });
    let mut data = TrainingData::of_classes(["a", "b"].map(str::to_owned).into(), part(50), part(17));
    data.task = task;
    data
}

/// The predictions for the images of validation.
fn predicted(
    config: TrainConfig,
    model: &(dyn Fn(Tensor, usize) -> Tensor + Sync),
    name: &str,
    data: &TrainingData,
) -> Vec<f64> {
    let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
    let mut trainer = Trainer::new(config, device);
    trainer.fit(name, &model, data).unwrap();
    trainer.predict(&data.validation).unwrap().concat()
}

/// The students' targets say the opposite, and numbers of another mean and std.
#[test]
fn labels_and_numbers_are_those_of_the_teacher() {
    type Targets = fn(usize) -> Vec<f32>;
    let labels: [Targets; 2] = [
        |class| vec![f32::from(class == 0), f32::from(class != 1)],
        |class| vec![f32::from(class != 0), f32::from(class == 1)],
    ];
    let numbers: [Targets; 2] = [
        |class| vec![class as f32 * 10.0, 700.0 - class as f32],
        |class| vec![5.0 - class as f32 * 20.0, 698.0 + class as f32 * 3.0],
    ];
    for (task, [truth, lie], lr) in [(TaskKind::MultiLabel, labels, 0.05), (TaskKind::Regression, numbers, 0.02)] {
        let folder = tempfile::tempdir().unwrap();
        let (truth, lie) = (known(task, truth), known(task, lie));
        // By the loss of validation the best student is the one that has learnt the least of the teacher.
        let long = |name: &str| TrainConfig {
            epochs: 12,
            lr,
            monitor: Some("train_loss".to_owned()),
            ..config(&folder.path().join(name))
        };
        let expected = predicted(long("teacher"), &zoo, MODEL, &truth);
        let learnt = |alpha: f64| {
            let teacher = Some(folder.path().join("teacher"));
            predicted(TrainConfig { teacher, distillation_alpha: alpha, ..long(&alpha.to_string()) }, &net, "net", &lie)
        };
        // In shares of the range of each output.
        let distance = |a: &[f64], b: &[f64]| {
            let of_output = |output: usize| {
                let of = |values: &[f64]| -> Vec<f64> { values.iter().skip(output).step_by(2).copied().collect() };
                let (a, b) = (of(a), of(b));
                let range = b.iter().copied().fold(f64::MIN, f64::max) - b.iter().copied().fold(f64::MAX, f64::min);
                a.iter().zip(&b).map(|(a, b)| (a - b).abs()).sum::<f64>() / range / a.len() as f64
            };
            of_output(0).max(of_output(1))
        };
        let taught = distance(&learnt(1.0), &expected);
        let untaught = distance(&learnt(0.0), &expected);
        assert!(taught < 0.2 && untaught > 0.5, "{task}: {taught} {untaught}");
    }
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
    let missing = "no/such/run: does not exist in the folder where this was started";
    check("missing", &|c| TrainConfig { teacher: Some("no/such/run".into()), ..c }, missing);
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
