//! One module per command.

mod bench;
mod doctor;
mod eval;
mod export;
pub mod launch;
mod plan;
mod predict;
pub mod slurm;
mod train;
mod weights;

use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_data::shapes;
use enmasse_train::TrainConfig;

pub use doctor::SELF_TEST;
pub use export::FORMATS;

use crate::arguments::OLD_LAUNCH;
use crate::failure::Failure;
use crate::settings;

/// Runs the command that was asked for; help has already been given.
pub fn run(matches: Option<ArgMatches>) -> Result<(), Failure> {
    match matches.as_ref().and_then(ArgMatches::subcommand) {
        Some(("train", matches)) => train::run(matches),
        Some(("eval", matches)) => eval::run(matches),
        Some(("predict", matches)) => predict::run(matches),
        Some(("export", matches)) => export::run(matches),
        Some(("plan", matches)) => plan::run(matches),
        Some(("bench", matches)) => bench::run(matches),
        Some(("launch", matches)) => launch::run(matches, true),
        Some((OLD_LAUNCH, matches)) => launch::run(matches, false),
        Some(("slurm", matches)) => slurm::run(matches),
        Some(("doctor", matches)) => doctor::run(matches),
        _ => Ok(()),
    }
}

/// Height and width of the embedded data set's pictures, and of a model without data.
const SHAPES_SIZE: usize = 64;

/// The configuration of a model without data, and its classes: `--classes`, or as many as data sets of that size usually
/// have.
fn without_data(matches: &ArgMatches) -> Result<(TrainConfig, usize), Failure> {
    let mut config = settings::finish(settings::layers(matches)?)?;
    let size = config.picture_size(Some(SHAPES_SIZE));
    config.size = Some(size);
    let classes = matches.get_one("classes").copied().unwrap_or(if size <= SHAPES_SIZE { 10 } else { 1000 });
    Ok((config, classes))
}

/// The embedded data set, which is made once; whoever else wants it at the same time waits.
fn shapes() -> Result<PathBuf, Failure> {
    shapes::default_cache().and_then(|cache| shapes::ensure(&cache)).map_err(Failure::error)
}
