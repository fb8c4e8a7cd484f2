//! `enmasse launch [flags] PROGRAM ARGS`: any program as N ranks, as torchrun starts it.

pub mod drain;
mod flags;
mod ineffective;
mod meeting;
mod nodes;
mod options;
mod preview;
mod program;
mod timing;
mod topology;

use clap::ArgMatches;
use enmasse_launch::{Job, Outcome, Timing, new_run_id, write_error_file};
use enmasse_system::writer;

pub use flags::command;

use self::flags::GivenFlags;
use self::options::Options;
use self::topology::Topology;
use crate::failure::{Failure, usage};
use crate::output::{say, say_block, warn};

/// Tells enmasse's ranks for how many seconds they wait for all to join.
const JOIN_TIMEOUT: &str = "ENMASSE_JOIN_TIMEOUT";

/// Runs the command. `use_env` is the default of `--use-env`.
pub fn run(matches: &ArgMatches, use_env: bool) -> Result<(), Failure> {
    let environment = |name: &str| std::env::var_os(name);
    let given = GivenFlags { matches, environment: &environment };
    let options = Options::read(&given)?;
    options.warnings.iter().for_each(warn);
    let use_env = matches.get_one::<String>("use-env").map_or(use_env, |text| text.eq_ignore_ascii_case("true"));
    let mut job = job(&given, &options, use_env)?;
    let preview = options.print_env || options.dry_run;
    job.run_id = match &options.topology {
        Topology::Static(nodes) => {
            // Nodes that do not know each other must agree on a name.
            let known = options.run_id.clone().or_else(|| (nodes.count > 1).then(|| "none".to_owned()));
            let run_id = known.map_or_else(|| new_run_id().map_err(Failure::error), Ok)?;
            job.nodes = nodes.clone();
            Some(run_id)
        }
        Topology::Meeting(_) if options.print_env => {
            return Err(usage!("--print-env: nodes have no numbers before they meet; leave out --rdzv-endpoint"));
        }
        Topology::Meeting(_) if options.dry_run => {
            return preview::print_nodes(&nodes::by_hand(&given, &options.topology));
        }
        // Without a name, the leader has one for it.
        Topology::Meeting(_) => options.run_id.clone(),
    };
    if preview {
        return preview::print(&job, &nodes::by_hand(&given, &options.topology), options.dry_run, options.print_env);
    }
    let logs = options::logs(&given, job.run_id.as_deref().unwrap_or("none"), options.local_world_size)?;
    if let Some(folder) = logs.folder().filter(|_| logs.keeps_output()) {
        say(format_args!("log files: {}", folder.display()));
    }
    job.logs = logs.clone();
    let result = match options.topology {
        Topology::Static(nodes) => {
            // Slurm starts the others.
            if nodes.count > 1 && !options.is_of_step {
                say_block(nodes::announcement(&given, &nodes, options.join_timeout));
            }
            follow(&job, options.max_restarts)
        }
        Topology::Meeting(meeting) => meeting::run(&job, meeting, options.shutdown_timeout),
    };
    logs.discard_unless_asked_for();
    result
}

/// The options that are common to every attempt.
fn job(given: &GivenFlags<'_>, options: &Options, use_env: bool) -> Result<Job, Failure> {
    let mut job = program::job(given, options.local_world_size, use_env)?;
    job.max_restarts = options.max_restarts;
    job.grace = options.shutdown_timeout;
    job.signal_grace = options.shutdown_timeout;
    job.binding = options.binding;
    job.virtual_local_rank = options.virtual_local_rank;
    if let Some(role) = &options.role {
        job.role.clone_from(role);
    }
    if options.join_timeout != Timing::default().join {
        job = job.variable(JOIN_TIMEOUT, options.join_timeout.as_secs_f64().to_string());
    }
    if let Some(signals) = &options.stop_signals {
        job = job.stop_signals(signals.iter().map(String::as_str)).map_err(Failure::usage)?;
    }
    Ok(job)
}

/// Runs the job to its end, and reports every failure.
fn follow(job: &Job, max_restarts: usize) -> Result<(), Failure> {
    // The ranks write to the same streams.
    let _ = writer::finish();
    let outcome = enmasse_launch::launch_telling(job, |failure, attempt| {
        say_block(format_args!("error: {failure}\nrestarting all ranks: attempt {attempt} of {max_restarts}"));
    });
    let outcome = outcome.map_err(Failure::error)?;
    if let Some(report) = outcome.report() {
        let prefix = if matches!(outcome, Outcome::Failed(_)) { "error: " } else { "" };
        say_block(format_args!("{prefix}{report}"));
    }
    let code = outcome.exit_code();
    if let Outcome::Failed(failure) = &outcome {
        // A launcher of this launcher may want the error too.
        let first = failure.to_string();
        let rest = [&failure.stderr, &failure.traceback];
        let lines = rest.into_iter().find(|lines| !lines.is_empty()).cloned().unwrap_or_default();
        write_error_file(first.lines().next().unwrap_or_default(), &lines, Some(code));
    }
    Failure::told(code)
}
