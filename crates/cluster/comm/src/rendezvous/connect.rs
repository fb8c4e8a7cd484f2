//! Connecting to other ranks, which may not have started yet.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::rank_zero_address::RankZeroAddress;
use super::{Rendezvous, Secret};
use crate::error::{JoinError, files_limit};
use crate::failure::Failure;
use crate::net::connect;
use crate::net::handshake::{HandshakeError, Introduction, Purpose, introduce};
use crate::net::link::Link;
use crate::token::Token;

/// Longest pause after the first attempt to reach a rank.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the pause doubles while a rank is sent away.
const DOUBLINGS: u32 = 4;
/// Time limit of a single attempt: a lost packet should not use up the whole deadline.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Wrong proofs of the token before they are believed: bytes that were changed on the way make a proof wrong too.
const REFUSALS: u32 = 3;
/// Failures to find a way to a host before they are believed: where hundreds of ranks look for each other at once, tables of neighbours
/// overflow for a moment.
const NO_WAYS: u32 = 3;

/// The reason for not reaching rank 0 before the first attempt.
const UNTRIED: &str = "no attempt was made";

/// Connects to rank 0 until the deadline, or until the group fails. Returns the connection with the token that opened
/// it.
pub(super) fn to_rank_0(
    rendezvous: &mut Rendezvous,
    secret: &Secret,
    rank_zero_address: &mut RankZeroAddress,
    purpose: Purpose,
    deadline: Instant,
    failure: &Failure,
) -> Result<(Link, Token), JoinError> {
    let rank = rendezvous.rank;
    let address = rendezvous.address.clone();
    // With several ports, a stranger may hold one of them; and before a restart rank 0 had another port.
    let is_certain = matches!(rank_zero_address, RankZeroAddress::Known(_)) && rendezvous.more_ports.is_empty();
    let may_change = matches!(secret, Secret::InFile(_));
    let left = || deadline.saturating_duration_since(Instant::now());
    let (mut refusals, mut closings) = (0, 0);
    let mut why = String::from(UNTRIED);
    while !left().is_zero() && !failure.is_stopping() {
        let targets = rendezvous.targets(rank_zero_address).unwrap_or_else(|problem| {
            why = problem;
            vec![]
        });
        // Each round tries every address of the name, since the first may be of another family than the one rank 0
        // listens on.
        for target in targets {
            match attempt(rendezvous, secret, &target, purpose, left().min(ATTEMPT)) {
                Ok(connection) => return Ok(connection),
                // Waiting gives no descriptor back.
                Err(HandshakeError::Io(source)) if files_limit(&source).is_some() => {
                    return Err(JoinError::Thread(source));
                }
                // The last attempt runs out of time, and its error says less than the earlier ones.
                Err(HandshakeError::Io(error)) if error.kind() == io::ErrorKind::TimedOut && why != UNTRIED => {}
                Err(HandshakeError::Io(error)) => {
                    closings += u32::from(is_passing(&error));
                    why = error.to_string();
                }
                Err(HandshakeError::Token) => {
                    refusals += 1;
                    why = format!("the listener at {target} holds another token");
                    if refusals >= REFUSALS && is_certain && !may_change {
                        return Err(JoinError::TokenDiffers { rank, address });
                    }
                }
                Err(refusal @ (HandshakeError::Refused(_) | HandshakeError::Version(_))) if is_certain => {
                    return Err(JoinError::Refused { rank, address, why: refusal.to_string() });
                }
                Err(refusal) => why = format!("refused at {target}: {refusal}"),
            }
        }
        std::thread::sleep(pause(rank, closings));
    }
    let seconds = rendezvous.join_timeout.as_secs_f64();
    Err(JoinError::Unreachable { rank, address, seconds, why })
}

/// One attempt, with the token of this moment: rank 0 may not have written the file yet, or a killed job may have left
/// one.
fn attempt(
    rendezvous: &Rendezvous,
    secret: &Secret,
    target: &SocketAddr,
    purpose: Purpose,
    limit: Duration,
) -> Result<(Link, Token), HandshakeError> {
    let token = match secret {
        Secret::Known(token) => token.clone(),
        Secret::InFile(path) => Token::read_file(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?,
    };
    // The kernel rejects a time of zero.
    let limit = limit.max(Duration::from_millis(1));
    let stream = connect(target, limit)?;
    let link = introduce(stream, &token, &rendezvous.introduction(purpose), limit)?;
    Ok((link, token))
}

/// Connects to another rank, which already listens. A flood of strangers can make it close connections, so this tries
/// until the deadline, or until `go_on` has an error. The other error is the reason why the rank cannot be reached.
pub(super) fn to_rank(
    address: SocketAddr,
    token: &Token,
    introduction: &Introduction,
    deadline: Instant,
    go_on: impl Fn() -> Result<(), JoinError>,
) -> Result<Result<Link, String>, JoinError> {
    let left = || deadline.saturating_duration_since(Instant::now()).min(ATTEMPT).max(Duration::from_millis(1));
    let (mut failures, mut closings) = (0, 0);
    loop {
        let stream = connect(&address, left()).map_err(HandshakeError::from);
        let error = match stream.and_then(|stream| introduce(stream, token, introduction, left())) {
            Ok(link) => return Ok(Ok(link)),
            Err(HandshakeError::Io(source)) if files_limit(&source).is_some() => {
                return Err(JoinError::Thread(source));
            }
            Err(error) => error,
        };
        closings += 1;
        let most = chances(&error);
        failures += u32::from(most.is_some());
        if most.is_some_and(|most| failures >= most) || Instant::now() >= deadline {
            return Ok(Err(error.to_string()));
        }
        go_on()?;
        std::thread::sleep(pause(introduction.rank, closings));
    }
}

/// How many attempts may fail before an error of the last one is believed; `None` for all until the deadline.
fn chances(error: &HandshakeError) -> Option<u32> {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable};
    match error {
        HandshakeError::Io(error) if is_passing(error) => None,
        HandshakeError::Io(error) if [HostUnreachable, NetworkUnreachable].contains(&error.kind()) => Some(NO_WAYS),
        HandshakeError::Token => Some(REFUSALS),
        _ => Some(1),
    }
}

