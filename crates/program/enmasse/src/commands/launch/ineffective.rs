//! Flags of a launch that have no effect beside others, or never: a single table. torchrun's scripts use them, so none
//! of them is an error.

use enmasse_launch::Nodes;

use super::flags::GivenFlags;
use super::timing;
use super::topology::Topology;
use crate::failure::Failure;

/// The circumstances of a launch that decide whether a flag has an effect.
struct LaunchSurroundings {
    is_standalone: bool,
    /// Whether nodes meet, or are several nodes numbered by hand.
    meets: bool,
    is_numbered: bool,
    /// Whether it is a single node that takes any free port.
    is_anywhere: bool,
    /// Whether ranks meet at the endpoint.
    is_at_endpoint: bool,
    is_teed: bool,
}

/// Flags, the circumstances in which they have no effect, and the reason.
type Rule = (&'static [&'static str], fn(&LaunchSurroundings) -> bool, &'static str);

const NUMBERED: &str = "nodes that are numbered by hand do not meet";

const RULES: &[Rule] = &[
    (&["monitor-interval"], |_| true, "the end of a rank is noticed at once"),
    (&["start-method"], |_| true, "ranks are programs"),
    (&["event-log-handler"], |_| true, "events are printed on standard error"),
    (
        &["duplicate-stdout-filters", "duplicate-stderr-filters"],
        |of| !of.is_teed,
        "lines are marked and copied with --tee alone",
    ),
    (
        &["node-rank", "master-addr", "master-port", "rdzv-endpoint", "rdzv-conf", "local-addr"],
        |of| of.is_standalone,
        "--standalone is one node, which needs no meeting",
    ),
    (&["node-rank"], |of| of.meets, "nodes are numbered where they meet"),
    (&["master-addr", "master-port"], |of| of.meets, "nodes that meet agree on it"),
    (&["master-addr", "master-port"], |of| of.is_at_endpoint, "--rdzv-endpoint sets it"),
    (&["master-addr"], |of| of.is_anywhere, "one node takes a free port of its own, unless --master-port names one"),
    (&["local-addr"], |of| of.is_numbered, NUMBERED),
];

/// A line for each given flag that has no effect.
pub fn without_effect(given: &GivenFlags<'_>, topology: &Topology) -> Result<Vec<String>, Failure> {
    let is_given = |name: &str| given.text(name).map(|text| text.is_some_and(|(_, text)| !text.is_empty()));
    let is_standalone = given.is_on("standalone")?;
    let is_static = !is_standalone && given.text("rdzv-backend")?.is_some_and(|(_, text)| text == "static");
    let surroundings = LaunchSurroundings {
        is_standalone,
        meets: matches!(topology, Topology::Meeting(_)),
        is_numbered: matches!(topology, Topology::Static(nodes) if nodes.count > 1),
        is_anywhere: !is_standalone && matches!(topology, Topology::Static(Nodes { master: None, .. })),
        is_at_endpoint: is_given("rdzv-endpoint")?
            && matches!(topology, Topology::Static(nodes) if nodes.count > 1 || is_static),
        is_teed: is_given("tee")?,
    };
    let mut lines = Vec::new();
    for (flags, _, why) in RULES.iter().filter(|(_, is_idle, _)| is_idle(&surroundings)) {
        for flag in *flags {
            if let Some((place, text)) = given.text(flag)? {
                lines.push(format!("{place}{text} has no effect: {why}"));
            }
        }
    }
    if surroundings.is_numbered {
        let pairs = timing::of_meetings(given)?;
        lines.extend(pairs.iter().map(|pair| format!("--rdzv-conf {pair} has no effect: {NUMBERED}")));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;

    #[test]
    fn flags_without_effect_are_reported() {
        let check = |line: &str, expected: &[&str]| {
            let words = std::iter::once("launch").chain(line.split_whitespace()).chain(["program"]);
            let matches = super::super::command("launch").try_get_matches_from(words).unwrap();
            let given = GivenFlags { matches: &matches, environment: &|_| None };
            assert_eq!(Options::read(&given).unwrap().warnings, expected, "{line}");
        };
        check("-n 2 --max-restarts 1 --role r --tee 3 --duplicate-stdout-filters a", &[]);
        check("--nnodes 1 --node-rank 0 --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id 7", &[]);
        check("--nnodes 2 --node-rank 1 --master-addr h --master-port 7", &[]);
        check("--nnodes 2 --rdzv-endpoint h:1 --rdzv-conf join_timeout=5 --local-addr n", &[]);
        check("--monitor-interval 5", &["--monitor-interval 5 has no effect: the end of a rank is noticed at once"]);
        check("--start-method fork", &["--start-method fork has no effect: ranks are programs"]);
        let handler = "--event-log-handler console has no effect: events are printed on standard error";
        check("--event-log-handler console", &[handler]);
        let filters = "has no effect: lines are marked and copied with --tee alone";
        check("--duplicate-stderr-filters a", &[&format!("--duplicate-stderr-filters a {filters}")]);
        let standalone = "has no effect: --standalone is one node, which needs no meeting";
        check(
            "--standalone --node-rank 0 --rdzv-endpoint h:1 --local-addr n",
            &["--node-rank 0", "--rdzv-endpoint h:1", "--local-addr n"]
                .map(|flag| format!("{flag} {standalone}"))
                .each_ref()
                .map(String::as_str),
        );
        let meets = "--nnodes 2 --rdzv-endpoint h:1 --rdzv-backend c10d";
        check(&format!("{meets} --node-rank 1"), &["--node-rank 1 has no effect: nodes are numbered where they meet"]);
        check(&format!("{meets} --master-port 7"), &["--master-port 7 has no effect: nodes that meet agree on it"]);
        let store = "--rdzv-conf store_type=file has no effect: nodes meet at enmasse's own store";
        check(&format!("{meets} --rdzv-conf timeout=5,store_type=file"), &[store]);
        let numbered = "has no effect: nodes that are numbered by hand do not meet";
        check(
            "--nnodes 2 --node-rank 1 --master-addr h --rdzv-conf timeout=900,keep_alive_interval=2",
            &[&format!("--rdzv-conf keep_alive_interval=2 {numbered}")],
        );
        check("--nnodes 2 --node-rank 1 --local-addr n", &[&format!("--local-addr n {numbered}")]);
        let endpoint = "--master-addr h has no effect: --rdzv-endpoint sets it";
        check("--nnodes 2 --node-rank 1 --rdzv-endpoint n:1 --master-addr h", &[endpoint]);
        check("--rdzv-backend static --rdzv-endpoint n:1 --master-addr h", &[endpoint]);
        check("--master-addr h --master-port 7", &[]);
        let anywhere =
            "--master-addr h has no effect: one node takes a free port of its own, unless --master-port names one";
        check("--master-addr h", &[anywhere]);
        check("--nnodes 1 --rdzv-endpoint n:1 --master-addr h", &[anywhere]);
        check("--standalone --master-addr h", &[&format!("--master-addr h {standalone}")]);
    }
}
