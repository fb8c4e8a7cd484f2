//! A trained model to evaluate and predict with: the contents of a run or a bare weights file, and the program made of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use enmasse_datasets::TaskKind;
use enmasse_device::{Device, Program};
use enmasse_graph::{Choices, CompileOptions, Metric, Plans, compile_evaluation};
use enmasse_image::{EvalTransform, Normalization, Transform};
use serde_json::json;

use crate::agreement::hash_values;
use crate::metrics::DEFAULT_THRESHOLD;
use crate::pretrained::read_pretrained;
use crate::task::of_run;
use crate::weights::{EvaluatedWeights, torch_shape, write_tensors};
use crate::{
    CalibrationRecord, Checkpoint, Classification, Matching, ModelFn, NamedTensor, Preparation, Rename, RunConfig,
    RunPaths, TargetKind, Task, ThresholdsRecord, TrainError, is_checkpoint,
};

/// Classes of a model whose number of classes is not known.
const ANY: usize = 2;

/// Weights, and everything needed to use them.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// The model's name.
    pub model: String,
    /// Names of the classes, by label, of the labels or of the numbers; none if the weights have no classifier.
    pub classes: Vec<String>,
    /// How images are prepared.
    pub transform: EvalTransform,
    /// How it computes: the configuration of its run; for bare weights, the defaults.
    pub configuration: RunConfig,
    /// What it predicts.
    pub task: Arc<dyn Task>,
    /// The algorithms that a tuned run used.
    choices: Choices,
    pub(crate) normalization: Normalization,
    pub(crate) tensors: Vec<NamedTensor>,
    /// Whether the weights are the averages that the run kept.
    pub averaged: bool,
    /// Updates that the weights of a run had; `None` for a weights file.
    pub optimizer_step: Option<u64>,
    /// By what predictions divide the logits: 1 unless it is set.
    pub temperature: f64,
    /// From which probability on each label is predicted, by its number; of those without one [`DEFAULT_THRESHOLD`].
    pub thresholds: Vec<f64>,
    /// What was taken from a weights file, and what was not; `None` for a run.
    pub pretrained: Option<Matching>,
    /// The file, for errors.
    pub(crate) origin: String,
}

impl Classifier {
    /// Opens a run folder (its best checkpoint), a checkpoint, or bare weights. A run contains everything that is
    /// needed. The others are for bare weights: `model`, the `preparation` of their images, and other prefixes of names. Bare
    /// weights may lack the classifier; then they give features alone.
    ///
    /// # Errors
    /// There is no such file, or no checkpoint in the folder; it cannot be read or is damaged; or `model` is missing
    /// for bare weights, is not the file's own, or has other tensors.
    pub fn open(
        path: &Path,
        model: Option<&str>,
        preparation: &Preparation,
        renames: &[Rename],
    ) -> Result<Self, TrainError> {
        let file = if path.is_dir() { RunPaths::new(path).require_weights()? } else { path.to_owned() };
        let origin = file.display().to_string();
        if is_checkpoint(&file)? {
            let checkpoint = Checkpoint::load(&file)?;
            if let Some(given) = model.filter(|given| *given != checkpoint.meta.model) {
                let reason = format!("{origin} holds a {}, not a {given}: leave `model` out", checkpoint.meta.model);
                return Err(TrainError::Weights(reason));
            }
            let mut classifier = Self::of(checkpoint, origin)?;
            if classifier.configuration.train.tune && path.is_dir() {
                classifier.choices = RunPaths::new(path).read_algorithms()?.unwrap_or_default();
            }
            return Ok(classifier);
        }
        let Some(model) = model else {
            return Err(TrainError::Weights(format!(
                "{origin} holds weights that do not name their model: give `model`"
            )));
        };
        let plans = any_classes(model, preparation)?;
        let (matching, mut tensors) = read_pretrained(&plans, &file, renames, true)?;
        matching.require_backbone()?;
        let lacking = plans.state.iter().filter(|own| matching.missing.contains(&own.name));
        tensors.extend(lacking.map(|own| NamedTensor {
            name: own.name.clone(),
            shape: torch_shape(own),
            values: vec![0.0; own.shape.elements()],
        }));
        let classes = matching.classes.unwrap_or_default();
        Ok(Classifier {
            model: model.to_owned(),
            classes: (0..classes).map(|class| class.to_string()).collect(),
            transform: preparation.evaluation.clone(),
            configuration: RunConfig::default(),
            task: Arc::new(Classification::default()),
            choices: Choices::default(),
            normalization: preparation.normalization.clone(),
            tensors,
            averaged: false,
            optimizer_step: None,
            temperature: 1.0,
            thresholds: Vec::new(),
            pretrained: Some(matching),
            origin,
        })
    }

