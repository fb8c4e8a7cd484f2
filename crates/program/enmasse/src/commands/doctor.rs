//! `enmasse doctor [RUN]`: one page for a bug report, about this machine and the cause of a run's failure.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};
use enmasse_doctor::{SELF_TEST, SelfTestError, examine, play};

use crate::command_line::arguments::{option, path, switch};
use crate::failure::Failure;
use crate::output::{Output, say_block};

/// The command line of `enmasse doctor`.
pub fn command() -> Command {
    Command::new("doctor")
        .about("One page for a bug report: this machine, a test of 2 ranks, and why a run failed")
        .after_help("Exit code 0: no problems; 1: some. No secret is shown: look it over, and publish it.")
        .arg(
            Arg::new("run")
                .value_name("RUN")
                .value_parser(path)
                .help("Folder of a run that failed, or of a launcher's logs (--log-dir)"),
        )
        .arg(option("data", "DATA").value_parser(path).help("Look at this data set too, in any form that train takes"))
        .arg(switch("json", "Print a JSON object"))
        .arg(Arg::new(SELF_TEST).long(SELF_TEST).hide(true))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    if let Some(part) = matches.get_one::<String>(SELF_TEST) {
        return self_test(part);
    }
    let path = |name: &str| matches.get_one::<PathBuf>(name).map(PathBuf::as_path);
    let report = examine(path("run"), path("data"));
    let mut output = Output::new(matches.get_flag("json"));
    match output.is_json() {
        true => output.json(report.to_json()),
        false => output.block(&report),
    }
    output.finish()?;
    Failure::told(u8::from(report.has_problems()))
}

/// A part of the test of two ranks, in a process that the doctor has started.
fn self_test(part: &str) -> Result<(), Failure> {
    let figures = play(part).map_err(|error| match error {
        SelfTestError::UnknownPart(_) => Failure::Usage(error.to_string()),
        SelfTestError::Failed(_) => Failure::error(error),
        SelfTestError::Ranks(report) => {
            say_block(report);
            Failure::Told(1)
        }
    })?;
    let mut output = Output::new(true);
    figures.into_iter().for_each(|figures| output.json(figures));
    output.finish()
}
