//! The files of rank 0: the run folder's records, checkpoints and logs. Another rank writes only
//! its own log, and its flight record after a failure.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use enmasse_comm::Group;
use enmasse_data::BadSample;
use enmasse_device::Program;
use enmasse_graph::Choices;
use enmasse_weights::Tensors;

use crate::charts::{BestConfusion, Curves, Sheet, draw_classes};
use crate::checkpoint::{CallbackStates, CheckpointFile, Draft};
use crate::csv_log::CsvLog;
use crate::media::Histograms;
use crate::mlflow::MlFlow;
use crate::plans::training_metrics;
use crate::resumption::{changes, contradiction};
use crate::run_folder::create_folder_of;
use crate::run_log::RunLog;
use crate::state::StateTensors;
use crate::training_data::Listing;
use crate::{
    Attempt, Best, Callback, Change, CheckpointMeta, Keep, Logger, Monitor, Objective, Position, Preparation,
    Preprocessing, Resume, RunConfig, RunFolder, RunPaths, SettingOrigins, TargetKind, Task, TensorBoard, TrainConfig,
    TrainError, TrainingData, locate_run, remove_unbegun,
};

/// What writes the files of a fit, besides the run folder itself.
#[derive(Default)]
pub struct RunFiles {
    pub loggers: Vec<Box<dyn Logger>>,
    pub callbacks: Vec<Box<dyn Callback>>,
}

/// An open run folder.
pub struct RunWriter {
    pub folder: RunFolder,
    /// The checkpoint's texts; only the position changes during a run.
    meta: CheckpointMeta,
    /// The algorithms that a tuned run uses.
    pub choices: Choices,
    /// The settings that a resumed run changes.
    pub changes: Vec<Change>,
    /// Why the best checkpoint of the resumed run cannot be read, if it cannot.
    pub lost_best: Option<String>,
    /// Epochs of the resumed run whose records are missing or malformed.
    pub lost_records: u64,
    /// The samples that the run's list of unreadable ones has. A resumed run begins with those that it found before.
    pub unreadable: BTreeSet<BadSample>,
    /// The epochs that keep a checkpoint of their own.
    keep: Keep,
    /// Epochs between weights for PyTorch; 0 for none.
    export_every: u64,
    /// Whether the folder was made for this run.
    is_new: bool,
    task: Arc<dyn Task>,
    monitor: Monitor,
}

impl Drop for RunWriter {
    /// A run that ends before it begins leaves no folder.
    fn drop(&mut self) {
        if self.is_new {
            remove_unbegun(self.folder.paths().root());
        }
    }
}

impl RunWriter {
    /// Opens or creates the folder, and returns the last checkpoint if a run is resumed.
    pub fn open(
        run: &RunConfig,
        data: &TrainingData,
        preparation: &Preparation,
        attempt: &Attempt,
        (objective, monitor): (&Objective, &Monitor),
    ) -> Result<(Self, Option<CheckpointFile>), TrainError> {
        let config = &run.train;
        let task = objective.task();
        let is_new = config.out.as_deref().is_none_or(|out| !out.exists());
        let named = config.resume.run().or(config.out.as_deref());
        let paths = locate_run(named, &config.model, config.resume.is_on(), config.data.as_deref(), attempt)?;
        let folder = RunFolder::open(paths, config.resume.clone(), attempt)?;
        folder.clear_logs()?;
        let from = folder.paths().resumed_checkpoint(&config.resume);
        let saved = if from.exists() { Some(CheckpointFile::open(&from)?) } else { None };
        let mut meta = CheckpointMeta {
            model: config.model.clone(),
            classes: task.classes().to_vec(),
            size: preparation.evaluation.size,
            resize: preparation.evaluation.resize,
            mean: preparation.normalization.mean.clone(),
            std: preparation.normalization.std.clone(),
            configuration: run.to_toml(),
            split: Listing::of_training(data).hash(),
            seed: config.seed,
            target: task.target(),
            statistics: task.statistics().cloned(),
            teacher: objective.teacher.as_ref().map(|teacher| teacher.digest.clone()),
            best: Best { metric: monitor.name.clone(), value: None },
            ..CheckpointMeta::default()
        };
        let earlier = saved.as_ref().map(|checkpoint| &checkpoint.meta);
        if let Some(reason) = earlier.and_then(|earlier| contradiction(earlier, &meta)) {
            let run = folder.paths().root().display();
            let remedy = "resume it as it was started, or choose another `out`";
            return Err(TrainError::Resume(format!("{run} {reason}: {remedy}")));
        }
        if meta.teacher.is_none() {
            // With `distillation_alpha = 0` for a while it is still the run of its teacher.
            meta.teacher = earlier.and_then(|earlier| earlier.teacher.clone());
        }
        let changes = earlier.map_or(Vec::new(), |earlier| changes(earlier, run));
        let choices = match &saved {
            Some(checkpoint) if config.tune => known_choices(folder.paths(), &checkpoint.meta)?,
            _ => Choices::default(),
        };
        let unreadable = if saved.is_some() { folder.paths().read_unreadable()? } else { BTreeSet::new() };
        let writer = RunWriter {
            folder,
            meta,
            choices,
            changes,
            lost_best: None,
            lost_records: 0,
            unreadable,
            keep: config.keep,
            export_every: config.export_every,
            is_new,
            task,
            monitor: monitor.clone(),
        };
        Ok((writer, saved))
    }

