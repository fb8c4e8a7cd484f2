//! What `eval` and `predict` share: opening a run's best checkpoint or a weights file.

use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_models::Model;
use enmasse_train::{Classifier, LayeredConfig, Source, is_checkpoint};

use crate::failure::Failure;

/// Weights, and the model they belong to.
pub struct Weights {
    pub path: PathBuf,
    pub classifier: Classifier,
    pub model: Model,
    /// Whether a weights file says nothing but its tensors, so that classes have no names.
    pub is_bare: bool,
}

/// Opens `RUN|WEIGHTS` of a command line. A run carries its model and transform; for bare weights they are given.
pub fn open(matches: &ArgMatches, layers: &LayeredConfig) -> Result<Weights, Failure> {
    let path = matches.get_one::<PathBuf>("source").cloned().unwrap_or_default();
    let config = layers.config();
    let given = |name: &str| layers.source(name).is_some_and(|source| *source == Source::CommandLine);
    let is_bare = path.is_file() && !is_checkpoint(&path).map_err(Failure::error)?;
    if !is_bare && path.exists() && given("size") {
        let reason = "a run is used at the size it was trained at; leave --size out";
        return Err(Failure::Usage(format!("--size {}: {reason}", config.picture_size(None))));
    }
    let model = given("model").then_some(config.model.as_str());
    if let Some(name) = model {
        // Before the file, which may be large.
        find(name)?;
    }
    let size = config.size.filter(|_| given("size"));
    let classifier = Classifier::open(&path, model, size)?;
    let model = find(&classifier.model)?;
    Ok(Weights { path, classifier, model, is_bare })
}

fn find(name: &str) -> Result<Model, Failure> {
    enmasse_models::find(name).map_err(|error| Failure::Usage(error.to_string()))
}
