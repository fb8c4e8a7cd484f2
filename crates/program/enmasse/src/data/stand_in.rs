//! Stand-ins for data: the embedded data set, and the sizes of a model that is examined without data.

use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_data::DataError;
use enmasse_datasets::shapes;
use enmasse_train::RunConfig;

use crate::command_line::settings::{self, Ranks};
use crate::failure::{Failure, failed};

/// Height and width of the embedded data set's images, and the input size of a model without data.
pub const SHAPES_SIZE: usize = 64;

/// The defaults of commands that examine a model without data.
pub const WITHOUT_DATA: &[(&str, &str)] = &[("size", "64")];

/// The configuration of a model without data on some ranks, and its number of classes: `--classes`, or the default number for
/// data sets of that size.
pub fn without_data(matches: &ArgMatches, ranks: Ranks) -> Result<(RunConfig, usize), Failure> {
    let mut config = settings::finish(settings::layers(matches)?, ranks)?;
    let size = config.train.image_size(Some(SHAPES_SIZE));
    config.train.size = Some(size);
    let classes = matches.get_one("classes").copied().unwrap_or(default_classes(size));
    Ok((config, classes))
}

/// The default number of classes of data sets with images of this size: CIFAR and MNIST, or ImageNet.
pub fn default_classes(size: usize) -> usize {
    if size <= SHAPES_SIZE { 10 } else { 1000 }
}

/// The embedded data set, which is created once; concurrent callers wait for it.
pub fn shapes() -> Result<PathBuf, Failure> {
    let made = shapes::default_cache().and_then(|cache| shapes::ensure(&cache));
    made.map_err(|error| match error {
        DataError::Write { .. } => failed!("{error}; set ENMASSE_CACHE to a writable folder"),
        _ => Failure::error(error),
    })
}
