//! The hidden command that tests one GPU in a process of its own, for `--devices auto`.

use clap::{Arg, ArgMatches, Command, value_parser};
use enmasse::devices::preferred;

use crate::failure::Failure;
use crate::output::Output;

/// Its name.
pub const SELF_TEST: &str = "self-test";

pub fn command() -> Command {
    let number = Arg::new("number").required(true).value_parser(value_parser!(usize));
    Command::new(SELF_TEST).about("Test a GPU against the reference").arg(number).hide(true)
}

/// Prints why the GPU fails, in one line.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let number = matches.get_one::<usize>("number").copied().unwrap_or(0);
    let seen = preferred().and_then(|found| Some((found.kind, found.seen.as_ref().ok()?.get(number)?)));
    let outcome = match seen {
        Some((kind, seen)) => enmasse::devices::test(kind, seen),
        None => Err(format!("there is no GPU {number}")),
    };
    let Err(why) = outcome else { return Ok(()) };
    let mut output = Output::new(false);
    output.text(why.replace('\n', " "));
    output.finish()?;
    Err(Failure::Told(1))
}
