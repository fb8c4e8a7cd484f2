//! The record layer of a connection: bytes are encrypted and authenticated in records, and what was read or changed on the
//! way is of no use to anyone.
//!
//! Each direction of each connection has its own secret, which only holders of the token can compute. An AEAD ([`Cipher`])
//! seals each record under a nonce that is the record's number in this direction. So a record that is repeated, left out,
//! moved, cut, or taken from another connection is as wrong as one with a flipped bit. As in TLS 1.3, the number is
//! combined with an initial value that is as secret as the key.
//!
//! After [`RECORDS_OF_KEY`] records a direction goes on with the next key, so numbers do not end.

use std::io;

use ring::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use thiserror::Error;

use crate::cause::{Cause, CauseKind};
use crate::token::TOKEN_BYTES;

/// Bytes of a record's authentication tag.
pub(crate) const TAG_BYTES: usize = 16;
/// Records that a key seals. With 252 KiB in each, an attacker's advantage against AES-GCM stays below 2^-60.
const RECORDS_OF_KEY: u64 = 1 << 20;

/// What seals the records of a connection. Both sides can do either; the choice is for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cipher {
    Aes128Gcm = 1,
    ChaCha20Poly1305 = 2,
}

impl Cipher {
    /// What this processor does fastest: AES if it has instructions for it.
    pub(crate) fn of_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        let has_aes = std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes =
            std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Cipher::Aes128Gcm } else { Cipher::ChaCha20Poly1305 }
    }

    /// The cipher of a connection between two sides that prefer these.
    pub(crate) fn between(self, other: Self) -> Self {
        if self == other { self } else { Cipher::ChaCha20Poly1305 }
    }

    /// The cipher of this number in a handshake.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305].into_iter().find(|&known| known as u8 == byte)
    }
}

/// The secret of one direction of one connection.
pub(crate) type Secret = [u8; TOKEN_BYTES];

/// The records of one direction: their key, and their number so far.
struct Records {
    cipher: Cipher,
    secret: Secret,
    /// Takes half a kilobyte.
    key: Box<LessSafeKey>,
    /// What the numbers are combined with.
    iv: [u8; NONCE_LEN],
    /// Records under all keys.
    number: u64,
}

impl Records {
    fn new(cipher: Cipher, secret: Secret) -> Self {
        let (key, iv) = key_of(cipher, &secret);
        Records { cipher, secret, key, iv, number: 0 }
    }

