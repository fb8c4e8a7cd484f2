//! The start of a connection: both sides prove the token, and the connecting side introduces itself.
//!
//! ```text
//! connecting                                   accepting
//!   magic and protocol, random number   ->
//!                                       <-     magic and protocol, random number, offered cipher, proof
//!   chosen cipher, introduction, proof  ->     (closes here unless the proof is right)
//!                                       <-     accepted, or refused and why
//! ```
//!
//! The accepting side proves itself first: a program that has taken a rank's port gets nothing but a random number.
//! A proof covers everything that both sides have said before it, so nobody between them can choose the cipher; and there
//! is no choice without one. The answer is the first frame: the keys of all records depend on the token, on both random
//! numbers, on the ciphers and on the introduction.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use thiserror::Error;

mod reception;

pub(crate) use reception::Reception;
#[cfg(test)]
pub(crate) use reception::{receive, receive_with};

use super::link::Link;
use super::record::{Cipher, Inbound, Outbound};
use super::{configure, left};
use crate::operation::{Identity, PROTOCOL};
use crate::received::{take, take_u32, take_u64};
use crate::token::{Side, TOKEN_BYTES, Token, Transcript, random};

/// The first bytes of a connection, before the protocol's version. A program that sends anything else gets no answer.
const MAGIC: [u8; 7] = *b"enmasse";
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
    /// The connecting rank, by its number in the job.
    pub rank: usize,
    /// The rank that it wants to reach, by its number in the job.
    pub target: usize,
    /// The size of the group that the connection is for.
    pub world_size: usize,
    pub identity: Identity,
    pub host: String,
}

/// Reasons why a handshake failed.
#[derive(Debug, Error)]
pub(crate) enum HandshakeError {
    /// The connection broke, timed out, or leads to another program.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side runs another version of enmasse.
    #[error(
        "version {0} of the protocol is spoken there, and version {PROTOCOL} here: start all ranks with the same program"
    )]
    Version(u8),
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

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.deadline)?))?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The connecting side. Ends within `limit`.
pub(crate) fn introduce(
    stream: TcpStream,
    token: &Token,
    introduction: &Introduction,
    limit: Duration,
) -> Result<Link, HandshakeError> {
    introduce_with(Cipher::of_processor(), stream, token, introduction, limit)
}

/// The same on a processor with this cipher.
pub(crate) fn introduce_with(
    cipher: Cipher,
    stream: TcpStream,
    token: &Token,
    introduction: &Introduction,
    limit: Duration,
) -> Result<Link, HandshakeError> {
    configure(&stream, limit)?;
    let deadline = Instant::now() + limit;
    let mut timed = Timed { stream: &stream, deadline };
    let own = random()?;
    timed.write_all(&hello(&own))?;
    let (magic, version) = read_hello(&mut timed).map_err(|error| {
        closed(error, "the connection was closed without an answer, as another program or an older enmasse does")
    })?;
    if magic != MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "another program answers there").into());
    }
    if u32::from(version) != PROTOCOL {
        return Err(HandshakeError::Version(version));
    }
    let other = read_array(&mut timed)?;
    let [offer] = read_array(&mut timed)?;
    let proof: [u8; TOKEN_BYTES] = read_array(&mut timed)?;
    let greeting = Transcript { connecting: &own, accepting: &other, offer, introduction: &[] };
    if token.proof(Side::Accepting, greeting) != proof {
        return Err(HandshakeError::Token);
    }
    let cipher = Cipher::from_byte(offer).ok_or(io::ErrorKind::InvalidData).map_err(io::Error::from)?.between(cipher);
    let text = [&[cipher as u8], &introduction.to_bytes()[..]].concat();
    let transcript = Transcript { introduction: &text, ..greeting };
    let length = (text.len() as u16).to_le_bytes();
    timed.write_all(&[&length, &text[..], token.proof(Side::Connecting, transcript).as_bytes()].concat())?;
    let (outbound, inbound) = directions(token, Side::Connecting, transcript, cipher, introduction, &stream)?;
    let link = Link::new(stream, outbound, inbound);
    let answer = link.receive_through(Timed { stream: link.stream(), deadline }, TEXT_LIMIT);
    let answer = answer.map_err(|error| closed(error, "the connection was closed before it was accepted"))?;
    match answer.kind {
        ACCEPTED => Ok(link),
        REFUSED => Err(HandshakeError::Refused(String::from_utf8_lossy(&answer.payload).into_owned())),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    }
}

