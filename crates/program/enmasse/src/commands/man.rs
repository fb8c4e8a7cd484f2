//! `enmasse man`: pages of the manual.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};
use clap_mangen::Man;
use enmasse_system::files::write_whole;
use enmasse_wording::counted;

use crate::command_line::arguments::{option, path};
use crate::failure::{Failure, failed, usage};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  enmasse man train | man -l -
  enmasse man --out ~/.local/share/man/man1";

/// The command line of `enmasse man`.
pub fn command() -> Command {
    Command::new("man")
        .about("Print a page of the manual, or write all of them")
        .after_help(EXAMPLES)
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .num_args(0..)
                .help("The command of the page [default: enmasse itself]"),
        )
        .arg(
            option("out", "DIR")
                .value_parser(path)
                .conflicts_with("command")
                .help("Write a page for each command into this folder, which exists"),
        )
}

/// Prints or writes pages of `whole`, the whole command line.
pub fn run(matches: &ArgMatches, whole: Command) -> Result<(), Failure> {
    // Its pages would be those of all commands once more.
    let mut whole = whole.disable_help_subcommand(true);
    whole.build();
    let mut output = Output::new(false);
    if let Some(folder) = matches.get_one::<PathBuf>("out") {
        let mut pages = Vec::new();
        collect(&whole, &mut pages);
        for (name, page) in &pages {
            write_whole(&folder.join(name), |file| file.write_all(page)).map_err(Failure::error)?;
        }
        output.text(format_args!("wrote {} into {}", counted(pages.len(), "page"), folder.display()));
        return output.finish();
    }
    let mut command = &whole;
    for name in matches.get_many::<String>("command").into_iter().flatten() {
        let unknown = || usage!("man {name}: there is no such command; see enmasse --help");
        command = command.find_subcommand(name).ok_or_else(unknown)?;
    }
    let page = page(command).map_err(|error| failed!("cannot make the page: {error}"))?;
    output.block(String::from_utf8_lossy(&page).trim_end());
    output.finish()
}

/// The pages of a command and of the commands in it, with the names of their files. Hidden commands have none.
fn collect(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    // Memory is all that it is written to.
    pages.extend(page(command).ok().map(|page| (format!("{name}.1"), page)));
    let inside = command.get_subcommands().filter(|inside| !inside.is_hide_set());
    inside.for_each(|inside| collect(inside, pages));
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}
