//! The one failure type of the program: which rank failed first, where, during which operation, and
//! why.
//!
//! Every failure on a rank becomes a [`Cause`]. The first one raised in a group wins, every rank
//! reports it, and the launcher prints it. It travels between ranks as a small bounded record,
//! [`Cause::to_bytes`]. The launcher of `train`, or rank 0 elsewhere, keeps it in the run folder as
//! `logs/failure.json`, which `enmasse doctor RUN` merges with every rank's log.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::received::{take, take_u64};

/// Length limit of a host or operation name, in bytes.
const NAME_LIMIT: usize = 255;
/// Length limit of a message, in bytes.
const MESSAGE_LIMIT: usize = 8 << 10;
/// Length limit of an encoded cause, in bytes.
pub(crate) const CAUSE_LIMIT: usize = 64 + 2 * NAME_LIMIT + MESSAGE_LIMIT;
/// First byte of an encoded cause; a new layout takes the next number.
const VERSION: u8 = 1;
/// Stands for "no rank" in an encoded cause.
const NO_RANK: u64 = u64::MAX;

/// The sort of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CauseKind {
    /// The rank is gone: its connection closed without goodbye, or it left while others still needed it.
    Exited,
    /// The signal with this number ended the rank.
    Killed(i32),
    /// The rank is connected, but has sent no heartbeat for the stated time.
    Silent,
    /// The rank is alive, but has not taken part in an operation for which the others have waited for the stated time.
    Timeout,
    /// Two ranks differ: in operation, type or count, or in plan, configuration or data.
    Desync,
    /// A loss or gradient is infinite or not a number.
    NonFinite,
    /// Any error that a rank reports.
    Error,
    /// The user or the scheduler asked to stop.
    Interrupted,
}

impl CauseKind {
    /// The kind's name in machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            CauseKind::Exited => "exited",
            CauseKind::Killed(_) => "killed",
            CauseKind::Silent => "silent",
            CauseKind::Timeout => "timeout",
            CauseKind::Desync => "desync",
            CauseKind::NonFinite => "non-finite",
            CauseKind::Error => "error",
            CauseKind::Interrupted => "interrupted",
        }
    }

    /// All kinds, in the order of their codes, which begin with 1.
    fn all(signal: i32) -> [Self; 8] {
        use CauseKind::{Desync, Error, Exited, Interrupted, Killed, NonFinite, Silent, Timeout};
        [Exited, Killed(signal), Silent, Desync, NonFinite, Error, Interrupted, Timeout]
    }
}

impl fmt::Display for CauseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CauseKind::Exited => f.write_str("exited"),
            CauseKind::Killed(signal) => write!(f, "was killed by signal {signal}"),
            CauseKind::Silent => f.write_str("fell silent"),
            CauseKind::Timeout => f.write_str("kept the others waiting"),
            CauseKind::Desync => f.write_str("is out of step"),
            CauseKind::NonFinite => f.write_str("met a non-finite value"),
            CauseKind::Error => f.write_str("failed"),
            CauseKind::Interrupted => f.write_str("was interrupted"),
        }
    }
}

