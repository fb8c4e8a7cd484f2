//! Slurm's compressed lists of nodes: `node[1-3,7],login`, and their expansion.
//!
//! A list is read as by `scontrol show hostnames`. Nodes are separated by commas or blanks. A name may hold several
//! pairs of brackets, of which the last one varies fastest. Leading zeros give the width. The order is kept and nothing
//! is merged. Lists that Slurm refuses are refused, and so is an unclosed bracket, which Slurm accepts by mistake.

use thiserror::Error;

/// Limit of the nodes in a list.
pub(crate) const MAX_NODES: usize = 1 << 16;
/// Longest accepted name of a node.
const MAX_NAME: usize = 255;

/// An error in a list of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NodeListError {
    /// Unclosed brackets, or text where none is allowed.
    #[error("{part:?} in the node list {list:?} {problem}; expected something like node[1-3,7],login1")]
    Malformed {
        /// The list, shortened if it is long.
        list: String,
        /// The name with the error.
        part: String,
        /// The error in it.
        problem: &'static str,
    },
    /// A list of more nodes than any cluster has.
    #[error("the node list {list:?} stands for more than {MAX_NODES} nodes")]
    TooMany {
        /// The list, shortened if it is long.
        list: String,
    },
    /// The list is empty.
    #[error("the node list is empty")]
    Empty,
}

/// The nodes of a list, in order: `gpu08`, `gpu09`, `gpu10` and `login` for `gpu[08-10],login`.
pub(crate) fn expand_node_list(list: &str) -> Result<Vec<String>, NodeListError> {
    let shown = || shortened(list);
    let mut nodes = Vec::new();
    for part in split(list) {
        let malformed = |problem| NodeListError::Malformed { list: shown(), part: shortened(part), problem };
        let name = parse(part).map_err(malformed)?;
        let limit = MAX_NODES - nodes.len();
        // The product is checked before anything is allocated: a short text cannot request much memory.
        match name.iter().try_fold(1usize, |product, (_, numbers)| product.checked_mul(numbers.len())) {
            Some(count) if count <= limit => nodes.extend(expand(&name)),
            _ => return Err(NodeListError::TooMany { list: shown() }),
        }
    }
    if nodes.is_empty() { Err(NodeListError::Empty) } else { Ok(nodes) }
}

/// A name's pieces: a text, and the numbers that follow it.
type Pieces<'a> = Vec<(&'a str, Vec<String>)>;

/// The names of a list, split at commas and blanks outside brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    let cut = move |character: char| {
        match character {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        !is_inside && (character == ',' || character.is_ascii_whitespace())
    };
    list.split(cut).filter(|part| !part.is_empty())
}

fn parse(part: &str) -> Result<Pieces<'_>, &'static str> {
    const UNOPENED: &str = "closes a bracket that was not opened";
    let mut pieces = Vec::new();
    let mut rest = part;
    while let Some((text, behind)) = rest.split_once('[') {
        if text.contains(']') {
            return Err(UNOPENED);
        }
        let (ranges, behind) = behind.split_once(']').ok_or("has a bracket that is not closed")?;
        pieces.push((text, numbers(ranges)?));
        rest = behind;
    }
    if rest.contains(']') {
        return Err(UNOPENED);
    }
    match (pieces.is_empty(), rest) {
        (true, text) => pieces.push((text, vec![String::new()])),
        (false, "") => {}
        (false, _) => return Err("has text after its last bracket, which Slurm does not write"),
    }
    let longest: usize =
        pieces.iter().map(|(text, numbers)| text.len() + numbers.iter().map(String::len).max().unwrap_or(0)).sum();
    if longest > MAX_NAME {
        return Err("is longer than any host name");
    }
    if pieces[0].0.is_empty() && !part.starts_with('[') {
        return Err("has no name");
    }
    Ok(pieces)
}

/// The text between brackets: `1-3,07`.
fn numbers(ranges: &str) -> Result<Vec<String>, &'static str> {
    const PROBLEM: &str = "has brackets whose content is not a list of numbers and ascending ranges";
    let number = |text: &str| -> Result<u64, &'static str> {
        let is_plain = !text.is_empty() && text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_plain { text.parse().map_err(|_| PROBLEM) } else { Err(PROBLEM) }
    };
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(PROBLEM);
        }
        if to - from >= (MAX_NODES - numbers.len().min(MAX_NODES)) as u64 {
            return Err("has more numbers between brackets than a cluster has nodes");
        }
        // "08-11" has two digits throughout, "8-11" as many as each number needs.
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

/// Every combination; the last piece varies fastest.
fn expand(pieces: &Pieces<'_>) -> Vec<String> {
    pieces.iter().fold(vec![String::new()], |names, (text, numbers)| {
        names.iter().flat_map(|name| numbers.iter().map(move |number| format!("{name}{text}{number}"))).collect()
    })
}

