//! Messages between agents and their leader, as values and as bounded bytes.

use thiserror::Error;

/// Length limit of a text in a message, in bytes.
pub(super) const TEXT_LIMIT: usize = 16 << 10;

/// From an agent to its leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToLeader {
    /// The agent joins, and none of its workers runs.
    Join {
        /// A random number that tells agents apart.
        agent: u64,
        /// The number of this agent's connection, by which late messages on an older one are told apart.
        visit: u32,
        /// The agent's host name, for people.
        host: String,
        /// The address at which workers of other nodes reach this one; empty if the leader is to use the connection's.
        address: String,
        /// A port on which rank 0 could open its store.
        port: u16,
        /// The number of workers on this node.
        local_world_size: u32,
        /// The lowest attempt that this agent would run.
        next_attempt: u32,
    },
    /// A heartbeat.
    Beat {
        /// Its number.
        number: u32,
    },
    /// The workers ended by themselves; none is left.
    Ended {
        /// The attempt.
        attempt: u32,
        /// How they ended.
        end: WorkersEnd,
    },
    /// The workers are gone, as requested.
    Stopped {
        /// The attempt.
        attempt: u32,
        /// A port for the next attempt.
        port: u16,
    },
    /// This node leaves. If it has workers, it is stopping them, and reports when they are gone.
    Leave,
}

/// From the leader to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToMember {
    /// The heartbeat of this number has arrived.
    Echo {
        /// Its number.
        number: u32,
    },
    /// Start workers.
    Run(Assigned),
    /// Stop the workers, if any are left.
    Stop {
        /// The attempt.
        attempt: u32,
        /// The change that requires it, for people.
        why: String,
    },
    /// The job is over.
    Over(Decision),
}

/// A node's place in an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkersEnd {
    /// All succeeded.
    Done,
    /// A worker failed.
    Failed {
        /// The rank to blame, if known.
        rank: Option<u32>,
        /// The exit code of the job if the workers are not restarted.
        code: u8,
        /// What happened, for people.
        report: String,
    },
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Every worker succeeded.
    Done,
    /// Workers failed, and no restarts are left.
    Failed {
        /// The node whose worker is to blame.
        host: String,
        /// The exit code.
        code: u8,
        /// What happened, for people.
        report: String,
    },
    /// Too few nodes joined in time.
    TooFew {
        /// The number of nodes that joined.
        here: u32,
        /// The least number of nodes.
        least: u32,
    },
    /// The user stopped the leader with this signal.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// No leader was found in time.
    NoLeader {
        /// The error of the last attempt to reach one.
        why: String,
    },
}

/// The bytes do not encode a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a malformed message from another agent: do all nodes run the same version?")]
pub struct MalformedMessage;

impl ToLeader {
    /// Kind and payload of a frame.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut bytes = Vec::new();
        let kind = match self {
            ToLeader::Join { agent, visit, host, address, port, local_world_size, next_attempt } => {
                bytes.extend(agent.to_le_bytes());
                bytes.extend(visit.to_le_bytes());
                put_text(&mut bytes, host);
                put_text(&mut bytes, address);
                bytes.extend(port.to_le_bytes());
                bytes.extend(local_world_size.to_le_bytes());
                bytes.extend(next_attempt.to_le_bytes());
                1
            }
            ToLeader::Beat { number } => {
                bytes.extend(number.to_le_bytes());
                2
            }
            ToLeader::Ended { attempt, end } => {
                bytes.extend(attempt.to_le_bytes());
                match end {
                    WorkersEnd::Done => 3,
                    WorkersEnd::Failed { rank, code, report } => {
                        bytes.extend(rank.unwrap_or(u32::MAX).to_le_bytes());
                        bytes.push(*code);
                        put_text(&mut bytes, report);
                        4
                    }
                }
            }
            ToLeader::Stopped { attempt, port } => {
                bytes.extend(attempt.to_le_bytes());
                bytes.extend(port.to_le_bytes());
                5
            }
            ToLeader::Leave => 6,
        };
        (kind, bytes)
    }

    /// Decodes the output of [`ToLeader::encode`], and nothing else.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, MalformedMessage> {
        let mut rest = Reader(payload);
        let message = match kind {
            1 => ToLeader::Join {
                agent: rest.u64()?,
                visit: rest.u32()?,
                host: rest.text()?,
                address: rest.text()?,
                port: rest.u16()?,
                local_world_size: rest.u32()?,
                next_attempt: rest.u32()?,
            },
            2 => ToLeader::Beat { number: rest.u32()? },
            3 => ToLeader::Ended { attempt: rest.u32()?, end: WorkersEnd::Done },
            4 => {
                let attempt = rest.u32()?;
                let rank = Some(rest.u32()?).filter(|&rank| rank != u32::MAX);
                let end = WorkersEnd::Failed { rank, code: rest.u8()?, report: rest.text()? };
                ToLeader::Ended { attempt, end }
            }
            5 => ToLeader::Stopped { attempt: rest.u32()?, port: rest.u16()? },
            6 => ToLeader::Leave,
            _ => return Err(MalformedMessage),
        };
        rest.end(message)
    }
}

