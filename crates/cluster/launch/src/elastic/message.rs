//! Messages between agents and their leader. On a channel they are JSON, as long as the channel lets a message be.

use enmasse_comm::Channel;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Length limit of a report, in bytes. Its JSON is up to six times as long, which a channel takes.
const REPORT_LIMIT: usize = 16 << 10;

/// An agent's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// A random number that tells agents apart.
    pub id: u64,
    /// The host's name, for people.
    pub host: String,
    /// The address at which workers of other nodes reach this one; empty if the leader is to use the connection's.
    pub address: String,
    /// The number of workers on this node.
    pub local_world_size: u32,
}

/// An agent joins, and none of its workers runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    pub agent: AgentInfo,
    /// The number of this agent's connection, by which late messages on an older one are told apart.
    pub visit: u32,
    /// A port on which rank 0 could open its store.
    pub port: u16,
    /// The lowest attempt that this agent would run.
    pub next_attempt: u32,
}

/// From an agent to its leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToLeader {
    Join(Join),
    /// A heartbeat.
    Beat {
        number: u32,
    },
    /// The workers ended by themselves; none is left.
    Ended {
        attempt: u32,
        end: WorkersEnd,
    },
    /// The workers are gone, as requested. The port is one for the next attempt.
    Stopped {
        attempt: u32,
        port: u16,
    },
    /// This node leaves. If it has workers, it is stopping them, and reports when they are gone.
    Leave,
    /// From no agent: the user wants the nodes of this name to leave.
    Drain {
        node: String,
    },
}

/// From the leader to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMember {
    /// The heartbeat of this number has arrived.
    Echo { number: u32 },
    /// Start workers.
    Run(Assigned),
    /// Stop the workers, if any are left, because of this change.
    Stop { attempt: u32, why: String },
    /// The job is over.
    Over(Decision),
    /// The user wants this node to leave.
    Leave,
    /// To the program that asked for nodes to leave.
    Drain(DrainReply),
}

/// What becomes of a request that nodes leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainReply {
    /// They are asked to, and are given up after this many seconds.
    Leaving { seconds: u64 },
    /// They have left.
    Left,
    /// There is no node of that name. These are the job's.
    Unknown { nodes: Vec<String> },
    /// The job's nodes meet at this one, so none of them could go on without it.
    Leads,
}

/// A node's place in an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// The attempt, counted over the whole job.
    pub attempt: u32,
    /// The leader of the attempt.
    pub leader: u64,
    /// This node among all nodes.
    pub node_rank: u32,
    /// The number of nodes.
    pub node_count: u32,
    /// The rank of this node's first worker.
    pub first_rank: u32,
    /// The number of workers on all nodes.
    pub world_size: u32,
    /// The host on which rank 0 opens its store.
    pub master_host: String,
    /// The store's port.
    pub master_port: u16,
}

/// How one node's workers ended by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkersEnd {
    /// All succeeded.
    Done,
    /// A worker failed: the rank to blame, if known, the exit code of the job if the workers are not restarted, and what
    /// happened, for people.
    Failed { rank: Option<u32>, code: u8, report: String },
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// Every worker succeeded.
    Done,
    /// Workers failed, and no restarts are left: the node whose worker is to blame, and what it said.
    Failed { host: String, code: u8, report: String },
    /// Too few nodes joined in time.
    TooFew { here: u32, least: u32 },
    /// The user stopped the leader with this signal.
    Interrupted { signal: i32 },
    /// No leader was found in time; the error of the last attempt to reach one.
    NoLeader { why: String },
    /// The node has left, as the user wanted.
    Drained,
}

/// A report cut to its limit.
pub(super) fn bounded(mut report: String) -> String {
    report.truncate(report.floor_char_boundary(REPORT_LIMIT));
    report
}

pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // Plain data cannot fail, and an empty message would be refused.
    serde_json::to_vec(message).unwrap_or_default()
}

/// `None` for anything but a message.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    serde_json::from_slice(bytes).ok()
}

/// Sends a message. The thread that reads from a broken channel reports its end.
pub(super) fn send(channel: &Channel, message: &impl Serialize) {
    if channel.send(&encode(message)).is_err() {
        channel.close();
    }
}

/// Waits for a message. `None` once either side has closed the channel, or after anything but a message.
pub(super) fn receive<M: DeserializeOwned>(channel: &Channel) -> Option<M> {
    decode(&channel.receive().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    fn check<M: Serialize + DeserializeOwned + PartialEq + Debug>(messages: impl IntoIterator<Item = M>) {
        for message in messages {
            let bytes = encode(&message);
            assert_eq!(decode(&bytes), Some(message));
            (0..bytes.len()).for_each(|end| assert_eq!(decode::<M>(&bytes[..end]), None));
            assert_eq!(decode::<M>(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn messages_round_trip_and_shorter_ones_are_refused() {
        let agent = AgentInfo { id: u64::MAX, host: "h".into(), address: "10.0.0.1".into(), local_world_size: 4 };
        check([
            ToLeader::Join(Join { agent, visit: 8, port: 9, next_attempt: 2 }),
            ToLeader::Beat { number: 3 },
            ToLeader::Ended { attempt: 1, end: WorkersEnd::Done },
            ToLeader::Ended { attempt: 1, end: WorkersEnd::Failed { rank: None, code: 9, report: "r".repeat(100) } },
            ToLeader::Ended { attempt: 1, end: WorkersEnd::Failed { rank: Some(3), code: 9, report: "".into() } },
            ToLeader::Stopped { attempt: 5, port: 6 },
            ToLeader::Leave,
            ToLeader::Drain { node: "h".into() },
        ]);
        let assigned = Assigned {
            attempt: 1,
            leader: 2,
            node_rank: 3,
            node_count: 4,
            first_rank: 5,
            world_size: 6,
            master_host: "m".into(),
            master_port: 7,
        };
        check([
            ToMember::Echo { number: 3 },
            ToMember::Run(assigned),
            ToMember::Stop { attempt: 5, why: "w".into() },
            ToMember::Over(Decision::Done),
            ToMember::Over(Decision::Failed { host: "h".into(), code: 1, report: "r".into() }),
            ToMember::Over(Decision::TooFew { here: 1, least: 2 }),
            ToMember::Over(Decision::Interrupted { signal: 15 }),
            ToMember::Over(Decision::NoLeader { why: "w".into() }),
            ToMember::Over(Decision::Drained),
            ToMember::Leave,
            ToMember::Drain(DrainReply::Leaving { seconds: 60 }),
            ToMember::Drain(DrainReply::Left),
            ToMember::Drain(DrainReply::Unknown { nodes: vec!["a".into(), "b".into()] }),
            ToMember::Drain(DrainReply::Leads),
        ]);
    }

    #[test]
    fn reports_are_bounded() {
        assert_eq!(bounded("\u{20ac}".repeat(REPORT_LIMIT)).len(), REPORT_LIMIT / 3 * 3);
        for character in ["\u{1}", "\"", "\u{20ac}"] {
            let host = "h".repeat(255);
            let report = bounded(character.repeat(REPORT_LIMIT));
            let bytes = encode(&ToMember::Over(Decision::Failed { host, code: 1, report }));
            assert!(bytes.len() <= Channel::MESSAGE_LIMIT, "{character:?}: {}", bytes.len());
        }
        assert_eq!(decode::<ToMember>(&[0xff; 40]), None);
    }
}