/// A text short enough for an error message.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_slurm_expands() {
        let check = |list: &str, expected: &str| {
            let nodes = expand_node_list(list).unwrap_or_else(|error| panic!("{list}: {error}"));
            assert_eq!(nodes.join(" "), expected, "{list}");
        };
        check("node[01-03,07]", "node01 node02 node03 node07");
        check("node[8-11]", "node8 node9 node10 node11");
        check("node[08-11]", "node08 node09 node10 node11");
        check("node[098-101]", "node098 node099 node100 node101");
        check("node[7]", "node7");
        check("node[4-4]", "node4");
        check("node[3,1-2]", "node3 node1 node2");
        check("node[1-3,2]", "node1 node2 node3 node2");
        check("alpha,gpu[1-2]", "alpha gpu1 gpu2");
        check("gpu[1-2],alpha", "gpu1 gpu2 alpha");
        check("gpu[1-2],cpu[3-4]", "gpu1 gpu2 cpu3 cpu4");
        check("gpu-a[01-02],login7", "gpu-a01 gpu-a02 login7");
        check("rack[1-2]n[01-02]", "rack1n01 rack1n02 rack2n01 rack2n02");
        check("node[1-2][3-4]", "node13 node14 node23 node24");
        check("10.0.0.[1-2]", "10.0.0.1 10.0.0.2");
        check("a b c", "a b c");
        check("node[1-2] x3", "node1 node2 x3");
        check("rack1n[01-02],rack2n[01-02]", "rack1n01 rack1n02 rack2n01 rack2n02");
        check("node1-ib,node2-ib", "node1-ib node2-ib");
        check("n1.cl,n2.cl", "n1.cl n2.cl");
        check("node[1,01]", "node1 node01");
        check("linux[1,2]", "linux1 linux2");
    }

    #[test]
    fn what_is_refused() {
        let check = |list: &str, expected: &str| {
            let error = expand_node_list(list).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{list}: {error}");
        };
        for list in ["node[1-2]-ib", "node[0-1].cluster.local", "gpu-a[01-02]-b7"] {
            check(list, "text after its last bracket");
        }
        for list in
            ["node[2-1]", "node[a-c]", "node[1-2,]", "node[]", "x[0x1-0x2]", "node[1--2]", "node[-1]", "node[+1]"]
        {
            check(list, "brackets whose content");
        }
        check("node[1-", "not closed");
        check("node1]", "not opened");
        check("a][0]", "not opened");
        check("node[1[2]]", "brackets whose content");
        check("", "empty");
        check(" , ", "empty");
        check("n[1-65537]", "more numbers between brackets");
        check("n[1-999999999999999999]", "more numbers between brackets");
        check("n[0-65535],m", "more than 65536 nodes");
        check("r[1-300]n[1-300]", "more than 65536 nodes");
        check(&"[1-9]".repeat(40), "more than 65536 nodes");
        check(&"n".repeat(256), "longer than any host name");
        assert_eq!(expand_node_list("n[0-65535]").unwrap().len(), 65536);
    }

    /// One name as proptest generates it: pieces of text, each followed by ranges of a width.
    type Made = Vec<(String, Vec<(u64, u64, usize)>)>;

    fn names() -> impl Strategy<Value = Vec<Made>> {
        let range = (0u64..120, 0u64..4, 1usize..4);
        let piece = ("[a-z]{1,3}[0-9-]{0,2}[a-z]", prop::collection::vec(range, 1..3));
        let plain = "[a-z]{1,4}[0-9.-]{0,3}".prop_map(|text| vec![(text, vec![])]);
        prop::collection::vec(prop_oneof![plain, prop::collection::vec(piece, 1..3)], 1..4)
    }

    /// The list, and its expansion by plain loops.
    fn written(names: &[Made]) -> (String, Vec<String>) {
        let (mut lists, mut nodes) = (Vec::new(), Vec::new());
        for name in names {
            let mut list = String::new();
            let mut found = vec![String::new()];
            for (text, ranges) in name {
                let (mut inside, mut endings) = (Vec::new(), Vec::new());
                for &(from, more, width) in ranges {
                    inside.push(match more {
                        0 => format!("{from:0width$}"),
                        _ => format!("{from:0width$}-{}", from + more),
                    });
                    for number in from..=from + more {
                        // The width is that of the first number as written.
                        let digits = width.max(from.to_string().len());
                        endings.push(format!("{number:0digits$}"));
                    }
                }
                list += text;
                if ranges.is_empty() {
                    endings.push(String::new());
                } else {
                    list += &format!("[{}]", inside.join(","));
                }
                let mut next = Vec::new();
                for start in &found {
                    for ending in &endings {
                        next.push(format!("{start}{text}{ending}"));
                    }
                }
                found = next;
            }
            lists.push(list);
            nodes.extend(found);
        }
        (lists.join(","), nodes)
    }

    proptest! {
        #[test]
        fn lists_mean_what_plain_loops_say(names in names()) {
            let (list, nodes) = written(&names);
            prop_assert_eq!(expand_node_list(&list), Ok(nodes), "{}", list);
        }

        #[test]
        fn any_text_is_read_or_refused(list in "[a-c0-9,\\[\\]\\- .]{0,40}") {
            if let Ok(nodes) = expand_node_list(&list) {
                prop_assert!(!nodes.is_empty() && nodes.iter().all(|node| !node.contains(['[', ']', ','])));
            }
        }
    }
}
