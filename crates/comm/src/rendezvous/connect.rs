//! Connecting to other ranks, which may not have started yet.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Rendezvous;
use super::whereabouts::Whereabouts;
use crate::error::JoinError;
use crate::net::handshake::{HandshakeError, Introduction, Purpose, introduce};
use crate::token::Token;

/// Between two attempts to reach rank 0.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest single attempt; a lost packet should not cost the whole deadline.
const ATTEMPT: Duration = Duration::from_secs(5);
/// So often must a token be refused to be believed: a busy rank 0 may close a connection unheard.
const REFUSALS: usize = 3;

/// Why rank 0 was not reached, before anything else is known.
const UNTRIED: &str = "no attempt was made";

/// Connects to rank 0 until the deadline, and returns the connection with the token that opened it.
pub(super) fn to_rank_0(
    rendezvous: &mut Rendezvous,
    whereabouts: &mut Whereabouts,
    purpose: Purpose,
    deadline: Instant,
) -> Result<(TcpStream, Token), JoinError> {
    let (rank, address) = (rendezvous.rank, rendezvous.address.clone());
    // A stranger may have one of several ports, and before a restart rank 0 had another one.
    let is_certain = matches!(whereabouts, Whereabouts::Known(_)) && rendezvous.more_ports.is_empty();
    let may_change = rendezvous.token.is_none() && rendezvous.token_file.is_some();
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut refusals = 0;
    let mut why = String::from(UNTRIED);
    while !left().is_zero() {
        let targets = rendezvous.targets(whereabouts).unwrap_or_else(|problem| {
            why = problem;
            vec![]
        });
        // Each round tries every address of the name, since the first may be another family than rank 0 listens on.
        for target in targets {
            match attempt(rendezvous, &target, purpose, left().min(ATTEMPT)) {
                Ok(connection) => return Ok(connection),
                // The last attempt has no time left, and says less than those before it.
                Err(HandshakeError::Io(error)) if error.kind() == io::ErrorKind::TimedOut && why != UNTRIED => {}
                Err(HandshakeError::Io(error)) => why = error.to_string(),
                Err(HandshakeError::Token) => {
                    refusals += 1;
                    why = format!("the listener at {target} holds another token");
                    if refusals >= REFUSALS && is_certain && !may_change {
                        return Err(JoinError::TokenDiffers { rank, address });
                    }
                }
                Err(HandshakeError::Refused(why)) if is_certain => {
                    return Err(JoinError::Refused { rank, address, why });
                }
                Err(HandshakeError::Refused(refusal)) => why = format!("refused at {target}: {refusal}"),
            }
        }
        std::thread::sleep(PAUSE);
    }
    let seconds = rendezvous.join_timeout.as_secs_f64();
    Err(JoinError::Unreachable { rank, address, seconds, why })
}

/// One attempt, with the token as it is now: rank 0 may not have made it yet, or a killed job has left one behind.
fn attempt(
    rendezvous: &Rendezvous,
    target: &SocketAddr,
    purpose: Purpose,
    limit: Duration,
) -> Result<(TcpStream, Token), HandshakeError> {
    let token = match (&rendezvous.token, &rendezvous.token_file) {
        (Some(token), _) => token.clone(),
        (None, Some(path)) => Token::read_file(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?,
        (None, None) => Token::none(),
    };
    // No time is no argument that the kernel takes.
    let limit = limit.max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(target, limit)?;
    introduce(&stream, &token, &rendezvous.introduction(purpose), limit)?;
    Ok((stream, token))
}

/// Connects to another rank, which listens already.
pub(super) fn to_rank(
    address: SocketAddr,
    token: &Token,
    introduction: &Introduction,
    deadline: Instant,
) -> Result<TcpStream, String> {
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&address, left()).map_err(|error| error.to_string())?;
    introduce(&stream, token, introduction, left()).map_err(|error| error.to_string())?;
    Ok(stream)
}
