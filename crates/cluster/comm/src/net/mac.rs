//! The MAC of each frame on a connection: bytes that were changed on the way are noticed before anything uses them.
//!
//! Each direction of each connection has its own key, which only holders of the token can compute. A MAC covers the
//! frame's bytes, its length, and its number in this direction. So a frame that is repeated, left out, moved, or taken
//! from another connection is as wrong as one with a flipped bit.

use std::io;

use thiserror::Error;

use crate::cause::{Cause, CauseKind};

/// Bytes of a frame's MAC.
pub(crate) const MAC_BYTES: usize = 32;

/// The frames of one direction: their key, and their number so far.
struct Mac {
    /// Takes two kilobytes.
    hasher: Box<blake3::Hasher>,
    frames: u64,
}

impl Mac {
    fn new(key: &[u8; blake3::KEY_LEN]) -> Self {
        Mac { hasher: Box::new(blake3::Hasher::new_keyed(key)), frames: 0 }
    }

    fn of_next(&mut self, bytes: &[u8]) -> blake3::Hash {
        let (number, length) = (self.frames.to_le_bytes(), (bytes.len() as u64).to_le_bytes());
        self.frames += 1;
        // The bytes come first: the hash is fastest on whole blocks. The end has a fixed length, so no two frames give
        // the same input.
        self.hasher.reset().update(bytes).update(&number).update(&length).finalize()
    }
}

/// Makes the MACs of the frames that this side sends.
pub(crate) struct Outbound {
    mac: Mac,
}

impl Outbound {
    pub(crate) fn new(key: &[u8; blake3::KEY_LEN]) -> Self {
        Outbound { mac: Mac::new(key) }
    }

    /// The MAC of the next frame.
    pub(crate) fn seal(&mut self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        *self.mac.of_next(bytes).as_bytes()
    }
}

/// Checks the MACs of the frames that arrive.
pub(crate) struct Inbound {
    mac: Mac,
    /// The direction's name in errors: "link from rank 1 at 10.0.0.2:4321 to rank 0".
    name: String,
}

impl Inbound {
    pub(crate) fn new(key: &[u8; blake3::KEY_LEN], name: String) -> Self {
        Inbound { mac: Mac::new(key), name }
    }

    /// An error that holds [`Altered`] unless this is the MAC of the next frame.
    pub(crate) fn check(&mut self, bytes: &[u8], mac: &[u8; MAC_BYTES]) -> io::Result<()> {
        // This comparison takes the same time wherever the two differ.
        if self.mac.of_next(bytes) == *mac {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, Altered { link: self.name.clone() }))
    }
}

/// A frame is not the one that the other side sent.
#[derive(Debug, Error)]
#[error("{link}: a frame's MAC is wrong: the bytes were changed on the way")]
pub(crate) struct Altered {
    link: String,
}

impl Altered {
    /// Whether an error of a connection is this one.
    pub(crate) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Altered>())
    }

    /// The cause if an error of a connection is this one. No rank is to blame for it.
    pub(crate) fn cause(error: &io::Error) -> Option<Cause> {
        Self::is(error).then(|| Cause::new(CauseKind::Error, error.to_string()).on_host(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_holds_for_its_bytes_number_and_key_alone() {
        let sealed = || {
            let mut outbound = Outbound::new(&[1; 32]);
            [&b"first"[..], b"second", b""].map(|bytes| (bytes, outbound.seal(bytes)))
        };
        // The frame with this number, once those before it have been checked.
        let check = |key: u8, number: usize, bytes: &[u8], mac: &[u8; MAC_BYTES], expected: bool| {
            let mut inbound = Inbound::new(&[key; 32], "link".into());
            let before = &sealed()[..number];
            before.iter().for_each(|(bytes, mac)| drop(inbound.check(bytes, mac)));
            let error = inbound.check(bytes, mac).err();
            assert_eq!(error.is_none(), expected, "key {key}, number {number}, {bytes:?}");
            assert!(error.is_none_or(|error| Altered::is(&error)));
        };
        let [first, second, empty] = sealed();
        check(1, 0, first.0, &first.1, true);
        check(1, 1, second.0, &second.1, true);
        check(1, 2, empty.0, &empty.1, true);
        check(2, 0, first.0, &first.1, false);
        check(1, 1, first.0, &first.1, false);
        check(1, 0, second.0, &second.1, false);
        check(1, 0, b"firsT", &first.1, false);
        check(1, 0, b"first\0", &first.1, false);
        check(1, 0, b"firs", &first.1, false);
        // The number and length of the next frame, moved into the bytes.
        check(1, 0, b"first\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0", &first.1, false);
        for bit in 0..8 * MAC_BYTES {
            let mut mac = first.1;
            mac[bit / 8] ^= 1 << (bit % 8);
            check(1, 0, first.0, &mac, false);
        }
    }
}
