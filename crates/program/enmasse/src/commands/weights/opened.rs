//! Shared by `eval` and `predict`: opening a run's best checkpoint, or weights of a file or a name.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use enmasse_datasets::DataKind;
use enmasse_models::Model;
use enmasse_train::{
    Classifier, Devices, LayeredConfig, Preparation, ProgramConfig, RunConfig, RunPaths, Setting, SettingSource,
    is_checkpoint,
};

use crate::command_line::arguments::named;
use crate::command_line::settings;
use crate::failure::{Failure, failed, usage};
use crate::output::{say, warn};
use crate::pretrained;
use crate::report::facts::from_file;

/// Weights, and their model.
pub struct Weights {
    pub path: PathBuf,
    pub classifier: Classifier,
    pub model: Model,
    /// Whether a weights file has only tensors, so that classes have no names.
    pub is_bare: bool,
    /// The settings that default to those of the run.
    as_trained: Vec<&'static str>,
}

/// Settings that a run has and bare weights lack: how the model's images are prepared.
pub const PREPARATION: &[&str] = &["size", "channels", "mean", "std", "interpolation", "crop_pct"];

/// Settings of a run that later uses of its weights default to, so that they get the same digits and accept the same files.
const AS_TRAINED: &[&str] = &["precision", "exact", "isa", "convert_rgb", "exif_transpose", "on_bad_sample", "metrics"];

/// The defaults of commands that use weights, as far as they differ from those of training.
pub const OF_A_RUN: &[(&str, &str)] = &[
    ("model", "the run's; known weights name it, a file of other programs needs it"),
    ("prefix", "none; a run has its model's names"),
    ("size", "the run's; for known weights theirs, otherwise the data set's own, 224 for a folder"),
    ("channels", "the run's; for known weights theirs, otherwise the data set's own"),
    ("mean", "the run's; for known weights theirs, otherwise the data set's own"),
    ("std", "the run's; for known weights theirs, otherwise the data set's own"),
    ("interpolation", "the run's; for known weights theirs, otherwise bilinear"),
    ("crop_pct", "the run's; for known weights theirs, otherwise the data set's own, 0.875 for a folder"),
    ("batch", "a global batch of 64, divided over the ranks; as in the run, if that was tuned"),
    ("precision", "as in the run"),
    ("isa", "as in the run"),
    ("exact", "as in the run"),
    ("convert_rgb", "as in the run"),
    ("exif_transpose", "as in the run"),
    ("on_bad_sample", "as in the run"),
    ("metrics", "as in the run"),
];

/// Whether a command that uses weights and takes the settings `names` checks whether this one has an effect. A prefix always has
/// one here: it is that of `RUN|WEIGHTS`.
pub fn is_checked(names: &str, setting: &Setting) -> bool {
    named(names).any(|named| named.name == setting.name) && setting.name != "prefix"
}

/// What `RUN|WEIGHTS` of a command line names.
pub struct Source {
    /// A run folder, or a file of weights.
    pub path: PathBuf,
    /// The names of the classes of known weights; empty if nothing names them.
    classes: Vec<String>,
}

impl Source {
    /// A run folder.
    pub fn run(path: &Path) -> Self {
        Source { path: path.to_owned(), classes: Vec::new() }
    }

    /// Finds it, and lays what is known of the weights below the flags.
    pub fn find(matches: &ArgMatches, layers: &mut LayeredConfig) -> Result<Self, Failure> {
        Self::named(&matches.get_one::<PathBuf>("source").cloned().unwrap_or_default(), layers)
    }

    /// The same for a run, a file or the name of weights.
    pub fn named(path: &Path, layers: &mut LayeredConfig) -> Result<Self, Failure> {
        let path = path.to_owned();
        let is_own = path.is_dir() || (path.is_file() && is_checkpoint(&path).map_err(Failure::error)?);
        let model = given(layers, "model").then(|| layers.config().train.model.clone());
        let known = if is_own { None } else { pretrained::of_word(&path, model.as_deref())? };
        let Some(known) = known else { return Ok(Source { path, classes: Vec::new() }) };
        known.lay(layers)?;
        Ok(Source { path: known.file, classes: known.classes })
    }
}

/// Whether a flag gives this setting.
fn given(layers: &LayeredConfig, name: &str) -> bool {
    layers.source(name) == Some(&SettingSource::CommandLine)
}