impl ToMember {
    /// Kind and payload of a frame.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut bytes = Vec::new();
        let kind = match self {
            ToMember::Echo { number } => {
                bytes.extend(number.to_le_bytes());
                1
            }
            ToMember::Run(assigned) => {
                bytes.extend(assigned.leader.to_le_bytes());
                for number in [
                    assigned.attempt,
                    assigned.node_rank,
                    assigned.node_count,
                    assigned.first_rank,
                    assigned.world_size,
                ] {
                    bytes.extend(number.to_le_bytes());
                }
                put_text(&mut bytes, &assigned.master_host);
                bytes.extend(assigned.master_port.to_le_bytes());
                2
            }
            ToMember::Stop { attempt, why } => {
                bytes.extend(attempt.to_le_bytes());
                put_text(&mut bytes, why);
                3
            }
            ToMember::Over(decision) => match decision {
                Decision::Done => 4,
                Decision::Failed { host, code, report } => {
                    put_text(&mut bytes, host);
                    bytes.push(*code);
                    put_text(&mut bytes, report);
                    5
                }
                Decision::TooFew { here, least } => {
                    bytes.extend(here.to_le_bytes());
                    bytes.extend(least.to_le_bytes());
                    6
                }
                Decision::Interrupted { signal } => {
                    bytes.extend(signal.to_le_bytes());
                    7
                }
                Decision::NoLeader { why } => {
                    put_text(&mut bytes, why);
                    8
                }
            },
        };
        (kind, bytes)
    }

    /// Decodes the output of [`ToMember::encode`], and nothing else.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, MalformedMessage> {
        let mut rest = Reader(payload);
        let message = match kind {
            1 => ToMember::Echo { number: rest.u32()? },
            2 => ToMember::Run(Assigned {
                leader: rest.u64()?,
                attempt: rest.u32()?,
                node_rank: rest.u32()?,
                node_count: rest.u32()?,
                first_rank: rest.u32()?,
                world_size: rest.u32()?,
                master_host: rest.text()?,
                master_port: rest.u16()?,
            }),
            3 => ToMember::Stop { attempt: rest.u32()?, why: rest.text()? },
            4 => ToMember::Over(Decision::Done),
            5 => ToMember::Over(Decision::Failed { host: rest.text()?, code: rest.u8()?, report: rest.text()? }),
            6 => ToMember::Over(Decision::TooFew { here: rest.u32()?, least: rest.u32()? }),
            7 => ToMember::Over(Decision::Interrupted { signal: rest.u32()? as i32 }),
            8 => ToMember::Over(Decision::NoLeader { why: rest.text()? }),
            _ => return Err(MalformedMessage),
        };
        rest.end(message)
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_LIMIT)];
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedMessage> {
        let (array, rest) = self.0.split_first_chunk().ok_or(MalformedMessage)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, MalformedMessage> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, MalformedMessage> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MalformedMessage> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MalformedMessage> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, MalformedMessage> {
        let length = self.u32()? as usize;
        if length > TEXT_LIMIT {
            return Err(MalformedMessage);
        }
        let (text, rest) = self.0.split_at_checked(length).ok_or(MalformedMessage)?;
        self.0 = rest;
        std::str::from_utf8(text).map(str::to_owned).map_err(|_| MalformedMessage)
    }

    fn end<T>(self, message: T) -> Result<T, MalformedMessage> {
        if self.0.is_empty() { Ok(message) } else { Err(MalformedMessage) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_shorter_ones_are_refused() {
        let to_leader = [
            ToLeader::Join {
                agent: 7,
                visit: 8,
                host: "h".into(),
                address: "10.0.0.1".into(),
                port: 9,
                local_world_size: 4,
                next_attempt: 2,
            },
            ToLeader::Beat { number: 3 },
            ToLeader::Ended { attempt: 1, end: WorkersEnd::Done },
            ToLeader::Ended { attempt: 1, end: WorkersEnd::Failed { rank: None, code: 9, report: "r".repeat(100) } },
            ToLeader::Ended { attempt: 1, end: WorkersEnd::Failed { rank: Some(3), code: 9, report: "".into() } },
            ToLeader::Stopped { attempt: 5, port: 6 },
            ToLeader::Leave,
        ];
        for message in to_leader {
            let (kind, bytes) = message.encode();
            assert_eq!(ToLeader::decode(kind, &bytes), Ok(message));
            (0..bytes.len()).for_each(|end| assert!(ToLeader::decode(kind, &bytes[..end]).is_err()));
            assert!(ToLeader::decode(kind, &[&bytes[..], &[0]].concat()).is_err());
        }
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
        let to_member = [
            ToMember::Echo { number: 3 },
            ToMember::Run(assigned),
            ToMember::Stop { attempt: 5, why: "w".into() },
            ToMember::Over(Decision::Done),
            ToMember::Over(Decision::Failed { host: "h".into(), code: 1, report: "r".into() }),
            ToMember::Over(Decision::TooFew { here: 1, least: 2 }),
            ToMember::Over(Decision::Interrupted { signal: 15 }),
            ToMember::Over(Decision::NoLeader { why: "w".into() }),
        ];
        for message in to_member {
            let (kind, bytes) = message.encode();
            assert_eq!(ToMember::decode(kind, &bytes), Ok(message));
            (0..bytes.len()).for_each(|end| assert!(ToMember::decode(kind, &bytes[..end]).is_err()));
            assert!(ToMember::decode(kind, &[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn texts_are_bounded() {
        let (kind, bytes) = ToMember::Over(Decision::NoLeader { why: "é".repeat(TEXT_LIMIT) }).encode();
        let Ok(ToMember::Over(Decision::NoLeader { why })) = ToMember::decode(kind, &bytes) else { panic!() };
        assert_eq!(why.len(), TEXT_LIMIT);
        assert!(ToMember::decode(8, &[0xff; 40]).is_err());
    }
}
