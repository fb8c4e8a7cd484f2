//! The `enmasse` program: parses the command line, runs one command, and turns a failure into a line and an exit code.

mod arguments;
mod attempt;
mod automatic;
mod balance;
mod command_line;
mod commands;
mod csv;
mod data_bound;
mod data_of_run;
mod device_warnings;
mod facts;
mod failure;
mod failure_record;
mod finished;
mod flag_names;
mod flight;
mod interrupt;
mod launched;
mod launcher_flags;
mod loss_scale;
mod output;
mod progress;
mod rank_log;
mod ranks;
mod reporter;
mod requeue;
mod screen;
mod settings;
mod skipped;
mod staging;
mod stragglers;
mod traced;
mod transfer;
mod without_data;
mod writer;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = match command_line::parse(commands::command(), std::env::args_os()).and_then(commands::run) {
        Ok(()) => 0,
        Err(failure) => failure.say(),
    };
    // Results have been checked by the command. The line of an error has nobody left to be told about.
    let _ = writer::finish();
    code.into()
}
