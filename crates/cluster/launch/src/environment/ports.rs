//! Ports that Linux gives to nobody by itself: derived from a job's name, for launchers that choose none, or by chance.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::iter::once;
use std::net::TcpListener;

/// Below the range from which Linux takes ports for outgoing connections, and above those of well-known services.
const FIRST: u64 = 10_240;
const COUNT: u64 = 32_768 - FIRST;
/// Number of ports that are tried.
const CANDIDATES: usize = 8;

/// The port of an attempt of a job, and the ports to try after it.
///
/// Jobs that share a machine usually get different ports, because the whole name counts, not its last digits.
pub(super) fn of_job(name: &str, attempt: usize) -> (u16, Vec<u16>) {
    let mut ports = Vec::with_capacity(CANDIDATES);
    let mut state = hash(name.bytes().chain(attempt.to_le_bytes()));
    while ports.len() < CANDIDATES {
        state = mix(state);
        let port = (FIRST + state % COUNT) as u16;
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    (ports[0], ports.split_off(1))
}

/// Binds a port by chance, or any free one if those that are tried are taken. Until another process binds the port that is released
/// here, no connection of a third one gets it, unlike a port that Linux chose.
pub(crate) fn bind_any(bind: impl Fn(u16) -> io::Result<TcpListener>) -> io::Result<TcpListener> {
    let (port, more_ports) = of_job(&RandomState::new().build_hasher().finish().to_string(), 0);
    once(port).chain(more_ports).find_map(|port| bind(port).ok()).map_or_else(|| bind(0), Ok)
}

/// The FNV-1a hash.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// One step of SplitMix64.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ports_are_many_and_the_same_for_all_ranks() {
        let (first, more) = of_job("4711.0", 0);
        assert_eq!(of_job("4711.0", 0), (first, more.clone()));
        let all: HashSet<u16> = more.into_iter().chain([first]).collect();
        assert_eq!(all.len(), CANDIDATES);
        assert!(all.iter().all(|port| (10_240..32_768).contains(port)));
    }

    /// Regression test: a connection of another process took the port that rank 0 was about to bind.
    #[test]
    fn ports_by_chance_are_none_that_connections_get() {
        let free = bind_any(|port| TcpListener::bind(("127.0.0.1", port))).unwrap();
        assert!((10_240..32_768).contains(&free.local_addr().unwrap().port()));
        let taken = bind_any(|port| match port {
            0 => TcpListener::bind(("127.0.0.1", 0)),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        });
        assert_ne!(taken.unwrap().local_addr().unwrap().port(), 0);
    }

    #[test]
    fn jobs_of_equal_last_digits_differ() {
        let firsts: HashSet<u16> = (0..100).map(|job| of_job(&format!("{}.0", 10_000 * job + 1234), 0).0).collect();
        assert!(firsts.len() > 90, "{}", firsts.len());
        assert_ne!(of_job("1.0", 0), of_job("1.0", 1));
        assert_ne!(of_job("1.0", 0), of_job("1.1", 0));
    }
}
