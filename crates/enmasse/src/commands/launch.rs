//! `enmasse launch -n N -- PROGRAM ARGS`: any program as N ranks.

use std::ffi::OsString;

use clap::ArgMatches;
use enmasse_launch::{Job, Outcome};

use crate::failure::Failure;

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let ranks = matches.get_one("nproc-per-node").copied().unwrap_or(1);
    let mut words = matches.get_many::<OsString>("program").into_iter().flatten().cloned();
    let Some(program) = words.next() else {
        return Err(Failure::Usage("name a program to launch".to_owned()));
    };
    let outcome = enmasse_launch::launch(&Job::new(program, ranks).args(words)).map_err(Failure::error)?;
    if let Some(report) = outcome.report() {
        let prefix = if matches!(outcome, Outcome::Failed(_)) { "error: " } else { "" };
        eprintln!("{prefix}{report}");
    }
    match outcome.exit_code() {
        0 => Ok(()),
        code => Err(Failure::Told(code)),
    }
}
