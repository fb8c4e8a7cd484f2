//! The command lines of a job's nodes: all of them with `--dry-run`, and otherwise, as one of several numbered nodes, that
//! of a node which is awaited.

use std::ffi::OsString;
use std::time::Duration;

use enmasse_launch::Nodes;
use enmasse_wording::shell_word;

use super::flags::{FLAGS, GivenFlags};
use super::topology::Topology;

/// Flags of which a command line for another node has none.
const PREVIEWS: [&str; 2] = ["print-env", "dry-run"];

/// What to run on each node to start the job by hand, with a line before that says so; nothing for a single node.
pub fn by_hand(given: &GivenFlags<'_>, topology: &Topology) -> Vec<String> {
    // Nothing else that nodes need is on no command line.
    const SECRET: &str = "with one ENMASSE_TOKEN, or --out in a folder that all nodes see";
    match topology {
        Topology::Static(nodes) if nodes.count == 1 => vec![],
        Topology::Static(nodes) => {
            let mut lines = vec![format!("# {} nodes: run one of these lines on each, {SECRET}", nodes.count)];
            if let Some((host, _)) = nodes.master.as_ref().filter(|(host, _)| is_loopback(host)) {
                lines.push(format!("# {host} is every machine's name for itself: name node 0 with --master-addr"));
            }
            lines.extend((0..nodes.count).map(|node| command(given, Some((nodes, node)))));
            lines
        }
        Topology::Meeting(_) => {
            vec![format!("# run this line on every node, {SECRET}"), command(given, None)]
        }
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The lines for standard error.
pub fn announcement(given: &GivenFlags<'_>, nodes: &Nodes, join_timeout: Duration) -> String {
    let Nodes { rank, count, .. } = *nodes;
    let place = nodes.master.as_ref().map_or(String::new(), |(host, port)| format!(" at {host}:{port}"));
    let wait = format!("up to {} s", join_timeout.as_secs_f64());
    let (others, next) = match (rank, count) {
        (0, 2) => ("node 1".to_owned(), "start it with".to_owned()),
        (0, _) => (format!("nodes 1 to {}", count - 1), "start each with its own --node-rank, node 1 with".to_owned()),
        _ => ("node 0".to_owned(), "it is started with".to_owned()),
    };
    let other = if rank == 0 { 1 } else { 0 };
    format!(
        "node {rank} of {count} waits for {others}{place}, {wait}; {next}:\n  {}",
        command(given, Some((nodes, other)))
    )
}

/// The command line of a node: this one's, with what variables say here. Numbered nodes have their own number.
fn command(given: &GivenFlags<'_>, node: Option<(&Nodes, usize)>) -> String {
    let mut words: Vec<OsString> = ["enmasse", "launch"].map(OsString::from).to_vec();
    let endpoint = given.matches.contains_id("rdzv-endpoint");
    for (name, _, value, _) in FLAGS {
        // Their values were read before, and are valid.
        let own = || given.text(name).ok().flatten().map(|(_, text)| text);
        let of_master = |part: fn(&(String, u16)) -> String| match node {
            Some((nodes, _)) => nodes.master.as_ref().filter(|_| !endpoint).map(part),
            None => None,
        };
        let decided = match (*name, node) {
            ("nnodes", Some((nodes, _))) => Some(nodes.count.to_string()),
            ("node-rank", node) => node.map(|(_, number)| number.to_string()),
            ("master-addr", _) => of_master(|(host, _)| host.clone()),
            ("master-port", _) => of_master(|(_, port)| port.to_string()),
            _ if value.is_none() => {
                if !PREVIEWS.contains(name) && given.is_on(name).unwrap_or(false) {
                    words.push(format!("--{name}").into());
                }
                None
            }
            _ => own(),
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
    use super::super::flags;
    use super::super::options::Options;
    use super::*;

    /// What the lines are for a command line and variables.
    fn read<R>(line: &str, variables: &[(&str, &str)], body: impl FnOnce(&GivenFlags, &Options) -> R) -> R {
        let words = std::iter::once("launch").chain(line.split(' ')).chain(["train.py", "--out", "a b"]);
        let matches = flags::command("launch").try_get_matches_from(words).unwrap();
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let given = GivenFlags { matches: &matches, environment: &find };
        body(&given, &Options::read(&given).unwrap())
    }

    #[test]
    fn a_line_for_each_node() {
        let check = |line: &str, variables: &[(&str, &str)], expected: &[&str]| {
            let found = read(line, variables, |given, options| by_hand(given, &options.topology));
            assert_eq!(found, expected, "{line}");
        };
        check("-n 3 --dry-run", &[], &[]);
        check(
            "--nnodes 2 --master_addr h --dry-run --module --node-rank 1",
            &[("PET_NPROC_PER_NODE", "3"), ("PET_DRY_RUN", "1")],
            &[
                "# 2 nodes: run one of these lines on each, with one ENMASSE_TOKEN, or --out in a folder that all nodes see",
                "enmasse launch --nproc-per-node 3 --nnodes 2 --node-rank 0 --master-addr h --master-port 29500 --module \
                 train.py --out 'a b'",
                "enmasse launch --nproc-per-node 3 --nnodes 2 --node-rank 1 --master-addr h --master-port 29500 --module \
                 train.py --out 'a b'",
            ],
        );
        check(
            "--nnodes 1:4 --rdzv-endpoint h --dry-run -n 2",
            &[],
            &[
                "# run this line on every node, with one ENMASSE_TOKEN, or --out in a folder that all nodes see",
                "enmasse launch --nproc-per-node 2 --nnodes 1:4 --rdzv-endpoint h train.py --out 'a b'",
            ],
        );
        let lines = read("--nnodes 3 --dry-run", &[], |given, options| by_hand(given, &options.topology));
        assert_eq!(lines[1], "# 127.0.0.1 is every machine's name for itself: name node 0 with --master-addr");
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn every_node_names_the_others_and_how_they_are_started() {
        let check = |line: &str, variables: &[(&str, &str)], expected: &str| {
            let found = read(line, variables, |given, options| {
                let Topology::Static(nodes) = &options.topology else { panic!("{line}") };
                announcement(given, nodes, options.join_timeout)
            });
            assert_eq!(found, expected, "{line}");
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
