//! The accepting side of a handshake, as a state that takes bytes when they arrive. So one thread serves any number of
//! connections, and one that has not proved the token costs its socket and about a kilobyte.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{HandshakeError, Introduction, MAGIC, TEXT_LIMIT, directions, hello};
use crate::net::configure;
use crate::net::link::Link;
use crate::net::record::Cipher;
use crate::operation::PROTOCOL;
use crate::token::{Side, TOKEN_BYTES, Token, Transcript, random};

/// Bytes of the connecting side's hello: magic, version and random number.
const HELLO: usize = MAGIC.len() + 1 + TOKEN_BYTES;
/// Where the chosen cipher and the introduction begin, after their length.
const TEXT: usize = HELLO + 2;

/// A connection that has not proved the token yet.
pub(crate) struct Reception {
    stream: TcpStream,
    /// What this side offers.
    cipher: Cipher,
    received: Vec<u8>,
    /// This side's random number, once the hello is answered.
    own: Option<[u8; TOKEN_BYTES]>,
}

impl Reception {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Reception { stream, cipher: Cipher::of_processor(), received: vec![], own: None })
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether the other side has said hello.
    pub(crate) fn is_greeted(&self) -> bool {
        self.own.is_some()
    }

    /// Takes the bytes that have arrived, and answers the hello. True once the introduction and its proof are complete.
    pub(crate) fn advance(&mut self, token: &Token) -> Result<bool, HandshakeError> {
        loop {
            let missing = self.wanted()?.saturating_sub(self.received.len()) as u64;
            if missing == 0 {
                return Ok(true);
            }
            match (&self.stream).take(missing).read_to_end(&mut self.received) {
                // Everything that was missing has arrived.
                Ok(read) if read as u64 == missing => {}
                Ok(_) => {
                    self.check_magic()?;
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.check_magic()?;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
            self.check_magic()?;
            if self.own.is_none() {
                self.greet(token)?;
            }
        }
    }

    /// The connection of a rank that holds the token, and its introduction. The caller then sends [`super::answer`].
    pub(crate) fn end(self, token: &Token, limit: Duration) -> Result<(Link, Introduction), HandshakeError> {
        let malformed = || HandshakeError::from(io::Error::from(io::ErrorKind::InvalidData));
        configure(&self.stream, limit)?;
        let (connecting, own) = self.connecting().zip(self.own.as_ref()).ok_or_else(malformed)?;
        let (text, proof) = self.received.get(TEXT..).and_then(<[u8]>::split_last_chunk).ok_or_else(malformed)?;
        let transcript = Transcript { connecting, accepting: own, offer: self.cipher as u8, introduction: text };
        if token.proof(Side::Connecting, transcript) != *proof {
            return Err(HandshakeError::Token);
        }
        let (&cipher, text) = text.split_first().ok_or_else(malformed)?;
        let (cipher, introduction) =
            Cipher::from_byte(cipher).zip(Introduction::from_bytes(text)).ok_or_else(malformed)?;
        let (outbound, inbound) = directions(token, Side::Accepting, transcript, cipher, &introduction, &self.stream)?;
        Ok((Link::new(self.stream, outbound, inbound), introduction))
    }

    /// Bytes up to the end of the current stage: the hello, the introduction's length, or its proof.
    fn wanted(&self) -> io::Result<usize> {
        let length = self.received.get(HELLO..).and_then(<[u8]>::first_chunk);
        match length.map(|length| usize::from(u16::from_le_bytes(*length))) {
            None if self.received.len() < HELLO => Ok(HELLO),
            None => Ok(TEXT),
            Some(length) if length <= TEXT_LIMIT => Ok(TEXT + length + TOKEN_BYTES),
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The random number of the connecting side.
    fn connecting(&self) -> Option<&[u8; TOKEN_BYTES]> {
        self.received.get(MAGIC.len() + 1..).and_then(<[u8]>::first_chunk)
    }

    /// Refuses another program at its first wrong byte.
    fn check_magic(&self) -> io::Result<()> {
        let begun = &self.received[..self.received.len().min(MAGIC.len())];
        if MAGIC.starts_with(begun) { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Answers a complete hello. The answer fits into the empty send buffer, so the write does not wait.
    fn greet(&mut self, token: &Token) -> Result<(), HandshakeError> {
        let own = random()?;
        let (Some(&version), Some(connecting)) = (self.received.get(MAGIC.len()), self.connecting()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        };
        if u32::from(version) != PROTOCOL {
            // Every version begins with these bytes, which tell the other side why it is not admitted.
            (&self.stream).write_all(&hello(&own))?;
            return Err(HandshakeError::Version(version));
        }
        let offer = self.cipher as u8;
        let greeting = Transcript { connecting, accepting: &own, offer, introduction: &[] };
        let proof = token.proof(Side::Accepting, greeting);
        (&self.stream).write_all(&[&hello(&own)[..], &[offer], proof.as_bytes()].concat())?;
        self.own = Some(own);
        Ok(())
    }
}

/// The whole accepting side, for tests that have a thread for it. Waits for at most `limit`.
#[cfg(test)]
pub(crate) fn receive(
    stream: TcpStream,
    token: &Token,
    limit: Duration,
) -> Result<(Link, Introduction), HandshakeError> {
    receive_with(Cipher::of_processor(), stream, token, limit)
}

/// The same on a processor with this cipher.
#[cfg(test)]
pub(crate) fn receive_with(
    cipher: Cipher,
    stream: TcpStream,
    token: &Token,
    limit: Duration,
) -> Result<(Link, Introduction), HandshakeError> {
    let mut reception = Reception { cipher, ..Reception::new(stream)? };
    while !reception.advance(token)? {
        if !crate::net::readable(reception.stream(), limit)? {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
    }
    reception.end(token, limit)
}