/// Opens a source. A run has its model and transform; for bare weights they are given, or known with the weights, or follow
/// from the `kind` of the images. `warns` is false if another process tells the user.
pub fn open(source: Source, layers: &LayeredConfig, kind: DataKind, warns: bool) -> Result<Weights, Failure> {
    let Source { path, classes } = source;
    let config = layers.config();
    let given = |name: &str| given(layers, name);
    let is_bare = path.is_file() && !is_checkpoint(&path).map_err(Failure::error)?;
    let of_its_own = |name: &&&str| !is_bare && path.exists() && given(name);
    if let Some(name) = PREPARATION.iter().find(of_its_own) {
        let flag = name.replace('_', "-");
        let value = config.get(name).unwrap_or_default();
        return Err(usage!(
            "--{flag} {value}: a run is used as it was trained, at its own size, channels and constants; leave --{flag} out"
        ));
    }
    if !is_bare && path.exists() && given("prefix") {
        let rule = config.get("prefix").unwrap_or_default();
        return Err(usage!("--prefix {rule}: a run has its model's names; leave --prefix out"));
    }
    let is_known = matches!(layers.source("model"), Some(SettingSource::CommandLine | SettingSource::Weights(_)));
    let model = is_known.then_some(config.train.model.as_str());
    if let Some(name) = model {
        // Checked before the file, which may be large.
        find(name)?;
    }
    let mut classifier = Classifier::open(&path, model, &Preparation::new(&config.train, kind), &config.train.prefix)?;
    if classes.len() == classifier.classes.len() {
        classifier.classes = classes;
    }
    let as_trained = adopt(&mut classifier, layers)?;
    if warns && path.is_dir() && !RunPaths::new(&path).best_checkpoint().exists() {
        warn(format_args!("{}: no whole epoch has ended, so these are the weights of its last step", path.display()));
    }
    if layers.source("isa") == Some(&SettingSource::Default) {
        let lacking = take_available_isa(&mut classifier.configuration, config)?;
        lacking.filter(|_| warns).into_iter().for_each(warn);
    }
    let model = known_model(&path, &classifier.model)?;
    Ok(Weights { path, classifier, model, is_bare, as_trained })
}

impl Weights {
    /// Says what was taken from a weights file, as training does at its start.
    pub fn report(&self) {
        let report = self.classifier.pretrained.as_ref().map(ToString::to_string);
        report.iter().flat_map(|report| from_file(report)).for_each(say);
    }

    /// A configuration in which values that the user did not set are those of the run.
    pub fn compute_as_trained(&self, mut config: RunConfig) -> Result<RunConfig, Failure> {
        for name in &self.as_trained {
            if let Some(text) = self.classifier.configuration.get(name) {
                config.set(name, &text)?;
            }
        }
        Ok(config)
    }
}

/// Decides how to compute with the weights: as in their run, except for the user's settings. Returns the names of the
/// decided settings.
fn adopt(classifier: &mut Classifier, layers: &LayeredConfig) -> Result<Vec<&'static str>, Failure> {
    let config = layers.config();
    let run = &mut classifier.configuration;
    let here = settings::kind_here(config, layers.given_device_kind());
    let of_run = settings::kind_here(run, Some(settings::default_kind()));
    if here != of_run {
        // These values belong to the run's own device.
        run.train.exact = false;
        run.program.isa = None;
        run.train.tune = false;
    }
    let mut names = AS_TRAINED.to_vec();
    if classifier.is_tuned() {
        // Its choices are for its own batches.
        let run = &mut classifier.configuration;
        let shards = run.train.shard_count(run.program.devices.as_ref().map_or(1, Devices::count));
        run.train.batch = Some(run.train.batch_per_shard(shards));
        names.push("batch");
    }
    for name in &names {
        if layers.source(name) != Some(&SettingSource::Default)
            && let Some(text) = config.get(name)
        {
            classifier.configuration.set(name, &text)?;
        }
    }
    Ok(names)
}

/// If the device of `config` lacks the run's level, chooses the device's best level, and returns a line that says so.
fn take_available_isa(run: &mut RunConfig, config: &RunConfig) -> Result<Option<String>, Failure> {
    let device = |isa: Option<String>| {
        let program = ProgramConfig { devices: config.program.devices.clone(), isa, ..ProgramConfig::default() };
        settings::device(&RunConfig { program, ..RunConfig::default() }, settings::alone())
    };
    let Some(lacking) = run.program.isa.clone().filter(|isa| device(Some(isa.clone())).is_err()) else {
        return Ok(None);
    };
    run.program.isa = device(None)?.levels().last().map(|level| level.to_string());
    let best = run.program.isa.as_deref().unwrap_or("no level");
    Ok(Some(format!("the run used --isa {lacking}, which this machine lacks; it now uses {best}")))
}

/// The model of a run. A run of a program's own model can only be used by that program.
pub fn known_model(run: &Path, model: &str) -> Result<Model, Failure> {
    enmasse_models::find(model).map_err(|_| {
        failed!(
            "{}: its model \"{model}\" was trained by your own program: use the library there \
             (TrainedModel::open_own to predict, Classifier::program and evaluate to evaluate)",
            run.display()
        )
    })
}

fn find(name: &str) -> Result<Model, Failure> {
    enmasse_models::find(name).map_err(Failure::usage)
}
