//! `enmasse config show`: the settings that a training run would have, and where each comes from.

use clap::{ArgMatches, Command};
use enmasse_train::SETTINGS;

use crate::command_line::arguments::{data, file, flag, group};
use crate::command_line::settings;
use crate::failure::Failure;
use crate::output::Output;

/// The command line of `enmasse config`.
pub fn command() -> Command {
    let flags = SETTINGS.iter().filter(|setting| setting.name != "data").map(flag);
    let show = Command::new("show")
        .about("Print all settings of a training run with these flags, as TOML, and where each comes from")
        .args(data())
        .args(flags)
        .arg(file("config", "Read settings from this TOML file"));
    group("config", "Settings of a training run, without the run", [show])
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(("show", matches)) = matches.subcommand() else { return Ok(()) };
    let layers = settings::layers(matches)?;
    let mut output = Output::new(false);
    output.block(layers.to_toml().trim_end());
    output.finish()
}
