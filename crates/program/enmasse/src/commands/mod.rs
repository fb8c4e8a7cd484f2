//! One module per command, each with its own part of the command line. Only this module knows all of them.

mod bench;
mod completions;
mod config;
mod data;
mod doctor;
mod embed;
mod eval;
mod export;
mod launch;
mod man;
mod models;
mod plan;
mod predict;
mod report;
mod self_test;
mod serve;
mod slurm;
mod status;
#[cfg(test)]
mod tests;
mod train;
mod view;
mod weights;

use clap::{ArgMatches, Command};

use crate::failure::Failure;
use crate::output::Output;
pub use self_test::SELF_TEST;

/// PyTorch's launcher before torchrun, as in `python -m torch.distributed.launch`: like `launch`, but ranks get
/// `--local-rank=N`.
const OLD_LAUNCH: &str = "torch.distributed.launch";

const EXAMPLES: &str = "\
Examples:
  enmasse train                        train on a small embedded data set
  enmasse train photos --out runs/a    train on a folder with one folder per class
  enmasse predict runs/a one.jpg       classify an image by that run
  enmasse help train                   all about a command";

/// The whole command line.
pub fn command() -> Command {
    Command::new("enmasse")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Data-parallel training of image classifiers.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(EXAMPLES)
        .subcommand(train::command())
        .subcommand(eval::command())
        .subcommand(eval::test_command())
        .subcommand(predict::command())
        .subcommand(serve::command())
        .subcommand(embed::command())
        .subcommand(report::command())
        .subcommand(view::command())
        .subcommand(export::command())
        .subcommand(data::command())
        .subcommand(config::command())
        .subcommand(models::command())
        .subcommand(weights::command())
        .subcommand(plan::command())
        .subcommand(bench::command())
        .subcommand(launch::command("launch"))
        .subcommand(launch::command(OLD_LAUNCH).hide(true))
        .subcommand(launch::drain::command())
        .subcommand(slurm::command())
        .subcommand(status::command())
        .subcommand(doctor::command())
        .subcommand(self_test::command())
        .subcommand(completions::command())
        .subcommand(man::command())
        .subcommand(Command::new("version").about("Print the version").hide(true))
}

/// Runs the requested command; help has already been printed.
pub fn run(matches: Option<ArgMatches>) -> Result<(), Failure> {
    match matches.as_ref().and_then(ArgMatches::subcommand) {
        Some(("train", matches)) => train::run(matches),
        Some(("eval" | eval::TEST, matches)) => eval::run(matches),
        Some(("predict", matches)) => predict::run(matches),
        Some(("serve", matches)) => serve::run(matches),
        Some(("embed", matches)) => embed::run(matches),
        Some(("report", matches)) => report::run(matches),
        Some(("view", matches)) => view::run(matches),
        Some(("export", matches)) => export::run(matches),
        Some(("data", matches)) => data::run(matches),
        Some(("config", matches)) => config::run(matches),
        Some(("models", matches)) => models::run(matches),
        Some(("weights", matches)) => weights::run(matches),
        Some(("plan", matches)) => plan::run(matches),
        Some(("bench", matches)) => bench::run(matches),
        Some(("launch", matches)) => launch::run(matches, true),
        Some((OLD_LAUNCH, matches)) => launch::run(matches, false),
        Some(("drain", matches)) => launch::drain::run(matches),
        Some(("slurm", matches)) => slurm::run(matches),
        Some(("completions", matches)) => completions::run(matches, &command()),
        Some(("man", matches)) => man::run(matches, command()),
        Some(("status", matches)) => status::run(matches),
        Some(("doctor", matches)) => doctor::run(matches),
        Some((SELF_TEST, matches)) => self_test::run(matches),
        Some(("version", _)) => {
            let mut output = Output::new(false);
            output.block(concat!("enmasse ", env!("CARGO_PKG_VERSION")));
            output.finish()
        }
        _ => Ok(()),
    }
}
