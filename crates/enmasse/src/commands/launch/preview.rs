//! `--dry-run` and `--print-env`: the command of each rank, and its variables.

use std::ffi::OsStr;

use enmasse_launch::{Job, plan};
use enmasse_wording::counted;

use crate::failure::Failure;
use crate::output::Output;

/// Prints the commands, the variables, or both.
pub fn print(job: &Job, commands: bool, variables: bool) -> Result<(), Failure> {
    let (assignment, ranks) = plan(job).map_err(Failure::error)?;
    let mut output = Output::new(false);
    if commands {
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
                output.text(format_args!("{}={}", name.display(), quoted(value)));
            }
        }
        if commands {
            let words: Vec<String> =
                std::iter::once(&rank.program).chain(&rank.arguments).map(|word| quoted(word)).collect();
            output.text(words.join(" "));
        }
    }
    output.finish()
}

/// A word as a shell reads it.
pub fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        let check = |word: &str, expected: &str| assert_eq!(quoted(OsStr::new(word)), expected);
        check("train.py", "train.py");
        check("--lr=0.1", "--lr=0.1");
        check("", "''");
        check("a b", "'a b'");
        check("it's $HOME", r"'it'\''s $HOME'");
    }
}