/// What it means that the other side has closed the connection, if that is the error.
fn closed(error: io::Error, why: &str) -> io::Error {
    match error.kind() {
        kind @ (io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => io::Error::new(kind, why),
        _ => error,
    }
}

/// Ends a handshake: accepts the rank, or sends the reason for a refusal.
pub(crate) fn answer(link: &Link, refusal: Option<&str>) -> io::Result<()> {
    match refusal {
        None => link.send(ACCEPTED, &[]),
        Some(why) => link.send(REFUSED, &why.as_bytes()[..why.floor_char_boundary(TEXT_LIMIT)]),
    }
}

/// The first bytes of each side: magic, version and random number.
pub(super) fn hello(number: &[u8; TOKEN_BYTES]) -> Vec<u8> {
    [&MAGIC[..], &[PROTOCOL as u8], number].concat()
}

/// The magic and the version of the other side. Its random number follows.
fn read_hello(mut stream: impl Read) -> io::Result<([u8; MAGIC.len()], u8)> {
    let magic = read_array(&mut stream)?;
    let [version] = read_array(&mut stream)?;
    Ok((magic, version))
}

/// Both directions, from the point of view of `side`.
fn directions(
    token: &Token,
    side: Side,
    transcript: Transcript,
    cipher: Cipher,
    introduction: &Introduction,
    stream: &TcpStream,
) -> io::Result<(Outbound, Inbound)> {
    let Introduction { purpose, rank, target, .. } = introduction;
    let (other, from, to) = match side {
        Side::Connecting => (Side::Accepting, target, rank),
        Side::Accepting => (Side::Connecting, rank, target),
    };
    let peer = stream.peer_addr()?;
    let name = match purpose {
        Purpose::Agent => format!("link from the agent at {peer}"),
        Purpose::Control | Purpose::Store | Purpose::Data => format!("link from rank {from} at {peer} to rank {to}"),
    };
    let outbound = Outbound::new(cipher, token.secret(side, transcript));
    Ok((outbound, Inbound::new(cipher, token.secret(other, transcript), name)))
}

impl Introduction {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.purpose as u8];
        bytes.extend((self.rank as u32).to_le_bytes());
        bytes.extend((self.target as u32).to_le_bytes());
        bytes.extend((self.world_size as u32).to_le_bytes());
        bytes.extend(self.identity.job.to_le_bytes());
        bytes.extend(self.identity.attempt.to_le_bytes());
        bytes.extend(self.identity.epoch.to_le_bytes());
        bytes.extend(&self.host.as_bytes()[..self.host.floor_char_boundary(255)]);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [purpose] = take(&mut rest)?;
        Some(Introduction {
            purpose: [Purpose::Control, Purpose::Store, Purpose::Data, Purpose::Agent]
                .into_iter()
                .find(|&known| known as u8 == purpose)?,
            rank: take_u32(&mut rest)? as usize,
            target: take_u32(&mut rest)? as usize,
            world_size: take_u32(&mut rest)? as usize,
            identity: Identity {
                job: take_u64(&mut rest)?,
                attempt: take_u32(&mut rest)?,
                epoch: take_u32(&mut rest)?,
            },
            host: std::str::from_utf8(rest).ok().filter(|host| host.len() <= 255)?.to_owned(),
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
    use super::super::link::Frame;
    use super::super::record::tests::CIPHERS;
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(60);

    fn introduction() -> Introduction {
        let identity = Identity { job: 7, attempt: 8, epoch: 9 };
        let host = "h".into();
        Introduction { purpose: Purpose::Store, rank: 3, target: 0, world_size: 4, identity, host }
    }

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_right_token_opens() {
        for refusal in [None, Some("no seat")] {
            let (client, server) = connection();
            let token = Token::generate().unwrap();
            let accepting = thread::spawn({
                let token = token.clone();
                move || {
                    let (link, who) = receive(server, &token, LIMIT).unwrap();
                    answer(&link, refusal).unwrap();
                    (link, who)
                }
            });
            let introduced = introduce(client, &token, &introduction(), LIMIT);
            let (there, who) = accepting.join().unwrap();
            assert_eq!(who, introduction());
            match (refusal, introduced) {
                (None, Ok(here)) => {
                    here.send(5, b"to there").unwrap();
                    there.send(6, b"to here").unwrap();
                    assert_eq!(there.receive(9).unwrap(), Frame { kind: 5, payload: b"to there".to_vec() });
                    assert_eq!(here.receive(9).unwrap(), Frame { kind: 6, payload: b"to here".to_vec() });
                }
                (Some(why), Err(HandshakeError::Refused(heard))) => assert_eq!(heard, why),
                (_, introduced) => panic!("{refusal:?}: {:?}", introduced.err()),
            }
        }
    }

    #[test]
    fn both_sides_seal_with_the_cipher_that_suits_both() {
        for (here, there) in CIPHERS.into_iter().flat_map(|here| CIPHERS.map(|there| (here, there))) {
            let (client, server) = connection();
            let token = Token::from_bytes([1; 32]);
            let accepting = thread::spawn({
                let token = token.clone();
                move || {
                    let (link, _) = receive_with(there, server, &token, LIMIT).unwrap();
                    answer(&link, None).unwrap();
                    link
                }
            });
            let introduced = introduce_with(here, client, &token, &introduction(), LIMIT).unwrap();
            for link in [introduced, accepting.join().unwrap()] {
                let (_, outbound, inbound) = link.into_parts().unwrap();
                assert_eq!([outbound.cipher(), inbound.cipher()], [here.between(there); 2], "{here:?} {there:?}");
            }
        }
    }

    #[test]
    fn a_wrong_token_is_noticed_by_the_connecting_side() {
        let (client, server) = connection();
        let accepting = thread::spawn(move || receive(server, &Token::from_bytes([1; 32]), LIMIT).err());
        let refusal = introduce(client, &Token::from_bytes([2; 32]), &introduction(), LIMIT).err();
        assert!(matches!(refusal, Some(HandshakeError::Token)), "{refusal:?}");
        // The connecting side has closed before it introduced itself.
        assert!(matches!(accepting.join().unwrap(), Some(HandshakeError::Io(_))));
    }

    /// Checks the number of bytes that the accepting side sends to a peer that sends `bytes` and then reads.
    fn check_stranger(bytes: &[u8], expected: usize) {
        let (mut client, server) = connection();
        let accepting = thread::spawn(move || receive(server, &Token::from_bytes([1; 32]), LIMIT).is_err());
        client.write_all(bytes).unwrap();
        let mut heard = vec![];
        // A reset is equivalent to an end of file, and may come before either.
        let _ = client.shutdown(std::net::Shutdown::Write);
        let _ = client.read_to_end(&mut heard);
        assert_eq!(heard.len(), expected);
        assert!(accepting.join().unwrap());
    }

    const HELLO: usize = MAGIC.len() + 1 + TOKEN_BYTES;

    #[test]
    fn strangers_are_not_admitted() {
        check_stranger(b"", 0);
        check_stranger(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n", 0);
        // A peer that speaks the protocol gets a random number and a proof, and without the token nothing more.
        let hello = hello(&[0; TOKEN_BYTES]);
        let text = introduction().to_bytes();
        let introduced = |text: &[u8], proof: [u8; TOKEN_BYTES]| {
            [&hello[..], &(text.len() as u16).to_le_bytes(), text, &proof].concat()
        };
        check_stranger(&introduced(&text, [0; TOKEN_BYTES]), HELLO + 1 + TOKEN_BYTES);
        check_stranger(&introduced(&vec![0; TEXT_LIMIT + 1], [0; TOKEN_BYTES]), HELLO + 1 + TOKEN_BYTES);
        // Another version gets no proof.
        for version in [PROTOCOL - 1, PROTOCOL + 1] {
            let mut other = hello.clone();
            other[MAGIC.len()] = version as u8;
            check_stranger(&other, HELLO);
        }
    }

    /// What the connecting side reports and has sent when a program on the port answers `bytes` and then reads.
    fn check_listener(bytes: &[u8], sent: usize, expected: &str) {
        let (client, mut server) = connection();
        let connecting = thread::spawn(move || introduce(client, &Token::from_bytes([1; 32]), &introduction(), LIMIT));
        let mut heard = vec![0; HELLO];
        server.read_exact(&mut heard).unwrap();
        server.write_all(bytes).unwrap();
        let _ = server.shutdown(std::net::Shutdown::Write);
        let _ = server.read_to_end(&mut heard);
        assert_eq!(heard.len(), sent);
        let error = connecting.join().unwrap().err().unwrap().to_string();
        assert_eq!(error, expected);
    }

    #[test]
    fn a_program_on_a_ranks_port_gets_only_a_random_number() {
        check_listener(
            b"",
            HELLO,
            "the connection was closed without an answer, as another program or an older enmasse does",
        );
        check_listener(b"HTTP/1.1 400 Bad Request\r\n\r\n", HELLO, "another program answers there");
        check_listener(&[hello(&[0; 32]), vec![0; 1 + TOKEN_BYTES]].concat(), HELLO, "the tokens differ");
        for version in [PROTOCOL - 1, PROTOCOL + 1] {
            let other = [&MAGIC[..], &[version as u8]].concat();
            let expected = format!(
                "version {version} of the protocol is spoken there, and version {PROTOCOL} here: start all ranks with the same program"
            );
            check_listener(&other, HELLO, &expected);
        }
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
