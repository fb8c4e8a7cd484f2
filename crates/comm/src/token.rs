//! The secret that proves that a rank belongs to the group.
//!
//! A token is never sent: both sides of a connection prove that they hold it, by a keyed hash over random numbers that
//! both chose. The accepting side proves itself first, to anyone who connects. With that proof a stranger can test
//! guesses without asking again, so a token must be too random to guess.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::OnceLock;

use thiserror::Error;

mod user;

pub use user::UserSecretError;

/// Bytes of a token, of a random number in a handshake, and of a proof.
pub const TOKEN_BYTES: usize = 32;
/// Shortest text accepted as a token.
const SHORTEST_TEXT: usize = 16;
/// Fewest different bytes in a text accepted as a token.
const FEWEST_BYTES: usize = 6;

/// 32 secret bytes. Never printed.
#[derive(Clone)]
pub struct Token([u8; TOKEN_BYTES]);

/// Why a text is not accepted as a token. Follows the name of the variable that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WeakToken {
    /// It has fewer than 16 bytes.
    #[error("is shorter than 16 bytes: {MAKE}")]
    Short,
    /// It has fewer than 6 different bytes.
    #[error("has fewer than 6 different bytes: {MAKE}")]
    Plain,
}

const MAKE: &str = "make a secret with `openssl rand -hex 32`, and set the same on all nodes";

/// A side of a connection. It is part of proofs and keys, so that nothing can be sent back to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Connecting,
    Accepting,
}

/// What identifies one connection: its two random numbers, and the introduction once the connecting side has sent it.
#[derive(Clone, Copy)]
pub(crate) struct Transcript<'a> {
    pub connecting: &'a [u8; TOKEN_BYTES],
    pub accepting: &'a [u8; TOKEN_BYTES],
    pub introduction: &'a [u8],
}

impl Token {
    /// A new token, from the kernel's random numbers.
    pub fn generate() -> io::Result<Self> {
        random().map(Token)
    }

    /// The token with the given bytes.
    pub fn from_bytes(bytes: [u8; TOKEN_BYTES]) -> Self {
        Token(bytes)
    }

