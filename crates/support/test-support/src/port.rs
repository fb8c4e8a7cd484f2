//! Ports for programs that are told where to listen.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that Linux gives to listeners and connections that ask for none, and below 29500, PyTorch's default.
const PORTS: std::ops::Range<u16> = 10_000..28_000;

/// A TCP port of loopback that nobody listens on, a different one each time.
///
/// A port that the kernel gave, and that was closed again, may be given to the next listener that asks: another test's.
pub fn free_port() -> u16 {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    // Two test programs at the same time begin far from each other.
    let begin = std::process::id().wrapping_mul(0x9e37_79b9) >> 16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let next = || {
        let offset = (begin + u32::from(CALLS.fetch_add(1, Ordering::Relaxed))) % PORTS.len() as u32;
        PORTS.start + offset as u16
    };
    std::iter::repeat_with(next).take(PORTS.len()).find(is_free).expect("a port of loopback is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_or_by_the_kernel() {
        let ports: std::collections::BTreeSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        assert!(ports.iter().all(|&port| port < first), "{ports:?}: the kernel's begin at {first}");
    }
}