    /// The classifier of a checkpoint, which `origin` names in errors. It has no choices of algorithms.
    pub(crate) fn of(checkpoint: Checkpoint, origin: String) -> Result<Self, TrainError> {
        let Checkpoint { meta, tensors } = checkpoint;
        let EvaluatedWeights { weights: tensors, averaged, .. } = EvaluatedWeights::of(tensors);
        let configuration = RunConfig::from_toml(&meta.configuration)?;
        let kind = match meta.target {
            TargetKind::Class => Some(TaskKind::Classification),
            TargetKind::Values(_) => configuration.train.task.filter(|kind| *kind != TaskKind::Classification),
        };
        let task = kind.and_then(|kind| of_run(kind, &meta.classes, meta.statistics.clone(), &configuration.train));
        let task = task.filter(|task| task.target() == meta.target).ok_or_else(|| {
            let target = &meta.target;
            let reason =
                format!("{origin} predicts {target} of an image, not its class: use the program that trained it");
            TrainError::Weights(reason)
        })?;
        let size = meta.size;
        let resize = meta.resize;
        let grayscale = meta.mean.len() == 1;
        let resampling = configuration.train.interpolation.unwrap_or_default();
        let transform = EvalTransform { size, resize, grayscale, resampling };
        transform.check().map_err(|error| TrainError::Weights(format!("{origin}: {error}")))?;
        Ok(Classifier {
            configuration,
            task,
            choices: Choices::default(),
            model: meta.model,
            classes: meta.classes,
            transform,
            normalization: Normalization { mean: meta.mean, std: meta.std },
            tensors,
            averaged,
            optimizer_step: Some(meta.optimizer_step),
            temperature: 1.0,
            thresholds: Vec::new(),
            pretrained: None,
            origin,
        })
    }

    /// What it predicts, as data have it.
    pub fn kind(&self) -> TaskKind {
        self.configuration.train.task.unwrap_or(TaskKind::Classification)
    }

    /// Takes the temperature that an evaluation kept in the run folder. Returns what is known of it; `None`, and the temperature stays as it is,
    /// if there is none, or it is that of other weights.
    ///
    /// # Errors
    /// Its file cannot be read, or is malformed.
    pub fn take_temperature(&mut self, run: &Path) -> Result<Option<CalibrationRecord>, TrainError> {
        if !run.is_dir() {
            return Ok(None);
        }
        let kept = RunPaths::new(run).read_calibration()?;
        let kept = kept.filter(|kept| self.optimizer_step == Some(kept.optimizer_step));
        if let Some(kept) = &kept {
            self.temperature = kept.temperature;
        }
        Ok(kept)
    }

    /// Takes the thresholds that an evaluation kept in the run folder, as [`Classifier::take_temperature`] does.
    ///
    /// # Errors
    /// Its file cannot be read, or is malformed.
    pub fn take_thresholds(&mut self, run: &Path) -> Result<Option<ThresholdsRecord>, TrainError> {
        if !run.is_dir() || self.kind() != TaskKind::MultiLabel {
            return Ok(None);
        }
        let kept = RunPaths::new(run).read_thresholds()?;
        let kept = kept.filter(|kept| self.optimizer_step == Some(kept.optimizer_step));
        if let Some(kept) = &kept {
            let own = |class: &String| kept.thresholds.get(class).copied().unwrap_or(DEFAULT_THRESHOLD);
            self.thresholds = self.classes.iter().map(own).collect();
        }
        Ok(kept)
    }

    /// A hash of what gives its outputs: the model, its weights, and by what images and outputs are scaled.
    pub(crate) fn model_digest(&self) -> String {
        let described = json!([self.model, self.normalization, self.task.statistics()]);
        let mut hasher = blake3::Hasher::new();
        hasher.update(described.to_string().as_bytes());
        let mut tensors: Vec<&NamedTensor> = self.tensors.iter().collect();
        tensors.sort_by_key(|tensor| &tensor.name);
        for NamedTensor { name, shape, values } in tensors {
            hasher.update(format!("{name} {shape:?}").as_bytes());
            hash_values(&mut hasher, values);
        }
        hasher.finalize().to_hex().to_string()
    }

    /// A hash of all that its predictions follow from, but for how the device computes: also classes, preparation of images,
    /// temperature and thresholds.
    pub fn digest(&self) -> String {
        let Classifier { classes, transform, temperature, thresholds, .. } = self;
        let described = format!("{} {classes:?} {transform:?} {temperature} {thresholds:?}", self.model_digest());
        blake3::hash(described.as_bytes()).to_hex().to_string()
    }

    /// Whether its run measured which algorithms are the fastest. Such choices are for batches of the run's size.
    pub fn is_tuned(&self) -> bool {
        self.configuration.train.tune && !self.choices.is_empty()
    }

    /// Checks that the weights have a classifier.
    ///
    /// # Errors
    /// They have none, so they predict nothing.
    pub fn require_classes(&self) -> Result<(), TrainError> {
        if !self.classes.is_empty() {
            return Ok(());
        }
        Err(TrainError::Weights(format!(
            "{} has no classifier: train one with `weights`, or use the features (enmasse embed, enmasse eval --knn)",
            self.origin
        )))
    }

