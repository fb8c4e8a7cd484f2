//! The start of a connection: both sides prove the token, then the connecting side introduces itself.
//!
//! ```text
//! connecting                                   accepting
//!   magic and protocol, random number   ->
//!                                       <-     random number
//!   proof                               ->     (closes here unless it is right)
//!                                       <-     proof
//!   introduction                        ->
//!                                       <-     accepted, or refused and why
//! ```

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::{configure, read_frame, write_frame};
use crate::operation::{Identity, PROTOCOL};
use crate::token::{Side, TOKEN_BYTES, Token, random};

/// The first bytes of a connection. A program that sends anything else gets no answer.
const MAGIC: [u8; 8] = [b'e', b'n', b'm', b'a', b's', b's', b'e', PROTOCOL as u8];
const INTRODUCTION: u8 = 1;
const ACCEPTED: u8 = 2;
const REFUSED: u8 = 3;
/// Size limit of an introduction or a refusal, in bytes.
const TEXT_LIMIT: usize = 1024;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// Liveness and causes.
    Control = 1,
    /// Keys and values.
    Store = 2,
    /// The bytes of collectives.
    Data = 3,
    /// Between agents, which are not ranks.
    Agent = 4,
}

/// The connecting side's identity, and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub purpose: Purpose,
    pub rank: usize,
    pub world_size: usize,
    pub identity: Identity,
    pub host: String,
}

/// Reasons why a handshake failed.
#[derive(Debug, Error)]
pub(crate) enum HandshakeError {
    /// The connection broke, timed out, or speaks another protocol.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side holds another token.
    #[error("the tokens differ")]
    Token,
    /// The other side refuses the introduction.
    #[error("{0}")]
    Refused(String),
}

/// Reads and writes with one deadline for all of them: a peer gains nothing by sending single bytes slowly.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The connecting side. Ends within `limit`.
pub(crate) fn introduce(
    stream: &TcpStream,
    token: &Token,
    introduction: &Introduction,
    limit: Duration,
) -> Result<(), HandshakeError> {
    configure(stream, limit)?;
    let mut stream = Timed { stream, deadline: Instant::now() + limit };
    let own = random()?;
    stream.write_all(&MAGIC)?;
    stream.write_all(&own)?;
    let other: [u8; TOKEN_BYTES] = read_array(&mut stream)?;
    stream.write_all(token.proof(Side::Connecting, &own, &other).as_bytes())?;
    let proof: [u8; TOKEN_BYTES] = read_array(&mut stream).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => HandshakeError::Token,
        _ => error.into(),
    })?;
    if token.proof(Side::Accepting, &own, &other) != proof {
        return Err(HandshakeError::Token);
    }
    write_frame(&mut stream, INTRODUCTION, &introduction.to_bytes())?;
    let answer = read_frame(&mut stream, TEXT_LIMIT)?;
    match answer.kind {
        ACCEPTED => Ok(()),
        REFUSED => Err(HandshakeError::Refused(String::from_utf8_lossy(&answer.payload).into_owned())),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    }
}

/// The accepting side, up to the introduction. The caller then sends [`answer`].
pub(crate) fn receive(stream: &TcpStream, token: &Token, limit: Duration) -> Result<Introduction, HandshakeError> {
    configure(stream, limit)?;
    let mut stream = Timed { stream, deadline: Instant::now() + limit };
    let magic: [u8; MAGIC.len()] = read_array(&mut stream)?;
    let other: [u8; TOKEN_BYTES] = read_array(&mut stream)?;
    if magic != MAGIC {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    }
    let own = random()?;
    stream.write_all(&own)?;
    let proof: [u8; TOKEN_BYTES] = read_array(&mut stream)?;
    if token.proof(Side::Connecting, &other, &own) != proof {
        return Err(HandshakeError::Token);
    }
    stream.write_all(token.proof(Side::Accepting, &other, &own).as_bytes())?;
    let frame = read_frame(&mut stream, TEXT_LIMIT)?;
    let introduction = Introduction::from_bytes(&frame.payload).filter(|_| frame.kind == INTRODUCTION);
    introduction.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData).into())
}

/// Ends a handshake: accepts the rank, or sends the reason for a refusal.
pub(crate) fn answer(stream: &TcpStream, refusal: Option<&str>) -> io::Result<()> {
    match refusal {
        None => write_frame(stream, ACCEPTED, &[]),
        Some(why) => write_frame(stream, REFUSED, &why.as_bytes()[..why.floor_char_boundary(TEXT_LIMIT)]),
    }
}

