//! Connecting to other ranks, which may not have started yet.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::whereabouts::Whereabouts;
use super::{Rendezvous, Secret};
use crate::error::JoinError;
use crate::failure::Failure;
use crate::net::handshake::{HandshakeError, Introduction, Purpose, introduce};
use crate::net::link::Link;
use crate::token::Token;

/// Pause between two attempts to reach rank 0.
const PAUSE: Duration = Duration::from_millis(20);
/// Time limit of a single attempt: a lost packet should not use up the whole deadline.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Wrong proofs of the token before they are believed: bytes that were changed on the way make a proof wrong too.
const REFUSALS: usize = 3;

/// The reason for not reaching rank 0 before the first attempt.
const UNTRIED: &str = "no attempt was made";

/// Connects to rank 0 until the deadline, or until the group fails. Returns the connection with the token that opened
/// it.
pub(super) fn to_rank_0(
    rendezvous: &mut Rendezvous,
    secret: &Secret,
    whereabouts: &mut Whereabouts,
    purpose: Purpose,
    deadline: Instant,
    failure: &Failure,
) -> Result<(Link, Token), JoinError> {
    let (rank, address) = (rendezvous.rank, rendezvous.address.clone());
    // With several ports, a stranger may hold one of them; and before a restart rank 0 had another port.
    let is_certain = matches!(whereabouts, Whereabouts::Known(_)) && rendezvous.more_ports.is_empty();
    let may_change = matches!(secret, Secret::InFile(_));
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut refusals = 0;
    let mut why = String::from(UNTRIED);
    while !left().is_zero() && !failure.is_stopping() {
        let targets = rendezvous.targets(whereabouts).unwrap_or_else(|problem| {
            why = problem;
            vec![]
        });
        // Each round tries every address of the name, since the first may be of another family than the one rank 0
        // listens on.
        for target in targets {
            match attempt(rendezvous, secret, &target, purpose, left().min(ATTEMPT)) {
                Ok(connection) => return Ok(connection),
                // The last attempt runs out of time, and its error says less than the earlier ones.
                Err(HandshakeError::Io(error)) if error.kind() == io::ErrorKind::TimedOut && why != UNTRIED => {}
                Err(HandshakeError::Io(error)) => why = error.to_string(),
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
        std::thread::sleep(PAUSE);
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
    let stream = TcpStream::connect_timeout(target, limit)?;
    let link = introduce(stream, &token, &rendezvous.introduction(purpose), limit)?;
    Ok((link, token))
}

/// Connects to another rank, which already listens.
pub(super) fn to_rank(
    address: SocketAddr,
    token: &Token,
    introduction: &Introduction,
    deadline: Instant,
) -> Result<Link, String> {
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&address, left()).map_err(|error| error.to_string())?;
    introduce(stream, token, introduction, left()).map_err(|error| error.to_string())
}
