//! What the launcher of one of several numbered nodes says at once: which nodes its ranks wait for, and how those are
//! started.

use std::ffi::OsString;
use std::time::Duration;

use clap::parser::ValueSource;
use enmasse_launch::Nodes;
use enmasse_wording::shell_word;

use super::flags::{FLAGS, Given};

/// The lines for standard error.
pub fn announcement(given: &Given<'_>, nodes: &Nodes, join_timeout: Duration) -> String {
    let Nodes { rank, count, .. } = *nodes;
    let place = nodes.master.as_ref().map_or(String::new(), |(host, port)| format!(" at {host}:{port}"));
    let wait = format!("up to {} s", join_timeout.as_secs_f64());
    let (others, next) = match (rank, count) {
        (0, 2) => ("node 1".to_owned(), "start it with".to_owned()),
        (0, _) => (format!("nodes 1 to {}", count - 1), "start each with its own --node-rank, node 1 with".to_owned()),
        _ => ("node 0".to_owned(), "it is started with".to_owned()),
    };
    let other = if rank == 0 { 1 } else { 0 };
    format!("node {rank} of {count} waits for {others}{place}, {wait}; {next}:\n  {}", command(given, nodes, other))
}

/// The command line of another node: this one's, with that node's number and what variables may have said here.
fn command(given: &Given<'_>, nodes: &Nodes, node_rank: usize) -> String {
    let mut words: Vec<OsString> = ["enmasse", "launch"].map(OsString::from).to_vec();
    let endpoint = given.matches.contains_id("rdzv-endpoint");
    let master = nodes.master.as_ref().filter(|_| !endpoint);
    for (name, _, value, _) in FLAGS {
        let decided = match *name {
            "nnodes" => Some(nodes.count.to_string()),
            "node-rank" => Some(node_rank.to_string()),
            "master-addr" => master.map(|(host, _)| host.clone()),
            "master-port" => master.map(|(_, port)| port.to_string()),
            _ if given.matches.value_source(name) != Some(ValueSource::CommandLine) => None,
            _ if value.is_none() => {
                words.push(format!("--{name}").into());
                None
            }
            name => given.matches.get_one::<String>(name).cloned(),
        };
        if let Some(text) = decided {
            words.extend([format!("--{name}").into(), text.into()]);
        }
    }
    words.extend(given.matches.get_many::<OsString>("program").into_iter().flatten().cloned());
    words.iter().map(shell_word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::flags::command;
    use super::super::options::{Options, Topology};
    use super::*;

    #[test]
    fn every_node_names_the_others_and_how_they_are_started() {
        let check = |line: &str, variables: &[(&str, &str)], expected: &str| {
            let words = std::iter::once("launch").chain(line.split(' ')).chain(["train.py", "--out", "a b"]);
            let matches = command("launch").try_get_matches_from(words).unwrap();
            let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            let given = Given { matches: &matches, environment: &find };
            let options = Options::read(&given).unwrap();
            let Topology::Static(nodes) = &options.topology else { panic!("{line}") };
            assert_eq!(announcement(&given, nodes, options.join_timeout), expected, "{line}");
        };
        check(
            "--nnodes 2 --master_addr h -n 3 -m",
            &[],
            "node 0 of 2 waits for node 1 at h:29500, up to 600 s; start it with:\n  enmasse launch --nproc-per-node 3 --nnodes 2 \
             --node-rank 1 --master-addr h --master-port 29500 --module train.py --out 'a b'",
        );
        check(
            "--nnodes=3 --node_rank=2 --rdzv-conf join_timeout=5",
            &[("PET_MASTER_ADDR", "h"), ("PET_MASTER_PORT", "7")],
            "node 2 of 3 waits for node 0 at h:7, up to 5 s; it is started with:\n  enmasse launch --nnodes 3 --node-rank 0 \
             --master-addr h --master-port 7 --rdzv-conf join_timeout=5 train.py --out 'a b'",
        );
        check(
            "--nnodes 3 --node-rank 0 --rdzv-endpoint h:9",
            &[],
            "node 0 of 3 waits for nodes 1 to 2 at h:9, up to 600 s; start each with its own --node-rank, node 1 with:\n  \
             enmasse launch --nnodes 3 --node-rank 1 --rdzv-endpoint h:9 train.py --out 'a b'",
        );
    }
}