impl Introduction {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.purpose as u8];
        bytes.extend((self.rank as u32).to_le_bytes());
        bytes.extend((self.world_size as u32).to_le_bytes());
        bytes.extend(self.identity.job.to_le_bytes());
        bytes.extend(self.identity.attempt.to_le_bytes());
        bytes.extend(self.identity.epoch.to_le_bytes());
        bytes.extend(&self.host.as_bytes()[..self.host.floor_char_boundary(255)]);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&purpose, rest) = bytes.split_first()?;
        let purpose = [Purpose::Control, Purpose::Store, Purpose::Data, Purpose::Agent]
            .into_iter()
            .find(|&p| p as u8 == purpose)?;
        let (rank, rest) = rest.split_first_chunk()?;
        let (world_size, rest) = rest.split_first_chunk()?;
        let (job, rest) = rest.split_first_chunk()?;
        let (attempt, rest) = rest.split_first_chunk()?;
        let (epoch, host) = rest.split_first_chunk()?;
        Some(Introduction {
            purpose,
            rank: u32::from_le_bytes(*rank) as usize,
            world_size: u32::from_le_bytes(*world_size) as usize,
            identity: Identity {
                job: u64::from_le_bytes(*job),
                attempt: u32::from_le_bytes(*attempt),
                epoch: u32::from_le_bytes(*epoch),
            },
            host: std::str::from_utf8(host).ok().filter(|host| host.len() <= 255)?.to_owned(),
        })
    }
}

fn read_array<const N: usize>(mut stream: impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(20);

    fn introduction() -> Introduction {
        let identity = Identity { job: 7, attempt: 8, epoch: 9 };
        Introduction { purpose: Purpose::Store, rank: 3, world_size: 4, identity, host: "h".into() }
    }

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_right_token_opens() {
        let (client, server) = connection();
        let token = Token::generate().unwrap();
        let accepting = thread::spawn({
            let token = token.clone();
            move || {
                let who = receive(&server, &token, LIMIT).unwrap();
                answer(&server, Some("no seat")).unwrap();
                who
            }
        });
        let refusal = introduce(&client, &token, &introduction(), LIMIT).unwrap_err();
        assert_eq!(refusal.to_string(), "no seat");
        assert_eq!(accepting.join().unwrap(), introduction());
    }

    #[test]
    fn a_wrong_token_is_refused_on_both_sides() {
        let (client, server) = connection();
        let accepting = thread::spawn(move || receive(&server, &Token::from_bytes([1; 32]), LIMIT).unwrap_err());
        let refusal = introduce(&client, &Token::from_bytes([2; 32]), &introduction(), LIMIT).unwrap_err();
        assert!(matches!(refusal, HandshakeError::Token), "{refusal}");
        assert!(matches!(accepting.join().unwrap(), HandshakeError::Token));
    }

    /// Checks the number of bytes that the accepting side sends to a peer that sends `bytes` and then reads.
    fn check_stranger(bytes: &[u8], expected: usize) {
        let (mut client, server) = connection();
        let accepting = thread::spawn(move || receive(&server, &Token::from_bytes([1; 32]), LIMIT).is_err());
        client.write_all(bytes).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut heard = vec![];
        // A reset is equivalent to an end of file.
        let _ = client.read_to_end(&mut heard);
        assert_eq!(heard.len(), expected);
        assert!(accepting.join().unwrap());
    }

    #[test]
    fn strangers_learn_nothing_of_value() {
        check_stranger(b"", 0);
        check_stranger(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n", 0);
        // A peer that speaks the protocol gets a random number, and without the token nothing more.
        let guess = [&MAGIC[..], &[0; TOKEN_BYTES], &[0; TOKEN_BYTES]].concat();
        check_stranger(&guess, TOKEN_BYTES);
    }

    #[test]
    fn silence_ends_at_the_deadline() {
        let (_client, server) = connection();
        let error = receive(&server, &Token::none(), Duration::from_millis(20)).unwrap_err();
        let HandshakeError::Io(error) = error else { panic!("{error}") };
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
    }

    #[test]
    fn introductions_are_parsed_with_care() {
        let bytes = introduction().to_bytes();
        assert_eq!(Introduction::from_bytes(&bytes), Some(introduction()));
        for end in 0..bytes.len() - 1 {
            assert_eq!(Introduction::from_bytes(&bytes[..end]), None, "{end}");
        }
        assert_eq!(Introduction::from_bytes(&[9; 40]), None);
    }
}