    /// Checks the best checkpoint of a resumed run. If it is gone or damaged, or the best by another value than is monitored now, the
    /// best of the epochs to come replaces it.
    pub fn check_best(&mut self, position: &mut Position, monitored: &str) {
        if monitored != self.monitor.name {
            position.best = None;
        } else if position.best.is_some()
            && let Err(error) = CheckpointFile::open(&self.folder.paths().best_checkpoint())
        {
            position.best = None;
            self.lost_best = Some(error.to_string());
        }
    }

    /// Writes the run's description, and returns what writes its other files. These are the logs and charts of
    /// the epochs from `position` (later records of an interrupted run are dropped) and, for a new run, charts of its data
    /// with images of `size` pixels.
    pub fn begin(
        &mut self,
        config: &RunConfig,
        origins: Option<&SettingOrigins>,
        data: &TrainingData,
        position: &Position,
        size: usize,
    ) -> Result<RunFiles, TrainError> {
        let RunConfig { train, .. } = config;
        self.folder.remove_evaluations()?;
        if train.resume == Resume::Best {
            // From here on it is the last one: a run that is killed goes on from it.
            self.folder.copy_checkpoint(&self.paths().best_checkpoint(), &self.paths().last_checkpoint())?;
            self.remove_previous()?;
        }
        if !position.is_resumed() {
            self.folder.clear()?;
        }
        self.folder.write_config(config)?;
        self.folder.write_origins(origins)?;
        let classes = self.task.classes();
        if !classes.is_empty() {
            self.folder.write_class_indices(classes)?;
        }
        if let Some(split) = &data.split {
            self.folder.write_split(split)?;
        }
        if train.tune {
            self.folder.write_algorithms(&self.choices)?;
        }
        let (staging, paths) = (self.folder.staging(), self.folder.paths());
        let log = RunLog::open(staging, &paths.metrics(), position.epoch)?;
        self.lost_records = log.lost;
        let mut loggers: Vec<Box<dyn Logger>> = vec![
            Box::new(log),
            Box::new(CsvLog::new(staging, paths)),
            Box::new(TensorBoard::create(paths.root(), position.epoch)?),
        ];
        if let Some(store) = &train.mlflow {
            loggers.push(Box::new(MlFlow::open(store, paths, position.epoch, position.optimizer_step)?));
        }
        let mut callbacks: Vec<Box<dyn Callback>> =
            vec![Box::new(Curves::open(staging.clone(), paths.training_curves(), &paths.metrics(), &self.monitor)?)];
        let is_of_classes = self.task.target() == TargetKind::Class;
        if is_of_classes {
            callbacks.push(Box::new(BestConfusion::new(staging.clone(), paths.confusion_matrix(), classes)));
        }
        if !position.is_resumed() {
            if is_of_classes {
                self.folder.write_class_distribution(&draw_classes(data))?;
            }
            callbacks.push(Box::new(Sheet::new(staging.clone(), paths.augmented(), size, classes)));
        }
        if train.histograms {
            callbacks.push(Box::new(Histograms));
        }
        Ok(RunFiles { loggers, callbacks })
    }

    /// The texts of its checkpoints.
    pub fn meta(&self) -> &CheckpointMeta {
        &self.meta
    }

    /// Sets the states of callbacks that the next checkpoints have.
    pub fn keep_states(&mut self, states: CallbackStates) {
        self.meta.callbacks = states;
    }

    /// Writes the list of unreadable samples, if it is another one.
    pub fn list_unreadable(&mut self, samples: &BTreeSet<BadSample>) -> Result<(), TrainError> {
        if *samples != self.unreadable {
            self.folder.write_unreadable(samples)?;
            self.unreadable.clone_from(samples);
        }
        Ok(())
    }

    /// How images are prepared for the run's weights.
    pub fn preprocessing(&self) -> Result<Preprocessing, TrainError> {
        Preprocessing::of(&self.meta)
    }

