//! One module per command.

mod bench;
mod eval;
mod launch;
mod plan;
mod predict;
mod train;
mod weights;

use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_data::shapes;
use enmasse_train::TrainConfig;

use crate::failure::Failure;

/// Runs the command that was asked for; help has already been given.
pub fn run(matches: Option<ArgMatches>) -> Result<(), Failure> {
    match matches.as_ref().and_then(ArgMatches::subcommand) {
        Some(("train", matches)) => train::run(matches),
        Some(("eval", matches)) => eval::run(matches),
        Some(("predict", matches)) => predict::run(matches),
        Some(("plan", matches)) => plan::run(matches),
        Some(("bench", matches)) => bench::run(matches),
        Some(("launch", matches)) => launch::run(matches),
        _ => Ok(()),
    }
}

/// Classes of a model without data: `--classes`, or as many as data sets of that size usually have.
fn classes(matches: &ArgMatches, config: &TrainConfig) -> usize {
    matches.get_one("classes").copied().unwrap_or(if config.size <= 64 { 10 } else { 1000 })
}

/// The embedded data set, which is made once; whoever else wants it at the same time waits.
fn shapes() -> Result<PathBuf, Failure> {
    shapes::default_cache().and_then(|cache| shapes::ensure(&cache)).map_err(Failure::error)
}
