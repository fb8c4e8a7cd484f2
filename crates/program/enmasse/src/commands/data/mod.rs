//! `enmasse data`: a data set fetched, examined and prepared, before or without a run. Each command has its own module.

mod check;
mod fetch;
mod opened;
mod pack;
mod scan;
mod show;
mod split;
mod stats;
pub mod targets;

use clap::{ArgMatches, Command};

use crate::command_line::arguments::group;
use crate::failure::Failure;

/// The command line of `enmasse data`.
pub fn command() -> Command {
    group(
        "data",
        "Fetch, examine and prepare data",
        [fetch::command(), stats::command(), check::command(), split::command(), pack::command(), show::command()],
    )
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("fetch", matches)) => fetch::run(matches),
        Some(("stats", matches)) => stats::run(matches),
        Some(("check", matches)) => check::run(matches),
        Some(("split", matches)) => split::run(matches),
        Some(("pack", matches)) => pack::run(matches),
        Some(("show", matches)) => show::run(matches),
        _ => Ok(()),
    }
}
