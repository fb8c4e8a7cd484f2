//! `enmasse slurm`: batch scripts written, submitted, watched and checked.

mod arguments;
mod mistakes;
mod script;
mod status;
mod submit;
mod tools;

use clap::ArgMatches;

pub use arguments::command;

use crate::failure::Failure;

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("script", matches)) => script::run(matches),
        Some(("submit", matches)) => submit::run(matches),
        Some(("status", matches)) => status::run(matches),
        Some(("check", matches)) => mistakes::run(matches),
        _ => Ok(()),
    }
}
