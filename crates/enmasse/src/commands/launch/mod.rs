//! `enmasse launch [flags] PROGRAM ARGS`: any program as N ranks, as torchrun starts it.

mod flags;
mod meeting;
mod options;
mod program;

use clap::ArgMatches;
use enmasse_launch::Outcome;

pub use flags::command;

use self::flags::Given;
use self::options::{Options, Topology};
use crate::failure::Failure;
use crate::output::say;

/// Runs the command. `use_env` is what `--use-env` is unless it is given.
pub fn run(matches: &ArgMatches, use_env: bool) -> Result<(), Failure> {
    let environment = |name: &str| std::env::var_os(name);
    let given = Given { matches, environment: &environment };
    let options = Options::read(&given)?;
    let use_env = matches.get_one::<String>("use-env").map_or(use_env, |text| text == "true");
    let mut job = program::job(&given, options.local_world_size, use_env)?
        .max_restarts(options.max_restarts)
        .grace(options.shutdown_timeout)
        .signal_grace(options.shutdown_timeout);
    if let Some(role) = options.role {
        job = job.role(role);
    }
    if let Some(signals) = &options.stop_signals {
        job =
            job.stop_signals(signals.iter().map(String::as_str)).map_err(|error| Failure::Usage(error.to_string()))?;
    }
    let job = match options.topology {
        Topology::Static(nodes) => {
            // Nodes that know nothing of each other must agree on a name.
            let run_id = options.run_id.or_else(|| (nodes.count > 1).then(|| "none".to_owned()));
            let job = job.nodes(nodes);
            match run_id {
                Some(run_id) => job.run_id(run_id),
                None => job,
            }
        }
        Topology::Meeting(meeting) => {
            let job = match options.run_id {
                Some(run_id) => job.run_id(run_id),
                None => job,
            };
            return meeting::run(&job, meeting, options.shutdown_timeout);
        }
    };
    let outcome = enmasse_launch::launch_telling(&job, |failure, attempt| {
        say(format_args!("error: {failure}\nstarting all ranks again: attempt {attempt} of {}", options.max_restarts));
    });
    let outcome = outcome.map_err(Failure::error)?;
    if let Some(report) = outcome.report() {
        let prefix = if matches!(outcome, Outcome::Failed(_)) { "error: " } else { "" };
        say(format_args!("{prefix}{report}"));
    }
    match outcome.exit_code() {
        0 => Ok(()),
        code => Err(Failure::Told(code)),
    }
}
