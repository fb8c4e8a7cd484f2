//! Counts of the connections that a port has refused, by reason, in memory that no flood can grow.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Addresses that are kept for each reason.
const MAX_ADDRESSES: usize = 4;

/// Why a port has refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its proof is wrong, or it closed the connection once it had seen the proof of this side.
    Token,
    /// It speaks another version of the protocol.
    Version,
    /// It does not speak the protocol.
    Program,
    /// Its proof did not come in time.
    Late,
    /// There were too many at a time.
    Crowded,
}

impl Reason {
    /// In the order of their counts.
    const ALL: [Reason; 5] = [Reason::Token, Reason::Version, Reason::Program, Reason::Late, Reason::Crowded];

    fn words(self) -> &'static str {
        match self {
            Reason::Token => "without the token of this run",
            Reason::Version => "of another version of enmasse",
            Reason::Program => "of another program",
            Reason::Late => "without a proof of the token in time",
            Reason::Crowded => "to make room for others",
        }
    }
}

/// Connections that were refused at a port because they did not prove the token. Prints as one line:
/// `refused at 10.0.0.1:29500: 3 connections from 10.0.0.7, without the token of this run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    at: SocketAddr,
    tallies: [Tally; Reason::ALL.len()],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tally {
    count: u64,
    /// The first that came.
    addresses: Vec<IpAddr>,
    /// Whether others came, too.
    are_more: bool,
}

impl Refused {
    /// None yet, at this address of a port.
    pub(super) fn new(at: SocketAddr) -> Self {
        Refused { at, tallies: Default::default() }
    }

    pub(super) fn count(&mut self, from: IpAddr, reason: Reason) {
        let tally = &mut self.tallies[reason as usize];
        tally.count += 1;
        let from = from.to_canonical();
        if !tally.addresses.contains(&from) {
            match tally.addresses.len() {
                MAX_ADDRESSES => tally.are_more = true,
                _ => tally.addresses.push(from),
            }
        }
    }

    /// How many there were, for any reason.
    pub fn connections(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.count).sum()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused at {}", self.at)?;
        let mut before = ": ";
        for (reason, Tally { count, addresses, are_more }) in Reason::ALL.into_iter().zip(&self.tallies) {
            if *count == 0 {
                continue;
            }
            let plural = if *count == 1 { "" } else { "s" };
            let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
            let more = if *are_more { " and other addresses" } else { "" };
            write!(f, "{before}{count} connection{plural} from {}{more}, {}", addresses.join(", "), reason.words())?;
            before = "; ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 29500))
    }

    #[test]
    fn counts_in_words() {
        let check = |counted: &[(&str, Reason)], expected: &str| {
            let mut refused = Refused::new(at());
            counted.iter().for_each(|(from, reason)| refused.count(from.parse().unwrap(), *reason));
            assert_eq!(refused.to_string(), format!("refused at 10.0.0.1:29500: {expected}"));
            assert_eq!(refused.connections(), counted.len() as u64);
        };
        let (token, program) = (Reason::Token, Reason::Program);
        check(&[("10.0.0.7", token)], "1 connection from 10.0.0.7, without the token of this run");
        check(&[("10.0.0.7", token); 3], "3 connections from 10.0.0.7, without the token of this run");
        check(&[("::ffff:10.0.0.7", token); 2], "2 connections from 10.0.0.7, without the token of this run");
        check(
            &[("10.0.0.8", program), ("10.0.0.7", token), ("fe80::1", program)],
            "1 connection from 10.0.0.7, without the token of this run; 2 connections from 10.0.0.8, fe80::1, of another program",
        );
        check(
            &["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4", "1.1.1.5", "1.1.1.1"].map(|from| (from, Reason::Version)),
            "6 connections from 1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4 and other addresses, of another version of enmasse",
        );
        check(&[("10.0.0.7", Reason::Late)], "1 connection from 10.0.0.7, without a proof of the token in time");
        check(&[("10.0.0.7", Reason::Crowded)], "1 connection from 10.0.0.7, to make room for others");
    }

    #[test]
    fn a_flood_takes_no_more_memory_than_a_few_connections() {
        let mut refused = Refused::new(at());
        for number in 0..130_000u32 {
            Reason::ALL.iter().for_each(|reason| refused.count(IpAddr::from(number.to_be_bytes()), *reason));
        }
        assert_eq!(refused.connections(), 5 * 130_000);
        assert!(refused.tallies.iter().all(|tally| tally.addresses.capacity() <= MAX_ADDRESSES));
        assert!(refused.to_string().len() < 1024);
    }
}
