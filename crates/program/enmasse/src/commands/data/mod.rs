//! `enmasse data`: a data set fetched, examined and prepared, before or without a run. Each command has its own module.

mod check;
mod fetch;
mod opened;
mod pack;
mod scan;
mod show;
mod split;
mod stats;

use clap::{ArgMatches, Command};

use crate::failure::Failure;

/// The command line of `enmasse data`.
pub fn command() -> Command {
    Command::new("data")
        .about("Fetch, examine and prepare data")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(fetch::command())
        .subcommand(stats::command())
        .subcommand(check::command())
        .subcommand(split::command())
        .subcommand(pack::command())
        .subcommand(show::command())
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