/// The first failure of a group. Prints as one line:
///
/// ```
/// use enmasse_comm::{Cause, CauseKind};
/// let cause = Cause::new(CauseKind::Exited, "connection closed without goodbye")
///     .of_rank(2).on_host("h").during("all_reduce(sum) of 1000 f32", 17);
/// assert_eq!(
///     cause.to_string(),
///     "rank 2 on host h exited during all_reduce(sum) of 1000 f32 #17: connection closed without goodbye"
/// );
/// ```
#[derive(Clone, PartialEq, Eq, Error)]
pub struct Cause {
    /// The rank that failed; `None` if no single rank is to blame.
    pub rank: Option<usize>,
    /// The machine it ran on; empty if unknown. Without a rank, the machine on which the cause was raised.
    pub host: String,
    /// The sort of failure.
    pub kind: CauseKind,
    /// The operation in progress; empty outside operations.
    pub operation: String,
    /// The operation's number in its group, from 1; 0 outside operations.
    pub sequence: u64,
    /// What happened and, where possible, what to do.
    pub message: String,
    /// When it was raised, in milliseconds since 1970 (UTC), by the raising machine's clock.
    pub time: u64,
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Cause {
    /// A cause raised now, on this machine, that blames no rank.
    pub fn new(kind: CauseKind, message: impl Into<String>) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64);
        Cause {
            rank: None,
            host: host_name(),
            kind,
            operation: String::new(),
            sequence: 0,
            message: message.into(),
            time,
        }
    }

    /// Names the rank that failed. A group that raises the cause adds the rank's machine, which need not be this one.
    pub fn of_rank(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self.host.clear();
        self
    }

    /// Names the rank that failed, which runs on this machine.
    pub fn of_rank_here(self, rank: usize) -> Self {
        Cause { rank: Some(rank), ..self }
    }

    /// Names the failed rank's machine, where no group knows it.
    pub fn on_host(mut self, host: impl Into<String>) -> Self {
        self.host = host.into();
        self
    }

    /// Names the operation in progress, and its number.
    pub fn during(mut self, operation: impl Into<String>, sequence: u64) -> Self {
        self.operation = operation.into();
        self.sequence = sequence;
        self
    }

    /// The bounded binary form, the same on every machine. Longer texts are truncated.
    pub fn to_bytes(&self) -> Vec<u8> {
        let signal = if let CauseKind::Killed(signal) = self.kind { signal } else { 0 };
        let code = CauseKind::all(signal).iter().position(|kind| *kind == self.kind).unwrap_or_default();
        let mut bytes = vec![VERSION, code as u8 + 1];
        bytes.extend(signal.to_le_bytes());
        bytes.extend(self.rank.map_or(NO_RANK, |rank| rank as u64).to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(self.time.to_le_bytes());
        for (text, limit) in [(&self.host, NAME_LIMIT), (&self.operation, NAME_LIMIT), (&self.message, MESSAGE_LIMIT)] {
            let text = &text[..text.floor_char_boundary(limit)];
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    /// Reads the output of [`Cause::to_bytes`]. Nothing is trusted, and nothing beyond the stated limits is allocated.
    /// `None` if they are anything else: ranks may run different programs.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [version, code] = take(&mut rest)?;
        let signal = take(&mut rest).map(i32::from_le_bytes)?;
        let kind = *CauseKind::all(signal).get(usize::from(code.checked_sub(1)?)).filter(|_| version == VERSION)?;
        let rank = Some(take_u64(&mut rest)?).filter(|&rank| rank != NO_RANK);
        let (sequence, time) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
        let mut text = |limit: usize| {
            let length = usize::from(take(&mut rest).map(u16::from_le_bytes)?);
            let (text, after) = rest.split_at_checked(length).filter(|_| length <= limit)?;
            rest = after;
            std::str::from_utf8(text).map(str::to_owned).ok()
        };
        let host = text(NAME_LIMIT)?;
        let operation = text(NAME_LIMIT)?;
        let message = text(MESSAGE_LIMIT)?;
        let rank = rank.map(usize::try_from).transpose().ok()?;
        rest.is_empty().then_some(Cause { rank, host, kind, operation, sequence, message, time })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank}")?,
            None => f.write_str("the group")?,
        }
        if !self.host.is_empty() {
            write!(f, " on host {}", one_line(&self.host))?;
        }
        match (self.rank, self.kind) {
            (None, CauseKind::Timeout) => f.write_str(" waited too long")?,
            (_, kind) => write!(f, " {kind}")?,
        }
        if !self.operation.is_empty() {
            write!(f, " during {}", one_line(&self.operation))?;
            if self.sequence > 0 {
                write!(f, " #{}", self.sequence)?;
            }
        }
        if !self.message.is_empty() {
            write!(f, ": {}", one_line(&self.message))?;
        }
        Ok(())
    }
}

/// This machine's name, as causes have it.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A message from another machine must not move a terminal's cursor, nor forge a second line of a log.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_one_line() {
        let check = |cause: Cause, expected: &str| assert_eq!(cause.on_host("h").to_string(), expected);
        check(Cause::new(CauseKind::Interrupted, ""), "the group on host h was interrupted");
        check(
            Cause::new(CauseKind::Timeout, "it hangs").during("sum", 3),
            "the group on host h waited too long during sum #3: it hangs",
        );
        check(Cause::new(CauseKind::Killed(9), "").of_rank(0), "rank 0 on host h was killed by signal 9");
        check(
            Cause::new(CauseKind::Error, "a\nb\x1b[2J").of_rank(1).during("step", 0),
            "rank 1 on host h failed during step: a b [2J",
        );
    }

    #[test]
    fn long_texts_are_truncated_between_characters() {
        let cause = Cause::new(CauseKind::Error, "ü".repeat(MESSAGE_LIMIT)).on_host("x".repeat(9999));
        let bytes = cause.to_bytes();
        let read = Cause::from_bytes(&bytes).unwrap();
        assert!(bytes.len() <= CAUSE_LIMIT, "{}", bytes.len());
        assert_eq!((read.host.len(), read.message.len()), (NAME_LIMIT, MESSAGE_LIMIT));
    }

    proptest! {
        #[test]
        fn bytes_round_trip(
            rank in proptest::option::of(0usize..9999), kind in 0usize..8, signal in 0i32..64,
            host in ".{0,20}", operation in ".{0,40}", message in ".{0,80}", sequence: u64, time: u64,
        ) {
            let kind = CauseKind::all(signal)[kind];
            let cause = Cause { rank, host, kind, operation, sequence, message, time };
            let bytes = cause.to_bytes();
            prop_assert_eq!(Cause::from_bytes(&bytes), Some(cause));
            prop_assert_eq!(Cause::from_bytes(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Cause::from_bytes(&bytes);
        }
    }
}