    /// The nonce of the next record. No two records of a key have the same.
    fn next(&mut self) -> Nonce {
        if self.number > 0 && self.number.is_multiple_of(RECORDS_OF_KEY) {
            expand(&self.secret.clone(), "next secret", &mut self.secret);
            (self.key, self.iv) = key_of(self.cipher, &self.secret);
        }
        let mut nonce = self.iv;
        let (_, last) = nonce.split_at_mut(NONCE_LEN - size_of::<u64>());
        last.iter_mut().zip(self.number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The key of a secret, and the initial value of its nonces.
fn key_of(cipher: Cipher, secret: &Secret) -> (Box<LessSafeKey>, [u8; NONCE_LEN]) {
    let (algorithm, name) = match cipher {
        Cipher::Aes128Gcm => (&AES_128_GCM, "AES-128-GCM"),
        Cipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, "ChaCha20-Poly1305"),
    };
    let (mut key, mut iv) = ([0; TOKEN_BYTES], [0; NONCE_LEN]);
    let key = &mut key[..algorithm.key_len()];
    expand(secret, &format!("key of {name}"), key);
    expand(secret, &format!("iv of {name}"), &mut iv);
    let key = UnboundKey::new(algorithm, key).expect("the key has the algorithm's length");
    (Box::new(LessSafeKey::new(key)), iv)
}

/// Bytes that only a holder of the secret can compute, different for each label.
fn expand(secret: &Secret, label: &str, bytes: &mut [u8]) {
    blake3::Hasher::new_keyed(secret).update(label.as_bytes()).finalize_xof().fill(bytes);
}

/// Seals the records that this side sends.
pub(crate) struct Outbound {
    records: Records,
}

impl Outbound {
    pub(crate) fn new(cipher: Cipher, secret: Secret) -> Self {
        Outbound { records: Records::new(cipher, secret) }
    }

    #[cfg(test)]
    pub(crate) fn cipher(&self) -> Cipher {
        self.records.cipher
    }

    /// Encrypts the next record in place, and returns its tag.
    pub(crate) fn seal(&mut self, bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = self.records.next();
        let tag = self.records.key.seal_in_place_separate_tag(nonce, Aad::empty(), bytes);
        let tag = tag.expect("a record is shorter than the ciphers' limit of 64 GB");
        let mut copy = [0; TAG_BYTES];
        copy.copy_from_slice(tag.as_ref());
        copy
    }
}

/// Opens the records that arrive.
pub(crate) struct Inbound {
    records: Records,
    /// The direction's name in errors: "link from rank 1 at 10.0.0.2:4321 to rank 0".
    name: String,
}

impl Inbound {
    pub(crate) fn new(cipher: Cipher, secret: Secret, name: String) -> Self {
        Inbound { records: Records::new(cipher, secret), name }
    }

    #[cfg(test)]
    pub(crate) fn cipher(&self) -> Cipher {
        self.records.cipher
    }

    /// Decrypts in place. An error that holds [`Altered`] unless this is the next record as the other side sealed it; the
    /// bytes are then of no use.
    pub(crate) fn open(&mut self, bytes: &mut [u8], tag: &[u8; TAG_BYTES]) -> io::Result<()> {
        let nonce = self.records.next();
        match self.records.key.open_in_place_separate_tag(nonce, Aad::empty(), (*tag).into(), bytes, 0..) {
            Ok(_) => Ok(()),
            Err(ring::error::Unspecified) => {
                let altered = Altered { link: self.name.clone(), record: self.records.number };
                Err(io::Error::new(io::ErrorKind::InvalidData, altered))
            }
        }
    }
}

/// A record is not the one that the other side sent.
#[derive(Debug, Error)]
#[error("{link}: the tag of record {record} is wrong: the bytes were changed on the way")]
pub(crate) struct Altered {
    link: String,
    /// From 1.
    record: u64,
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
pub(crate) mod tests {
    use super::*;

    pub(crate) const CIPHERS: [Cipher; 2] = [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];

    /// A record and its tag.
    type Sealed = (Vec<u8>, [u8; TAG_BYTES]);

    fn seal(outbound: &mut Outbound, bytes: &[u8]) -> Sealed {
        let mut bytes = bytes.to_vec();
        let tag = outbound.seal(&mut bytes);
        (bytes, tag)
    }

    fn open(inbound: &mut Inbound, (bytes, tag): &Sealed) -> io::Result<Vec<u8>> {
        let mut bytes = bytes.clone();
        inbound.open(&mut bytes, tag).map(|()| bytes)
    }

    #[test]
    fn a_record_holds_for_its_bytes_number_secret_and_cipher_alone() {
        for cipher in CIPHERS {
            let plain = [&b"first"[..], b"second", b""];
            let mut outbound = Outbound::new(cipher, [1; 32]);
            let sealed = plain.map(|bytes| seal(&mut outbound, bytes));
            // The record with this number, once those before it have been opened.
            let check = |(cipher, secret): (Cipher, u8), number: usize, record: &Sealed, expected: Option<&[u8]>| {
                let mut inbound = Inbound::new(cipher, [secret; 32], "link".into());
                for (record, plain) in sealed[..number].iter().zip(plain) {
                    assert_eq!(open(&mut inbound, record).ok().as_deref(), (secret == 1).then_some(plain));
                }
                match open(&mut inbound, record) {
                    Ok(bytes) => assert_eq!(Some(&bytes[..]), expected, "{cipher:?}, number {number}"),
                    Err(error) => {
                        assert!(expected.is_none() && Altered::is(&error), "{cipher:?}, number {number}: {error}");
                        let number = number + 1;
                        let named =
                            format!("link: the tag of record {number} is wrong: the bytes were changed on the way");
                        assert_eq!(error.to_string(), named);
                    }
                }
            };
            let own = (cipher, 1);
            for (number, plain) in plain.into_iter().enumerate() {
                check(own, number, &sealed[number], Some(plain));
                check((cipher, 2), number, &sealed[number], None);
                // Repeated, left out, moved.
                (0..3).filter(|&other| other != number).for_each(|other| check(own, number, &sealed[other], None));
                for bit in 0..8 * (plain.len() + TAG_BYTES) {
                    let (mut bytes, mut tag) = sealed[number].clone();
                    *bytes.iter_mut().chain(&mut tag).nth(bit / 8).unwrap() ^= 1 << (bit % 8);
                    check(own, number, &(bytes, tag), None);
                }
            }
            let other = CIPHERS[usize::from(cipher == CIPHERS[0])];
            check((other, 1), 0, &sealed[0], None);
            let (bytes, tag) = &sealed[0];
            check(own, 0, &(bytes[..4].to_vec(), *tag), None);
            check(own, 0, &([bytes, &[0][..]].concat(), *tag), None);
        }
    }

    #[test]
    fn no_key_seals_two_records_with_one_nonce() {
        for cipher in CIPHERS {
            let mut outbound = Outbound::new(cipher, [1; 32]);
            let mut inbound = Inbound::new(cipher, [1; 32], "link".into());
            let mut seen = std::collections::HashSet::new();
            // Both sides go on with the next key at the same record, also for the second time.
            for start in [0, RECORDS_OF_KEY - 2, 2 * RECORDS_OF_KEY - 2] {
                for records in [&mut outbound.records, &mut inbound.records] {
                    records.number = start;
                }
                for _ in 0..5 {
                    let record = seal(&mut outbound, &[0; 64]);
                    assert_eq!(open(&mut inbound, &record).unwrap(), [0; 64]);
                    // The same plain bytes: a key and nonce that came again would give the same record.
                    assert!(seen.insert(record.0), "{cipher:?}");
                }
            }
            let mut secret = [1; 32];
            (0..2).for_each(|_| expand(&secret.clone(), "next secret", &mut secret));
            assert_eq!([outbound.records.secret, inbound.records.secret], [secret; 2]);
        }
    }

    /// The first record of a secret, as Python's packages blake3 and cryptography compute it.
    #[test]
    fn keys_and_nonces_stay_as_they_are() {
        let sealed = CIPHERS.map(|cipher| {
            let (bytes, tag) = seal(&mut Outbound::new(cipher, [7; 32]), b"record");
            [&bytes[..], &tag].concat().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        });
        assert_eq!(
            sealed,
            ["1a73a33d6ee5a16f2b8b19a08dcd7f1889ad4227e716", "7546bf50ad00c463ede3eec29524dc2e4effa68ddc5d"]
        );
    }

    #[test]
    fn the_faster_cipher_needs_both_sides() {
        let [aes, chacha] = CIPHERS;
        assert_eq!([aes.between(aes), aes.between(chacha), chacha.between(aes)], [aes, chacha, chacha]);
        assert_eq!(chacha.between(chacha), chacha);
        for byte in 0..=u8::MAX {
            assert_eq!(Cipher::from_byte(byte).map(|cipher| cipher as u8), [1, 2].contains(&byte).then_some(byte));
        }
    }
}
