//! `enmasse completions SHELL`: what a shell needs to complete commands and flags.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::{Shell, generate};

use crate::failure::Failure;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  enmasse completions bash > ~/.local/share/bash-completion/completions/enmasse
  enmasse completions zsh > ~/.zfunc/_enmasse
  enmasse completions fish > ~/.config/fish/completions/enmasse.fish";

/// The command line of `enmasse completions`.
pub fn command() -> Command {
    Command::new("completions")
        .about("Print a script that completes commands and flags in a shell")
        .after_help(EXAMPLES)
        .arg(Arg::new("shell").value_name("SHELL").required(true).value_parser(value_parser!(Shell)).help("The shell"))
}

/// Prints the script for `whole`, the whole command line.
pub fn run(matches: &ArgMatches, whole: &Command) -> Result<(), Failure> {
    let Some(shell) = matches.get_one::<Shell>("shell") else { return Ok(()) };
    let mut script = Vec::new();
    generate(*shell, &mut without_hidden(whole), "enmasse", &mut script);
    let mut output = Output::new(false);
    output.block(String::from_utf8_lossy(&script).trim_end());
    output.finish()
}

/// What people type of a command: scripts for some shells would offer the rest too.
fn without_hidden(command: &Command) -> Command {
    let mut shown = Command::new(command.get_name().to_owned());
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let inside = command.get_subcommands().filter(|inside| !inside.is_hide_set());
    shown.args(arguments).subcommands(inside.map(without_hidden))
}
