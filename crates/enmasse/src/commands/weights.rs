//! What `eval` and `predict` share: opening a run's best checkpoint or a weights file.

use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_data::DataKind;
use enmasse_models::Model;
use enmasse_train::{Classifier, LayeredConfig, Preparation, Source, is_checkpoint};

use crate::failure::Failure;

/// Weights, and the model they belong to.
pub struct Weights {
    pub path: PathBuf,
    pub classifier: Classifier,
    pub model: Model,
    /// Whether a weights file says nothing but its tensors, so that classes have no names.
    pub is_bare: bool,
}

/// What a run says itself, and bare weights do not: how the pictures that the model sees are made.
pub const PREPARATION: &[&str] = &["size", "mean", "std"];

/// Opens `RUN|WEIGHTS` of a command line. A run carries its model and transform; for bare weights they are given, or
/// follow from the `kind` of the pictures.
pub fn open(matches: &ArgMatches, layers: &LayeredConfig, kind: DataKind) -> Result<Weights, Failure> {
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
    if layers.source("precision") != Some(&Source::Default) {
        classifier.precision = config.precision;
    }
    let model = find(&classifier.model)?;
    Ok(Weights { path, classifier, model, is_bare })
}

fn find(name: &str) -> Result<Model, Failure> {
    enmasse_models::find(name).map_err(|error| Failure::Usage(error.to_string()))
}
