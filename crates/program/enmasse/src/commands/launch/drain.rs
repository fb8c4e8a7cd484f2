//! `enmasse drain NODE`: a node of an elastic job leaves before its machine goes, and the job goes on without it.

use clap::{Arg, ArgMatches, Command};
use enmasse_comm::Token;

use super::flags::GivenFlags;
use super::options::meeting_endpoint;
use crate::command_line::arguments::option;
use crate::failure::{Failure, usage};
use crate::output::say;

const EXAMPLES: &str = "\
Examples:
  enmasse drain node-c --rdzv-endpoint node-a:29400 --rdzv-id job";

/// The command line of `enmasse drain`.
pub fn command() -> Command {
    Command::new("drain")
        .about("Have a node leave an elastic job: its ranks finish their step, the run is saved")
        .after_help(EXAMPLES)
        .after_long_help(format!(
            "It returns once the node has left, and the others go on at the new world size. A node that is started again joins as before. \
             The request proves the job's token, ENMASSE_TOKEN or ENMASSE_TOKEN_FILE.\n\n{EXAMPLES}"
        ))
        .arg(Arg::new("node").value_name("NODE").required(true).help("Its host name, as the job prints it"))
        .arg(option("rdzv-endpoint", "HOST:PORT").alias("rdzv_endpoint").help("Where the job's nodes meet"))
        .arg(option("rdzv-id", "ID").alias("rdzv_id").help("The job's name, if it has one"))
}

/// Runs the command.
pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let environment = |name: &str| std::env::var_os(name);
    let given = GivenFlags { matches, environment: &environment };
    let endpoint = meeting_endpoint(&given)?;
    let endpoint = endpoint.ok_or_else(|| usage!("set where the job's nodes meet with --rdzv-endpoint HOST:PORT"))?;
    let job = given.value("rdzv-id", "a name", |text| (!text.is_empty()).then(|| text.to_owned()))?;
    let token = Token::from_variables(&|name| std::env::var(name).ok()).map_err(Failure::usage)?;
    let Some(node) = matches.get_one::<String>("node") else { return Ok(()) };
    enmasse_launch::drain(endpoint, token, job.as_deref(), node, |line| say(line)).map_err(Failure::error)?;
    say(format_args!("{node} has left the job"));
    Ok(())
}
