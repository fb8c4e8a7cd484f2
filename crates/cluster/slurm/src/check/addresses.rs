//! Addresses and ports: compressed node lists used as a host, ports that every job uses, and hosts that other nodes
//! cannot reach.

use super::directives::Directives;
use super::source::{Kind, Source};
use super::{Finding, find, quoted};

/// Variables that hold a compressed node list.
const LISTS: [&str; 3] = ["SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_NODELIST"];
/// Programs that expand one.
const EXPANDERS: [&str; 5] = ["scontrol show hostname", "nodeset", "hostlist", "cluset", "expand"];
/// Text that suggests cutting a string into pieces.
const CUTTERS: [&str; 7] = ["IFS=,", "cut -", "%%", "sed ", "awk ", "tr ", "split("];
/// Parts of names of variables and options that hold an address.
const ADDRESS: [&str; 9] = ["addr", "address", "host", "ip", "master", "endpoint", "head", "server", "tcp"];
const FIRST_HOST: &str = "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)";
/// Between 10000 and 29999: below the ports that the kernel assigns itself.
const PORT_OF_JOB: &str = "MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)), or let srun enmasse train choose it";

pub(super) fn check(source: &Source, directives: &Directives, findings: &mut Vec<Finding>) {
    let several_nodes = directives.count("nodes").is_some_and(|nodes| nodes > 1);
    for line in source.lines.iter().filter(|line| [Kind::Command, Kind::Document].contains(&line.kind)) {
        let text = without_comment(line.text);
        if says_only(text) {
            continue;
        }
        if let Some(list) = list_as_address(text) {
            let problem = format!("{list} is a compressed list such as node[1-2], not an address: {}", quoted(text));
            find(findings, line.number, problem, FIRST_HOST);
        }
        if let Some(port) = fixed_port(text) {
            let problem = format!("port {port} is the same in every job: two on one node clash");
            find(findings, line.number, problem, PORT_OF_JOB);
        }
        if several_nodes && let Some(host) = own_host(text) {
            let problem = format!("{host} is a different machine on each node: the others never reach rank 0");
            find(findings, line.number, problem, FIRST_HOST);
        }
    }
}

/// Text that is only printed.
fn says_only(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    ["echo", "printf"].contains(&word) && !text.contains(['|', '>', '`']) && !text.contains("$(")
}

fn without_comment(text: &str) -> &str {
    match text.find(" #") {
        Some(at) => &text[..at],
        None => text,
    }
}

/// The variable whose list is used as an address, or cut by hand.
fn list_as_address(text: &str) -> Option<&'static str> {
    let (name, at) = LISTS.into_iter().find_map(|name| Some((name, text.find(name)?)))?;
    if EXPANDERS.iter().any(|expander| text.contains(expander)) {
        return None;
    }
    // `SLURM_NODELIST=...` sets it.
    let before = &text[..at];
    let used = before.ends_with(['$', '{', '\'', '"', '!', '(']);
    let cut =
        CUTTERS.iter().any(|cutter| text.contains(cutter)) || text[at + name.len()..].starts_with([':', '#', '%']);
    (used && (cut || names_address(before))).then_some(name)
}

/// Whether the text ends in something like `MASTER_ADDR=$`, `--master-addr "$`, `tcp://$`, `IP = os.environ['`.
fn names_address(before: &str) -> bool {
    let Some(end) = before.rfind(['=', ' ', ':']) else { return false };
    let mut parts = before[..=end].split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.any(|part| ADDRESS.contains(&part.to_ascii_lowercase().as_str()))
}

/// A port written out: after a name that ends in `port`, or after the host of an address.
fn fixed_port(text: &str) -> Option<u16> {
    let lower = text.to_ascii_lowercase();
    let named = lower.match_indices("port").find_map(|(at, word)| {
        let before = lower[..at].chars().next_back();
        let begins = before.is_none_or(|c| !c.is_ascii_alphanumeric()) || lower[..at].ends_with("master");
        let behind = lower[at + word.len()..].trim_start_matches(['=', ':', ' ', '-', '"', '\'', '}']);
        (begins && behind.len() < lower.len() - at - word.len()).then(|| port(behind)).flatten()
    });
    named.or_else(|| {
        ["tcp://", "endpoint=", "endpoint "].iter().find_map(|prefix| {
            let address = &lower[lower.find(prefix)? + prefix.len()..];
            let address = address.split_whitespace().next()?;
            port(&address[address.rfind(':')? + 1..])
        })
    })
}

/// The port number at the start of a text.
fn port(text: &str) -> Option<u16> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok().filter(|port| *port >= 1024)
}

/// An address of the machine itself, given as that of rank 0.
fn own_host(text: &str) -> Option<&'static str> {
    let lower = text.to_ascii_lowercase();
    let given = |host: &str| {
        ["master_addr=", "master-addr=", "master_addr ", "master-addr ", "tcp://", "endpoint=", "endpoint "].iter().any(
            |name| {
                let behind = lower.find(name).map(|at| lower[at + name.len()..].trim_start_matches(['"', '\'']));
                behind.is_some_and(|behind| behind.starts_with(host))
            },
        )
    };
    ["localhost", "127.0.0.1"].into_iter().find(|host| given(host))
}
