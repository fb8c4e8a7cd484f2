//! An object, read as a file is: any bytes, from any thread.
//!
//! Its version is its ETag, or the time of its last change. Another version ends the run, and ranks
//! compare theirs (`Locality::fingerprint`).

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fault::Fault;

use crate::RemoteError;
use crate::cache::{Cache, PIECE, Pieces};
use crate::permits::{Permit, Permits};
use crate::retry::{Limits, retried};
use crate::source::{Source, Version};

/// Pieces that are asked for at a time, where several are wanted and missing.
pub(crate) const RUN: u64 = 8;

/// Limit of an object's bytes: far more than any storage takes. The length is what a server says, and memory is allocated by it.
const MAX: u64 = 1 << 50;

/// Attempts to find an object. A wrong address must not take minutes.
const LOOKS: u32 = 3;

/// Time between two looks at a piece that another process or thread is fetching.
const POLL: Duration = Duration::from_millis(2);

/// An object of one version.
#[derive(Debug)]
pub struct Object {
    address: String,
    source: Box<dyn Source>,
    version: Version,
    pieces: Pieces,
    timeout: Duration,
    permits: Permits,
    /// Why the server could not be asked for the version, which is that of the cache then.
    unseen: Option<String>,
}

impl Object {
    /// Finds the object. If its server does not answer, and the cache has some of the object, it is the version that was opened
    /// last. Its readers fetch ahead as far as there are `permits`.
    pub(crate) fn open(
        address: &str,
        source: Box<dyn Source>,
        cache: Arc<Cache>,
        timeout: Duration,
        permits: Permits,
    ) -> Result<Self, RemoteError> {
        let limits = Limits { attempts: LOOKS, timeout };
        let found = retried(limits, source.advice(), || source.read(0..1, None));
        let (version, unseen) = match found {
            Ok(part) => (part.version, None),
            Err(Fault::Passing(words)) => match cache.latest(address, source.server()) {
                Some(version) => (version, Some(format!("{}: {words}", source.server()))),
                None => return Err(failed(address, source.as_ref(), &words)),
            },
            Err(Fault::Lasting(words)) => return Err(failed(address, source.as_ref(), &words)),
        };
        if version.length > MAX {
            let words = format!("it says that the object has {} bytes, and the limit is {MAX}", version.length);
            return Err(failed(address, source.as_ref(), &words));
        }
        let pieces = Pieces::open(cache, address, source.server(), &version)?;
        Ok(Object { address: address.to_owned(), source, version, pieces, timeout, permits, unseen })
    }

    /// The address, as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Bytes of the object.
    pub fn length(&self) -> u64 {
        self.version.length
    }

    /// The version that this run sees.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Why the server could not be asked whether the object has changed since the cache got it.
    pub(crate) fn unseen(&self) -> Option<&str> {
        self.unseen.as_deref()
    }

    /// Fills `bytes` with those from `offset` on, which must lie in the object.
    ///
    /// # Errors
    /// The object has changed since it was opened, or its server refuses or does not answer. A part of `bytes` may be
    /// filled then.
    pub fn fill(&self, mut offset: u64, mut bytes: &mut [u8]) -> Result<(), RemoteError> {
        let last = (offset + bytes.len() as u64).saturating_sub(1) / PIECE;
        while !bytes.is_empty() {
            let piece = offset / PIECE;
            let at = (offset % PIECE) as usize;
            let mut done = (PIECE as usize - at).min(bytes.len());
            if !self.pieces.read(piece, at, &mut bytes[..done]) {
                let run = self.run(piece, last)?;
                let found = &run[at..];
                done = found.len().min(bytes.len());
                bytes[..done].copy_from_slice(&found[..done]);
            }
            (offset, bytes) = (offset + done as u64, &mut bytes[done..]);
        }
        Ok(())
    }

    /// The bytes of a piece. If it is not in the cache, perhaps also those of the next ones up to `last`, which are not there
    /// either. If another process or thread is fetching the piece, waits for that one.
    pub(crate) fn run(&self, piece: u64, last: u64) -> Result<Vec<u8>, RemoteError> {
        let began = Instant::now();
        loop {
            if let Some(found) = self.pieces.load(piece) {
                return Ok(found);
            }
            let claim = self.pieces.claim(piece);
            // A process that does not go on is waited for no longer than a server.
            if claim.is_some() || began.elapsed() >= self.timeout {
                // It may have come between the look and the claim.
                return self.pieces.load(piece).map_or_else(|| self.fetch(piece, last, u32::MAX), Ok);
            }
            std::thread::sleep(POLL);
        }
    }

