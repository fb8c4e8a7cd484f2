//! The data that a command examines, opened as `train` opens it with the same settings.

use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_data::DecodePool;
use enmasse_datasets::OpenOptions;
use enmasse_image::Crop;
use enmasse_train::{RunConfig, TrainingData};

use crate::command_line::settings::{cores, layers};
use crate::data::stand_in::{SHAPES_SIZE, shapes};
use crate::failure::Failure;
use crate::output::warn;

/// The defaults of commands that use the whole machine.
pub const WHOLE_MACHINE: &[(&str, &str)] = &[("loader_threads", "one for each core")];

/// A data set in its parts, and the settings of the command.
pub struct Opened {
    pub config: RunConfig,
    /// The folder that was named, or that of the embedded data set.
    pub root: PathBuf,
    pub data: TrainingData,
}

impl Opened {
    /// Opens the data of a command line. Warns of options without effect.
    pub fn new(matches: &ArgMatches) -> Result<Self, Failure> {
        Self::with_fraction(matches, OpenOptions::default().val_fraction)
    }

    /// The same with another fraction of each class for validation, where that part is sampled.
    pub fn with_fraction(matches: &ArgMatches, val_fraction: f64) -> Result<Self, Failure> {
        let layers = layers(matches)?;
        let mut config = layers.clone().finish()?;
        let root = match &config.train.data {
            Some(root) => root.clone(),
            None => {
                config.train.size.get_or_insert(SHAPES_SIZE);
                shapes()?
            }
        };
        let data = TrainingData::open(&root, &OpenOptions { val_fraction, ..config.train.open_options() })?;
        data.warnings.iter().for_each(warn);
        let is_padded = matches!(data.kind.crop(config.train.image_size(data.kind.native_size())), Crop::Padded { .. });
        let surroundings = data.surroundings(is_padded, false, false);
        layers.without_effect(&surroundings, |_| true).iter().for_each(warn);
        Ok(Opened { config, root, data })
    }

    /// Threads that decode: all cores of the machine unless `--loader-threads` says otherwise.
    pub fn pool(&self) -> Result<DecodePool, Failure> {
        let threads = self.config.train.loader_threads_of_rank(cores(), 0, 1);
        Ok(DecodePool::new(threads).map_err(Failure::error)?.timeout(self.config.train.timeout(1)))
    }
}