    /// How its evaluation is compiled, for batches of `batch`.
    pub(crate) fn options(&self, batch: usize) -> CompileOptions {
        let classes = if self.classes.is_empty() { ANY } else { self.classes.len() };
        CompileOptions {
            mean: self.normalization.mean.clone(),
            std: self.normalization.std.clone(),
            precision: self.configuration.train.precision,
            target: self.task.target(),
            loss: self.task.loss(&self.configuration.train),
            metrics: self.configuration.train.metrics.iter().copied().map(Metric::from).collect(),
            ..CompileOptions::new(self.model.clone(), batch, self.transform.size, classes)
        }
    }

    /// A program with these weights, for batches of `batch`. It uses the algorithms of a tuned run for the same
    /// operations. It needs no group: ranks exchange only the sums of [`crate::evaluate`].
    ///
    /// # Errors
    /// The weights are not those of `model`, have no classifier, or the device has too little memory or cannot run the
    /// model.
    pub fn program(&self, model: &ModelFn, device: &dyn Device, batch: usize) -> Result<Box<dyn Program>, TrainError> {
        self.load(self.plans(model, device, batch)?, device)
    }

    /// Programs for batches of each of these sizes, all by the algorithms that the largest one takes wherever the device can, because a CPU's
    /// predictions then have the same bits in a batch of any size. Each holds the weights.
    ///
    /// # Errors
    /// Those of [`program`](Self::program).
    pub fn programs(
        &self,
        model: &ModelFn,
        device: &dyn Device,
        batches: &[usize],
    ) -> Result<Vec<Box<dyn Program>>, TrainError> {
        let largest = self.plans(model, device, batches.iter().copied().max().unwrap_or(1))?;
        let algorithms = device.algorithms(&largest.evaluate)?;
        let chosen = algorithms.iter().enumerate().filter(|(_, name)| !name.is_empty());
        let chosen: BTreeMap<usize, Arc<str>> = chosen.map(|(index, name)| (index, name.as_str().into())).collect();
        let program = |&batch: &usize| {
            let plans = self.plans(model, device, batch)?;
            let mut alike = plans.clone();
            alike.evaluate.algorithms.clone_from(&chosen);
            let is_alike = alike.evaluate.instructions.len() == algorithms.len();
            let can = is_alike && device.algorithms(&alike.evaluate).is_ok();
            self.load(if can { alike } else { plans }, device)
        };
        batches.iter().map(program).collect()
    }

    /// The plans for batches of `batch`, by the algorithms of a tuned run.
    fn plans(&self, model: &ModelFn, device: &dyn Device, batch: usize) -> Result<Plans, TrainError> {
        self.require_classes()?;
        let options = self.options(batch);
        let classes = self.classes.len();
        let plans = device.target().compile_evaluation(&|x| model(x, classes), &options)?;
        Ok(self.choose(plans))
    }

    /// A program whose logits are the features of a layer: of the one with this name, or what the last layer reads. They are for
    /// [`Features::compute`](crate::Features::compute).
    ///
    /// # Errors
    /// The weights are not those of `model`, there is no such layer, or the device has too little memory or cannot run
    /// the model.
    pub fn features(
        &self,
        model: &ModelFn,
        device: &dyn Device,
        batch: usize,
        layer: Option<&str>,
    ) -> Result<Box<dyn Program>, TrainError> {
        let options = self.options(batch);
        let classes = options.classes;
        let plans = device.target().compile_features(&|x| model(x, classes), &options, layer)?;
        self.with_weights(plans, device)
    }

    fn choose(&self, mut plans: Plans) -> Plans {
        if self.is_tuned() && !self.configuration.train.exact {
            plans.choose(&self.choices);
        }
        plans
    }

    pub(crate) fn with_weights(&self, plans: Plans, device: &dyn Device) -> Result<Box<dyn Program>, TrainError> {
        self.load(self.choose(plans), device)
    }

    fn load(&self, plans: Plans, device: &dyn Device) -> Result<Box<dyn Program>, TrainError> {
        let mut program = device.compile(plans, None)?;
        let listed: Vec<_> = self.tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])).collect();
        let read = |index: usize| Ok(Cow::Borrowed(&self.tensors[index].values[..]));
        write_tensors(program.as_mut(), &listed, &read, &self.origin)?;
        Ok(program)
    }
}

/// The plans of a known model whose number of classes is not known yet. Nothing is computed.
fn any_classes(model: &str, preparation: &Preparation) -> Result<Plans, TrainError> {
    let model = enmasse_models::find(model).map_err(|error| TrainError::Weights(error.to_string()))?;
    let Preparation { evaluation, normalization, .. } = preparation;
    let options = CompileOptions {
        mean: normalization.mean.clone(),
        std: normalization.std.clone(),
        ..CompileOptions::new(model.name(), 1, evaluation.size, ANY)
    };
    Ok(compile_evaluation(&|x| model.forward(x, ANY), &options)?)
}
