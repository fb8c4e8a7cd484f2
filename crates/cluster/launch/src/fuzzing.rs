//! For fuzzing: each reader of launchers' variables, of agents' messages and of error files keeps its promises for any
//! bytes. Compiled with `--cfg fuzzing` alone.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::elastic::message::{ToLeader, ToMember, decode, encode};
use crate::environment::node_list::{MAX_NODES, expand_node_list};
use crate::error_file::ErrorRecord;
use crate::{LaunchedRank, python_exception};

/// Variables, `NAME=VALUE` per line: a place is one of a world, and the variables that it sets lead to the same place.
pub fn environment(bytes: &[u8]) {
    let lines = bytes.split(|&byte| byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|&byte| byte == b'=')?;
        Some((std::str::from_utf8(&line[..at]).ok()?, OsStr::from_bytes(&line[at + 1..])))
    });
    let variables: HashMap<_, _> = lines.collect();
    let lookup = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    // A descriptor that a launcher hands on would be one of the fuzzer's own.
    let text = |name: &str| lookup(name).filter(|_| !name.ends_with("_FD"))?.into_string().ok();
    let _ = enmasse_comm::Rendezvous::from_variables(&text);
    let Ok(interpretation) = LaunchedRank::interpret(lookup) else { return };
    let _ = interpretation.rendezvous(&text);
    // Slurm's list may have nodes on which no task runs.
    let Some(place) = interpretation.place.filter(|place| place.node_count <= place.world_size) else { return };
    assert!(place.rank < place.world_size && place.local_rank < place.local_world_size);
    assert!(place.local_world_size <= place.world_size && place.node < place.node_count);
    let set: HashMap<_, _> = place.variables(false).into_iter().collect();
    let again =
        LaunchedRank::interpret(|name| set.get(name).map(Into::into)).expect("its own variables are consistent");
    let again = again.place.expect("its own variables name a place");
    assert_eq!((again.rank, again.world_size), (place.rank, place.world_size));
    assert_eq!((again.local_rank, again.local_world_size), (place.local_rank, place.local_world_size));
}

/// A list of nodes stands for at most [`MAX_NODES`], none of them empty.
pub fn node_list(bytes: &[u8]) {
    if let Ok(nodes) = expand_node_list(&String::from_utf8_lossy(bytes)) {
        assert!((1..=MAX_NODES).contains(&nodes.len()) && nodes.iter().all(|node| !node.is_empty()));
    }
}

/// A message between agents is written as it was read.
pub fn message(bytes: &[u8]) {
    if let Some(message) = decode::<ToLeader>(bytes) {
        assert_eq!(decode(&encode(&message)), Some(message));
    }
    if let Some(message) = decode::<ToMember>(bytes) {
        assert_eq!(decode(&encode(&message)), Some(message));
    }
}

/// What an error file or a program's last lines say is lines without control characters.
pub fn error_file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(record) = ErrorRecord::parse(&text, 0) {
        let is_line = |line: &String| line.chars().all(|c| !c.is_control() || c == '\t');
        assert!(is_line(&record.message) && record.lines.iter().all(is_line));
    }
    let lines: Vec<_> = text.lines().collect();
    if let Some(exception) = python_exception(&lines) {
        assert!(lines.iter().any(|line| line.ends_with(exception)));
    }
}
