//! The `enmasse` program: parses the command line, runs one command, and turns a failure into a line and an exit code.

mod command_line;
mod commands;
mod data;
mod failure;
mod output;
mod pretrained;
mod ranks;
mod report;
mod web;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = match command_line::parse(commands::command(), std::env::args_os()).and_then(commands::run) {
        Ok(()) => 0,
        Err(failure) => output::say_failure(&failure),
    };
    // Results have been checked by the command. The line of an error has nobody left to be told about.
    let _ = enmasse_system::writer::finish();
    code.into()
}
