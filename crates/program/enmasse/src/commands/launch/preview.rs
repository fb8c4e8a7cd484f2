//! `--dry-run` and `--print-env`: the command line of each node, the command of each rank, and its variables.

use enmasse_launch::{Job, plan};
use enmasse_wording::{counted, shell_word};

use crate::failure::Failure;
use crate::output::Output;

/// Prints the command lines of nodes that have no numbers yet.
pub fn print_nodes(nodes: &[String]) -> Result<(), Failure> {
    let mut output = Output::new(false);
    nodes.iter().for_each(|line| output.text(line));
    output.finish()
}

/// Prints the commands of all nodes and of this node's ranks, the ranks' variables, or both.
pub fn print(job: &Job, nodes: &[String], commands: bool, variables: bool) -> Result<(), Failure> {
    let (assignment, ranks) = plan(job).map_err(Failure::error)?;
    let mut output = Output::new(false);
    if commands {
        nodes.iter().for_each(|line| output.text(line));
        let (host, port) = &assignment.master;
        let node = format!("node {} of {}", assignment.node_rank, assignment.node_count);
        let local = counted(assignment.local_world_size, "rank");
        let all = assignment.world_size;
        output.text(format_args!("# {local} on {node}, {all} in all; rank 0 opens the store at {host}:{port}"));
    }
    for rank in ranks {
        let cores = rank.share.as_ref().map_or(String::new(), |share| {
            format!(" on {} {:?}", if share.processors.len() == 1 { "core" } else { "cores" }, share.processors)
        });
        output.text(format_args!("# rank {}{cores}", rank.rank));
        if variables {
            for (name, value) in &rank.variables {
                output.text(format_args!("{}={}", name.display(), shell_word(value)));
            }
        }
        if commands {
            let words: Vec<String> = std::iter::once(&rank.program).chain(&rank.arguments).map(shell_word).collect();
            output.text(words.join(" "));
        }
    }
    output.finish()
}
