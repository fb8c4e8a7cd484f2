//! The teacher of a run (`--teacher`): a trained model whose outputs the run imitates beside its loss.

use std::collections::HashMap;
use std::path::Path;

use enmasse_datasets::{DataKind, TaskKind};
use enmasse_device::Program;
use enmasse_graph::{
    CompileOptions, PerSample, StateTensor, TEACHER_PREFIX, Teacher, Tensor, compile_evaluation, losses,
};

use crate::weights::{fill, torch_shape};
use crate::{
    Classifier, ConfigError, NamedTensor, Preparation, RunConfig, RunPaths, Task, TrainConfig, TrainError,
    TrainingData, is_checkpoint,
};

/// A teacher with its weights.
#[derive(Debug)]
pub(crate) struct TrainedTeacher {
    /// What a plan has of it.
    pub in_plan: Teacher,
    /// [`Classifier::model_digest`].
    pub digest: String,
    tensors: Vec<NamedTensor>,
}

impl TrainedTeacher {
    /// The teacher of a configuration, if it has one that takes part. It must fit the task, the preparation of images and the data. Those
    /// of a plan alone are not known.
    pub fn open(
        config: &TrainConfig,
        preparation: &Preparation,
        task: &dyn Task,
        data: Option<&TrainingData>,
    ) -> Result<Option<Self>, TrainError> {
        let Some(path) = config.teacher.as_deref().filter(|_| config.distillation_alpha > 0.0) else { return Ok(None) };
        let refuse = |reason: String| -> TrainError {
            let run = RunConfig { train: config.clone(), ..RunConfig::default() };
            ConfigError::setting(&run, "teacher", reason).into()
        };
        let classifier = open(path, &refuse)?;
        let kind = data.map_or(TaskKind::Classification, |data| data.task);
        if classifier.kind() != kind {
            return Err(refuse(format!("is a run of {}, and the data are of {kind}", classifier.kind())));
        }
        if let Some(reason) = data.and_then(|data| different_classes(&classifier.classes, &data.classes)) {
            return Err(refuse(reason));
        }
        let seen = classifier.normalization.channels();
        let own = preparation.normalization.channels();
        if seen != own {
            return Err(refuse(format!(
                "sees images of {seen} channels, and this run of {own}: use `channels = {seen}`"
            )));
        }
        let model = enmasse_models::find(&classifier.model)
            .map_err(|_| refuse(format!("is a {}, which is no model of the zoo", classifier.model)))?;
        let (outputs, size) = (classifier.classes.len(), preparation.train.size());
        let alone = CompileOptions { size: [size; 2], ..classifier.options(1) };
        let alone = compile_evaluation(&|x| model.forward(x, outputs), &alone);
        let alone = alone.map_err(|error| refuse(format!("does not fit images of {size} pixels: {error}")))?;
        let digest = classifier.model_digest();
        let Classifier { model: name, normalization, tensors, task: learnt, transform, .. } = classifier;
        let shape_of = |own: &StateTensor| tensors.iter().find(|tensor| tensor.name == own.name).map(|t| &t.shape[..]);
        if let Some(own) = alone.state.iter().find(|own| shape_of(own) != Some(&torch_shape(own)[..])) {
            return Err(refuse(format!(
                "was trained with images of {} pixels, and its {} does not fit {size} pixels: use `size = {}`",
                transform.size, own.name, transform.size
            )));
        }
        let loss = loss(kind, config.distillation_temperature as f32, task, learnt.as_ref());
        let mut in_plan = Teacher::new(name, outputs, move |x| model.forward(x, outputs), loss);
        (in_plan.mean, in_plan.std) = (normalization.mean, normalization.std);
        in_plan.alpha = config.distillation_alpha as f32;
        Ok(Some(TrainedTeacher { in_plan, digest, tensors }))
    }

    /// Sets the teacher's tensors in a program of a plan that has it.
    pub fn load(&self, program: &mut dyn Program) -> Result<(), TrainError> {
        let values: HashMap<&str, &[f32]> =
            self.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.values.as_slice())).collect();
        fill(program, &|tensor| values.get(tensor.name.strip_prefix(TEACHER_PREFIX)?).copied())?;
        Ok(())
    }
}

/// The run or checkpoint, by the weights that evaluation uses.
fn open(path: &Path, refuse: &dyn Fn(String) -> TrainError) -> Result<Classifier, TrainError> {
    if !path.exists() {
        let from = if path.is_relative() { " in the folder where this was started" } else { "" };
        return Err(refuse(format!("does not exist{from}")));
    }
    let file = if path.is_dir() { RunPaths::new(path).require_weights()? } else { path.to_owned() };
    if !is_checkpoint(&file)? {
        return Err(refuse("holds weights alone: a teacher is a run, or a checkpoint of one".to_owned()));
    }
    Classifier::open(path, None, &Preparation::new(&TrainConfig::default(), DataKind::Folder), &[])
}

/// How the classes of the teacher differ from those of the data, if they do: the rest of a sentence about it.
fn different_classes(teacher: &[String], data: &[String]) -> Option<String> {
    if teacher == data {
        return None;
    }
    if teacher.len() != data.len() {
        return Some(format!("knows {} classes, and the data have {}", teacher.len(), data.len()));
    }
    let at = teacher.iter().zip(data).position(|(teacher, data)| teacher != data)?;
    Some(format!("has the class {:?} where the data have {:?} (number {at})", teacher[at], data[at]))
}

/// What compares a model's outputs with the teacher's.
fn loss(kind: TaskKind, temperature: f32, task: &dyn Task, teacher: &dyn Task) -> PerSample {
    let narrow = |values: Vec<f64>| -> Vec<f32> { values.into_iter().map(|value| value as f32).collect() };
    match (kind, task.statistics(), teacher.statistics()) {
        (TaskKind::Regression, Some(own), Some(other)) => {
            // The teacher's numbers have another mean and std than the model's.
            let means = own.mean.iter().zip(other.mean.iter().zip(&other.std));
            let mean = narrow(means.map(|(own, (other, std))| (own - other) / std).collect());
            let std = narrow(own.std.iter().zip(&other.std).map(|(own, other)| own / other).collect());
            PerSample::new(move |outputs: Tensor, teacher: Tensor| {
                losses::squared_error(outputs, losses::standardize(teacher, &mean, &std))
            })
        }
        (TaskKind::MultiLabel, ..) => {
            PerSample::new(move |logits, teacher| losses::sigmoid_distillation(logits, teacher, temperature))
        }
        _ => PerSample::new(move |logits, teacher| losses::distillation(logits, teacher, temperature)),
    }
}