    /// The paths of the run folder.
    pub fn paths(&self) -> &RunPaths {
        self.folder.paths()
    }

    /// Whether a checkpoint before the one that is resumed was kept.
    pub fn has_previous(&self, config: &TrainConfig) -> bool {
        config.resume != Resume::Best && self.paths().previous_checkpoint().exists()
    }

    /// Keeps the last checkpoint beside the one that is about to replace it. A run that is killed in between has both.
    fn keep_last(&self) -> Result<(), TrainError> {
        let paths = self.paths();
        Ok(self.folder.copy_checkpoint(&paths.last_checkpoint(), &paths.previous_checkpoint())?)
    }

    /// Removes the checkpoint before the last one.
    pub fn remove_previous(&self) -> Result<(), TrainError> {
        Ok(self.folder.remove(&self.paths().previous_checkpoint())?)
    }

    /// Puts the checkpoint before the last one, if there is an `earlier` one, in its place again.
    pub fn drop_last(&self, earlier: bool) -> Result<(), TrainError> {
        let paths = self.folder.paths();
        if !earlier {
            return Ok(self.folder.remove(&paths.last_checkpoint())?);
        }
        self.folder.copy_checkpoint(&paths.previous_checkpoint(), &paths.last_checkpoint())?;
        self.remove_previous()
    }

    /// Writes the checkpoint to resume from, in the middle of an epoch. `keeps_last`: the one so far stays beside it.
    /// The other ranks of the group send what they have ([`crate::parts::send_state`]).
    pub fn save(
        &mut self,
        program: &mut dyn Program,
        group: Option<&Group>,
        position: &Position,
        keeps_last: bool,
    ) -> Result<(), TrainError> {
        if keeps_last {
            self.keep_last()?;
        }
        position.write_to(&mut self.meta, training_metrics(program.plans()));
        let path = self.folder.paths().last_checkpoint();
        let tensors = StateTensors::all(program, group);
        self.write_checkpoint(&path, &Draft::new(&path, &self.meta, &tensors)?)
    }

    /// Writes a checkpoint.
    fn write_checkpoint(&self, path: &Path, draft: &Draft<impl Tensors>) -> Result<(), TrainError> {
        create_folder_of(path)?;
        Ok(draft.write(path, &|path, fill| self.folder.staging().write_whole(path, |file| fill(file)))?)
    }

    /// Writes the files at the end of `epoch`: weights for PyTorch and a checkpoint of its own if these are wanted, the
    /// best checkpoint if this is the best epoch, and last the checkpoint to resume from, as [`RunWriter::save`] does. A run killed in between therefore
    /// continues from the previous one, and writes all of them again. Only then older checkpoints are removed.
    pub fn save_epoch(
        &mut self,
        program: &mut dyn Program,
        group: Option<&Group>,
        position: &Position,
        (epoch, best): (u64, bool),
        keeps_last: bool,
    ) -> Result<(), TrainError> {
        if self.export_every > 0 && (epoch + 1).is_multiple_of(self.export_every) {
            let weights = StateTensors::evaluated(program);
            let updates = position.optimizer_step;
            self.folder.write_epoch_weights(epoch, &weights, updates, &self.preprocessing()?)?;
        }
        position.write_to(&mut self.meta, training_metrics(program.plans()));
        let paths = self.folder.paths();
        let tensors = StateTensors::all(program, group);
        let checkpoint = Draft::new(&paths.last_checkpoint(), &self.meta, &tensors)?;
        if self.keep != Keep::Newest(0) {
            self.write_checkpoint(&paths.epoch_checkpoint(epoch), &checkpoint)?;
        }
        if best {
            self.write_checkpoint(&paths.best_checkpoint(), &checkpoint)?;
        }
        if keeps_last {
            self.keep_last()?;
        }
        self.write_checkpoint(&paths.last_checkpoint(), &checkpoint)?;
        Ok(self.folder.remove_epoch_checkpoints(self.keep, epoch)?)
    }
}

/// The choices of the resumed run; empty if it was not tuned. Other choices would give other bits.
fn known_choices(paths: &RunPaths, meta: &CheckpointMeta) -> Result<Choices, TrainError> {
    let was_tuned = || RunConfig::from_toml(&meta.configuration).is_ok_and(|earlier| earlier.train.tune);
    match paths.read_algorithms()? {
        Some(choices) => Ok(choices),
        None if was_tuned() => Err(TrainError::Resume(format!(
            "{}: is missing, but holds the algorithms of the run: restore it, or continue with `tune = false`",
            paths.algorithms().display()
        ))),
        None => Ok(Choices::default()),
    }
}
