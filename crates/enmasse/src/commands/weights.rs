//! What `eval` and `predict` share: opening a run's best checkpoint or a weights file.

use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_data::DataKind;
use enmasse_models::Model;
use enmasse_train::{Classifier, Devices, LayeredConfig, Preparation, Source, TrainConfig, is_checkpoint};

use crate::failure::Failure;
use crate::output::say;
use crate::settings;

/// Weights, and the model they belong to.
pub struct Weights {
    pub path: PathBuf,
    pub classifier: Classifier,
    pub model: Model,
    /// Whether a weights file says nothing but its tensors, so that classes have no names.
    pub is_bare: bool,
    /// The settings that are those of its run where nobody says otherwise.
    as_trained: Vec<&'static str>,
}

/// What a run says itself, and bare weights do not: how the pictures that the model sees are made.
pub const PREPARATION: &[&str] = &["size", "mean", "std"];

/// How a run computed. Uses of its weights do so too unless told otherwise, and get the same digits.
/// Pictures that it was trained on are pictures to it still.
const AS_TRAINED: &[&str] = &["precision", "exact", "isa", "convert_rgb", "metrics"];

/// Opens `RUN|WEIGHTS` of a command line. A run carries its model and transform; for bare weights they are given, or
/// follow from the `kind` of the pictures. `warns` unless another process tells the user.
pub fn open(matches: &ArgMatches, layers: &LayeredConfig, kind: DataKind, warns: bool) -> Result<Weights, Failure> {
    let path = matches.get_one::<PathBuf>("source").cloned().unwrap_or_default();
    let config = layers.config();
    let given = |name: &str| layers.source(name).is_some_and(|source| *source == Source::CommandLine);
    let is_bare = path.is_file() && !is_checkpoint(&path).map_err(Failure::error)?;
    let of_its_own = |name: &&&str| !is_bare && path.exists() && given(name);
    if let Some(name) = PREPARATION.iter().find(of_its_own) {
        let value = config.get(name).unwrap_or_default();
        return Err(Failure::Usage(format!(
            "--{name} {value}: a run is used as it was trained, at its own size and constants; leave --{name} out"
        )));
    }
    let model = given("model").then_some(config.model.as_str());
    if let Some(name) = model {
        // Before the file, which may be large.
        find(name)?;
    }
    let mut classifier = Classifier::open(&path, model, &Preparation::new(config, kind))?;
    let as_trained = adopt(&mut classifier, layers)?;
    if layers.source("isa") == Some(&Source::Default) {
        let lacking = take_available_isa(&mut classifier.configuration, config)?;
        lacking.filter(|_| warns).into_iter().for_each(|line| say(format_args!("warning: {line}")));
    }
    let model = find(&classifier.model)?;
    Ok(Weights { path, classifier, model, is_bare, as_trained })
}

impl Weights {
    /// A configuration in which what nobody has said is as in the run.
    pub fn compute_as_trained(&self, mut config: TrainConfig) -> Result<TrainConfig, Failure> {
        for name in &self.as_trained {
            if let Some(text) = self.classifier.configuration.get(name) {
                config.set(name, &text)?;
            }
        }
        Ok(config)
    }
}

/// Settles how the weights are computed with: as in their run, except for what was said. Returns the names of what it settled.
fn adopt(classifier: &mut Classifier, layers: &LayeredConfig) -> Result<Vec<&'static str>, Failure> {
    let (config, run) = (layers.config(), &mut classifier.configuration);
    if settings::kind(config) != settings::kind(run) {
        // These are words of the device that the run had.
        (run.exact, run.isa, run.tune) = (false, None, false);
    }
    let mut names = AS_TRAINED.to_vec();
    if classifier.is_tuned() {
        // What it chose is for batches of its own.
        let run = &mut classifier.configuration;
        let shards = run.shard_count(run.devices.as_ref().map_or(1, Devices::count));
        run.batch = Some(run.batch_per_shard(shards));
        names.push("batch");
    }
    for name in &names {
        if layers.source(name) != Some(&Source::Default)
            && let Some(text) = config.get(name)
        {
            classifier.configuration.set(name, &text)?;
        }
    }
    Ok(names)
}

/// Where the device that `config` asks for has not the level of a run, its best one; and the line that says so.
fn take_available_isa(run: &mut TrainConfig, config: &TrainConfig) -> Result<Option<String>, Failure> {
    let device = |isa: Option<String>| {
        let devices = config.devices.clone();
        settings::device(&TrainConfig { devices, isa, ..TrainConfig::default() }, 0, &[1])
    };
    let Some(lacking) = run.isa.clone().filter(|isa| device(Some(isa.clone())).is_err()) else { return Ok(None) };
    run.isa = device(None)?.levels().last().map(|level| level.to_string());
    let best = run.isa.as_deref().unwrap_or("no level");
    Ok(Some(format!("the run computed at --isa {lacking}, which this machine has not; it computes at {best} now")))
}

fn find(name: &str) -> Result<Model, Failure> {
    enmasse_models::find(name).map_err(|error| Failure::Usage(error.to_string()))
}