    /// The bytes of these pieces, or of the first ones of them: those that are in the cache, or that the server gives when it is asked once. Waits
    /// for no other process or thread.
    pub(crate) fn run_ahead(&self, mut pieces: Range<u64>) -> Vec<u8> {
        let mut found = Vec::new();
        while !pieces.is_empty() {
            let run = self.pieces.load(pieces.start).or_else(|| {
                let _claim = self.pieces.claim(pieces.start)?;
                self.pieces.load(pieces.start).or_else(|| self.fetch(pieces.start, pieces.end - 1, 1).ok())
            });
            let Some(run) = run else { break };
            pieces.start += (run.len() as u64).div_ceil(PIECE);
            match found.is_empty() {
                true => found = run,
                false => found.extend(run),
            }
        }
        found
    }

    /// [`run`](Self::run) from the server, in so many attempts.
    fn fetch(&self, piece: u64, last: u64, attempts: u32) -> Result<Vec<u8>, RemoteError> {
        let last = last.min(piece + RUN - 1).min((self.length() - 1) / PIECE);
        // Who needs one of the next ones meanwhile waits for this thread. It leaves those that are being fetched to others.
        let mut claims = Vec::new();
        for next in piece + 1..=last {
            match self.pieces.claim(next).filter(|_| !self.pieces.has(next)) {
                Some(claim) => claims.push(claim),
                None => break,
            }
        }
        let end = piece + 1 + claims.len() as u64;
        let range = piece * PIECE..(end * PIECE).min(self.length());
        let limits = Limits { attempts, timeout: self.timeout };
        let found = retried(limits, self.source.advice(), || self.source.read(range.clone(), Some(&self.version)));
        let found = found.map_err(|fault| failed(&self.address, self.source.as_ref(), fault.words()))?.bytes;
        log::debug!("{}: bytes {} to {} came from {}", self.address, range.start, range.end, self.source.server());
        for (number, bytes) in (piece..).zip(found.chunks(PIECE as usize)) {
            self.pieces.store(number, bytes);
        }
        Ok(found)
    }

    /// The numbers of the pieces that hold these bytes.
    pub(crate) fn pieces_of(&self, bytes: Range<u64>) -> Range<u64> {
        bytes.start / PIECE..bytes.end.min(self.length()).div_ceil(PIECE)
    }

    /// Whether the cache has a piece.
    pub(crate) fn has(&self, piece: u64) -> bool {
        self.pieces.has(piece)
    }

    /// Bytes that may be fetched ahead of their use.
    pub(crate) fn room_ahead(&self) -> u64 {
        self.pieces.room_ahead()
    }

    /// Asks once for a piece, unless the cache has it. False if the cache does not have it then. If another process or thread is
    /// fetching the piece, leaves it to that one.
    pub(crate) fn fetch_ahead(&self, piece: u64) -> bool {
        let Some(_claim) = self.pieces.claim(piece) else { return true };
        if !self.pieces.has(piece) {
            let range = piece * PIECE..((piece + 1) * PIECE).min(self.length());
            let Ok(found) = self.source.read(range, Some(&self.version)) else { return false };
            self.pieces.store(piece, &found.bytes);
        }
        self.pieces.has(piece)
    }

    /// What [`keep`](Self::keep) has kept of this version of the object under this name, in this run or an earlier one.
    pub fn kept(&self, name: &str) -> Option<Vec<u8>> {
        self.pieces.load_named(name)
    }

    /// Keeps something that took time to find out about the object, as long as its pieces are kept. `name` is letters, digits
    /// and hyphens. A cache without room keeps nothing.
    pub fn keep(&self, name: &str, bytes: &[u8]) {
        self.pieces.store_named(name, bytes);
    }

    /// The right to fetch a run ahead, unless as many are fetched as may be.
    pub(crate) fn permit(&self) -> Option<Permit> {
        self.permits.take()
    }
}

/// The object could not be read.
fn failed(address: &str, source: &dyn Source, words: &str) -> RemoteError {
    RemoteError::address(address, format!("{}: {words}", source.server()))
}
