//! Connecting to other ranks, which may not have started yet.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Rendezvous;
use crate::error::JoinError;
use crate::net::handshake::{HandshakeError, Introduction, Purpose, introduce};
use crate::token::Token;

/// Between two attempts to reach rank 0.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest single attempt; a lost packet should not cost the whole deadline.
const ATTEMPT: Duration = Duration::from_secs(5);
/// So often must a token be refused to be believed: a busy rank 0 may close a connection unheard.
const REFUSALS: usize = 3;

/// Connects to rank 0 until the deadline, and returns the connection with the token that opened it.
pub(super) fn to_rank_0(
    rendezvous: &Rendezvous,
    addresses: &[SocketAddr],
    purpose: Purpose,
    deadline: Instant,
) -> Result<(TcpStream, Token), JoinError> {
    let Rendezvous { rank, address, token_file, .. } = rendezvous;
    let introduction = rendezvous.introduction(purpose);
    let mut refusals = 0;
    let mut why = String::from("no attempt was made");
    // Each round tries every address of the name, since the first may be another family than rank 0 listens on.
    for target in addresses.iter().cycle() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let token = match (&rendezvous.token, token_file) {
            (Some(token), _) => Ok(token.clone()),
            // Read anew each time: rank 0 may not have made it yet, or it is one that a killed job left behind.
            (None, Some(path)) => Token::read_file(path).map_err(|error| format!("{}: {error}", path.display())),
            (None, None) => Ok(Token::none()),
        };
        let attempt = token.and_then(|token| {
            let stream = TcpStream::connect_timeout(target, left.min(ATTEMPT)).map_err(|error| error.to_string())?;
            Ok((stream, token))
        });
        match attempt {
            Ok((stream, token)) => match introduce(&stream, &token, &introduction, left.min(ATTEMPT)) {
                Ok(()) => return Ok((stream, token)),
                Err(HandshakeError::Io(error)) => why = error.to_string(),
                Err(HandshakeError::Token) => {
                    refusals += 1;
                    why = "it holds another token".into();
                    if refusals >= REFUSALS && (rendezvous.token.is_some() || token_file.is_none()) {
                        return Err(JoinError::TokenDiffers { rank: *rank, address: address.clone() });
                    }
                }
                Err(HandshakeError::Refused(why)) => {
                    return Err(JoinError::Refused { rank: *rank, address: address.clone(), why });
                }
            },
            Err(error) => why = error,
        }
        std::thread::sleep(PAUSE);
    }
    let seconds = rendezvous.join_timeout.as_secs_f64();
    Err(JoinError::Unreachable { rank: *rank, address: address.clone(), seconds, why })
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