/// Whether a listener may have sent a connection away for want of room, or was too busy to answer in time.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | UnexpectedEof | WouldBlock)
}

/// The pause of a rank that was sent away so often: longer each time, and different for each rank, so that ranks that
/// were sent away together do not return together.
fn pause(rank: usize, closings: u32) -> Duration {
    let longest = PAUSE * (1 << closings.min(DOUBLINGS));
    let lot = (rank as u32).wrapping_mul(0x9e37_79b9).wrapping_add(closings.wrapping_mul(0x85eb_ca6b)) >> 24;
    longest / 2 + longest / 2 * lot / 256
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::handshake::{answer, receive};
    use crate::operation::Identity;
    use std::net::TcpListener;

    /// A rank that was sent away once, as in a flood, did not come again.
    #[test]
    fn a_data_connection_that_was_closed_was_not_tried_again() {
        let limit = Duration::from_secs(60);
        let token = Token::from_bytes([1; 32]);
        let identity = Identity::default();
        let host = "h".to_owned();
        let who = Introduction { purpose: Purpose::Data, rank: 1, target: 0, world_size: 2, identity, host };
        let reach = |address, go_on: &dyn Fn() -> Result<(), JoinError>| {
            to_rank(address, &token, &who, Instant::now() + limit, go_on)
        };
        let check = |closings: usize| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let accepting = std::thread::spawn({
                let token = token.clone();
                move || {
                    (0..closings).for_each(|_| drop(listener.accept().unwrap()));
                    let (link, introduction) = receive(listener.accept().unwrap().0, &token, limit).unwrap();
                    answer(&link, None).unwrap();
                    introduction
                }
            });
            reach(address, &|| Ok(())).unwrap().unwrap();
            assert_eq!(accepting.join().unwrap(), who);
        };
        check(0);
        check(1);
        check(3);
        // Nobody listens there, which does not pass.
        let refused = reach(SocketAddr::from(([127, 0, 0, 1], 1)), &|| Ok(())).unwrap();
        assert!(refused.is_err_and(|why| why.starts_with("Connection refused")));
        // The group fails meanwhile.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let closing = std::thread::spawn(move || drop(listener.accept().unwrap()));
        let failed = reach(address, &|| Err(JoinError::Rank { rank: 7, world_size: 2 }));
        assert!(matches!(failed, Err(JoinError::Rank { rank: 7, .. })));
        closing.join().unwrap();
    }

    /// An overflowing table of neighbours ended the run at once.
    #[test]
    fn a_host_without_a_way_to_it_was_not_tried_again() {
        let check =
            |kind: io::ErrorKind, expected| assert_eq!(chances(&HandshakeError::Io(kind.into())), expected, "{kind}");
        check(io::ErrorKind::HostUnreachable, Some(3));
        check(io::ErrorKind::NetworkUnreachable, Some(3));
        check(io::ErrorKind::ConnectionRefused, Some(1));
        check(io::ErrorKind::ConnectionReset, None);
        check(io::ErrorKind::TimedOut, None);
        assert_eq!(chances(&HandshakeError::Token), Some(3));
    }

    #[test]
    fn pauses_grow_and_differ_between_ranks() {
        let check = |closings, least: u64, most: u64| {
            let pauses: std::collections::HashSet<_> = (0..64).map(|rank| pause(rank, closings)).collect();
            let expected = Duration::from_millis(least)..=Duration::from_millis(most);
            assert!(pauses.iter().all(|pause| expected.contains(pause)), "{closings}: {pauses:?}");
            assert!(pauses.len() > 32, "{closings}: {pauses:?}");
        };
        check(0, 10, 20);
        check(1, 20, 40);
        check(4, 160, 320);
        check(u32::MAX, 160, 320);
    }
}