    /// The bytes, for a launcher that passes the token to a rank.
    pub fn as_bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }

    /// A token derived from a text, such as the variable `ENMASSE_TOKEN`. Refuses a text that is shorter than 16 bytes
    /// or has fewer than 6 different ones. What it accepts may still be easy to guess.
    pub fn from_text(text: &str) -> Result<Self, WeakToken> {
        let text = text.trim().as_bytes();
        if text.len() < SHORTEST_TEXT {
            return Err(WeakToken::Short);
        }
        if (0..=u8::MAX).filter(|byte| text.contains(byte)).count() < FEWEST_BYTES {
            return Err(WeakToken::Plain);
        }
        Ok(Token(blake3::derive_key("enmasse token of a text", text)))
    }

    /// Another token, which only a holder of this one can compute; different for each context.
    pub fn derive(&self, context: &[u8]) -> Self {
        Token(*blake3::keyed_hash(&self.0, context).as_bytes())
    }

    /// Reads an inherited descriptor: a file from its beginning, any number of times, or a pipe once.
    pub(crate) fn from_descriptor(descriptor: BorrowedFd) -> io::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        let mut done = 0;
        while done < bytes.len() {
            let read = match rustix::io::pread(descriptor, &mut bytes[done..], done as u64) {
                Err(rustix::io::Errno::SPIPE) => rustix::io::read(descriptor, &mut bytes[done..]),
                other => other,
            };
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Token(bytes))
    }

    /// Writes a new file that only its owner can read, whole or not at all. Replaces an old one.
    pub(crate) fn write_file(&self, path: &Path) -> io::Result<()> {
        let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
        let write = || {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.write_all(&self.0)?;
            fs::rename(&unfinished, path)
        };
        write().inspect_err(|_| {
            // The file may not exist; the first error is the one to report.
            let _ = fs::remove_file(&unfinished);
        })
    }

    /// Reads a file that [`Token::write_file`] wrote. A missing file is an error like any other.
    pub(crate) fn read_file(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.permissions().mode() & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it must belong to this user and be readable by nobody else (mode 0600)",
            ));
        }
        let mut bytes = [0; TOKEN_BYTES];
        file.read_exact(&mut bytes)?;
        Ok(Token(bytes))
    }

    /// The proof of `side`. Compare proofs with `==`, which takes the same time wherever they differ.
    pub(crate) fn proof(&self, side: Side, transcript: Transcript) -> blake3::Hash {
        self.derive(match side {
            Side::Connecting => b"proof of the connecting side",
            Side::Accepting => b"proof of the accepting side",
        })
        .hash(transcript)
    }

    /// The key of the frames that `side` sends.
    pub(crate) fn key(&self, side: Side, transcript: Transcript) -> [u8; TOKEN_BYTES] {
        let key = self.derive(match side {
            Side::Connecting => b"frames of the connecting side",
            Side::Accepting => b"frames of the accepting side",
        });
        *key.hash(transcript).as_bytes()
    }

    fn hash(&self, transcript: Transcript) -> blake3::Hash {
        let Transcript { connecting, accepting, introduction } = transcript;
        // Only the last part varies in length.
        blake3::Hasher::new_keyed(&self.0).update(connecting).update(accepting).update(introduction).finalize()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// Unpredictable bytes.
pub(crate) fn random() -> io::Result<[u8; TOKEN_BYTES]> {
    // It stays open, so that a process whose descriptors run out can still answer those that have connected.
    static SOURCE: OnceLock<File> = OnceLock::new();
    let mut source = match SOURCE.get() {
        Some(source) => source,
        None => {
            let source = File::open("/dev/urandom")?;
            SOURCE.get_or_init(|| source)
        }
    };
    let mut bytes = [0; TOKEN_BYTES];
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn files_are_private_and_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert_eq!(Token::read_file(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        for _ in 0..2 {
            let token = Token::generate().unwrap();
            token.write_file(&path).unwrap();
            assert_eq!(Token::read_file(&path).unwrap().0, token.0);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(Token::read_file(&path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn descriptors_are_files_or_pipes() {
        let token = Token::generate().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&token.0).unwrap();
        for _ in 0..2 {
            assert_eq!(Token::from_descriptor(file.as_fd()).unwrap().0, token.0);
        }
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&write, &token.0[..20]).unwrap();
        rustix::io::write(&write, &token.0[20..]).unwrap();
        assert_eq!(Token::from_descriptor(read.as_fd()).unwrap().0, token.0);
        drop(write);
        assert_eq!(Token::from_descriptor(read.as_fd()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn proofs_and_keys_depend_on_token_side_numbers_and_introduction() {
        let (token, other) = (Token::from_bytes([1; 32]), Token::from_bytes([2; 32]));
        let (a, b) = ([3; 32], [4; 32]);
        let all = |token: &Token, connecting, accepting, introduction| {
            let transcript = Transcript { connecting, accepting, introduction };
            let sides = [Side::Connecting, Side::Accepting];
            let proofs = sides.map(|side| *token.proof(side, transcript).as_bytes());
            [proofs, sides.map(|side| token.key(side, transcript))].concat()
        };
        assert_eq!(all(&token, &a, &b, b"who"), all(&token.clone(), &a, &b, b"who"));
        let different = [
            all(&token, &a, &b, b"who"),
            all(&token, &b, &a, b"who"),
            all(&token, &a, &b, b"whose"),
            all(&token, &a, &b, b""),
            all(&other, &a, &b, b"who"),
        ]
        .concat();
        let unique: std::collections::HashSet<_> = different.iter().collect();
        assert_eq!(unique.len(), different.len());
        assert_eq!(format!("{token:?}"), "Token(secret)");
        let derived = |token: &Token, context| *token.derive(context).as_bytes();
        assert_eq!(derived(&token, b"a"), derived(&token, b"a"));
        assert_ne!(derived(&token, b"a"), derived(&token, b"b"));
        assert_ne!(derived(&token, b"a"), derived(&other, b"a"));
    }

    #[test]
    fn texts() {
        let check = |text: &str, expected: Option<WeakToken>| {
            assert_eq!(Token::from_text(text).err(), expected, "{text:?}");
        };
        check("too short", Some(WeakToken::Short));
        check("fifteen bytes !", Some(WeakToken::Short));
        check("      spaces do not count     \n", None);
        check("      spaces       \n", Some(WeakToken::Short));
        check("aaaaaaaaaaaaaaaaaaaaaaaa", Some(WeakToken::Plain));
        check("1234512345123451234512345", Some(WeakToken::Plain));
        check("1234561234561234", None);
        let token = Token::from_text("a text that is long enough\n").unwrap();
        assert_eq!(token.0, Token::from_text("a text that is long enough").unwrap().0);
    }
}
