//! What `eval` and `predict` share: opening a run's best checkpoint or a weights file.

use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_data::DataKind;
use enmasse_models::Model;
use enmasse_train::{Classifier, LayeredConfig, Preparation, Source, TrainConfig, is_checkpoint};

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

/// How a run computed. Whoever uses its weights does so too where nobody says otherwise, and gets the same digits.
/// Pictures that it was trained on are pictures to it still.
const AS_TRAINED: &[&str] = &["precision", "exact", "isa", "convert_rgb"];

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
    // What a tuned run chose is for batches of its own.
    let batch = classifier.is_tuned().then_some(&"batch");
    let as_trained: Vec<&'static str> = AS_TRAINED.iter().chain(batch).copied().collect();
    for name in &as_trained {
        if layers.source(name) != Some(&Source::Default)
            && let Some(text) = config.get(name)
        {
            classifier.configuration.set(name, &text)?;
        }
    }
    if layers.source("isa") == Some(&Source::Default) {
        let lacking = take_available_isa(&mut classifier.configuration)?;
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

/// Where this machine has not the level that a run was told to compute at, its best one; and the line that says so.
fn take_available_isa(configuration: &mut TrainConfig) -> Result<Option<String>, Failure> {
    if settings::isa(configuration).is_ok() {
        return Ok(None);
    }
    let lacking = configuration.isa.take().unwrap_or_default();
    let best = settings::isa(configuration)?;
    configuration.set("isa", best.name())?;
    Ok(Some(format!("the run computed at --isa {lacking}, which this machine has not; it computes at {best} now")))
}

fn find(name: &str) -> Result<Model, Failure> {
    enmasse_models::find(name).map_err(|error| Failure::Usage(error.to_string()))
}
