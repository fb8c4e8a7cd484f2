//! A run whose best weights compute again, and its data, wherever they are.

use std::path::{Path, PathBuf};

use enmasse_datasets::{DataKind, OpenOptions};
use enmasse_train::{LayeredConfig, RunConfig, SettingSource, TrainingData};

use crate::command_line::settings::{self, Ranks};
use crate::commands::eval::images::{Form, Found, ImageSelection, Part};
use crate::commands::weights::{self, Source, Weights};
use crate::data::stand_in::shapes;
use crate::failure::Failure;

/// The best weights of a run, how to compute with them on one device, and where the images are.
pub struct OpenRun {
    pub weights: Weights,
    pub config: RunConfig,
    pub root: PathBuf,
    /// The configuration of the run.
    saved: RunConfig,
}

impl OpenRun {
    /// Opens a run folder. `warns` is false if there is no user to tell.
    pub fn open(run: &Path, layers: LayeredConfig, warns: bool) -> Result<Self, Failure> {
        let weights = weights::open(Source::run(run), &layers, DataKind::Folder, warns)?;
        let saved = weights.classifier.configuration.clone();
        let is_given = layers.source("data") == Some(&SettingSource::CommandLine);
        let given = layers.config().train.data.clone().filter(|_| is_given);
        let root = match given.or_else(|| saved.train.data.clone()) {
            Some(root) => root,
            None => shapes()?,
        };
        let config = weights.compute_as_trained(settings::finish(layers, Ranks::One)?)?;
        Ok(OpenRun { weights, config, root, saved })
    }

    /// The images that validated the run.
    pub fn validation(&self) -> Result<Found, Failure> {
        self.selection().open(&self.weights, &self.root)
    }

    /// The run's data in their parts.
    pub fn in_parts(&self) -> Result<TrainingData, Failure> {
        self.selection().in_parts(&self.weights, &self.root)
    }

    fn selection(&self) -> ImageSelection {
        let options = OpenOptions {
            reading: self.config.train.reading(),
            remote: self.config.train.remote(),
            ..self.saved.train.open_options()
        };
        ImageSelection {
            root: self.root.clone(),
            form: Form::of(&self.root),
            part: Part::Validation,
            options,
            saved: Some(self.saved.clone()),
            is_own: true,
        }
    }
}
