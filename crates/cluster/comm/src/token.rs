//! The secret that proves that a rank belongs to the group.
//!
//! A token is never sent: both sides of a connection prove that they hold it, by a keyed hash over random numbers that
//! both chose. The accepting side proves itself first, to anyone who connects. With that proof a stranger can test
//! guesses without asking again, so a token must be too random to guess.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::CWD;
use thiserror::Error;

use self::private::{read_text, read_token};
use crate::error::JoinError;

mod private;
mod user;

pub use user::UserSecretError;

/// Bytes of a token, of a random number in a handshake, and of a proof.
pub const TOKEN_BYTES: usize = 32;
/// Shortest text accepted as a token.
const MIN_TEXT: usize = 16;
/// Fewest different bytes in a text accepted as a token.
const MIN_BYTES: usize = 6;

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

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Side::Connecting { "connecting" } else { "accepting" })
    }
}

/// What identifies one connection: its two random numbers, the cipher that the accepting side offers, and the introduction once
/// the connecting side has sent it.
#[derive(Clone, Copy)]
pub(crate) struct Transcript<'a> {
    pub connecting: &'a [u8; TOKEN_BYTES],
    pub accepting: &'a [u8; TOKEN_BYTES],
    pub offer: u8,
    pub introduction: &'a [u8],
}

impl Token {
    /// A new token, from the kernel's random numbers.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
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
    ///
    /// # Errors
    /// The text is too short, or has too few different bytes.
    pub fn from_text(text: &str) -> Result<Self, WeakToken> {
        let text = text.trim().as_bytes();
        if text.len() < MIN_TEXT {
            return Err(WeakToken::Short);
        }
        if (0..=u8::MAX).filter(|byte| text.contains(byte)).count() < MIN_BYTES {
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
        read_token(CWD, path)
    }

    /// The token that variables give: the text in ENMASSE_TOKEN, or that in the file that ENMASSE_TOKEN_FILE names. The file must
    /// be this user's and of no use to others (mode 0600), and no link. Both may be given if they hold the same token.
    ///
    /// # Errors
    /// The text is weak, the file cannot be read or is of use to others, or the two differ.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, JoinError> {
        const TEXT: &str = "ENMASSE_TOKEN";
        const FILE: &str = "ENMASSE_TOKEN_FILE";
        let refuse = |name: &'static str, problem: String| JoinError::Variable { name, problem };
        let given = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let text = given(TEXT).map(|text| Token::from_text(&text).map_err(|weak| refuse(TEXT, weak.to_string())));
        let file = given(FILE).map(|path| {
            let text = read_text(Path::new(&path)).map_err(|error| refuse(FILE, format!("{path}: {error}")))?;
            Token::from_text(&text).map_err(|weak| refuse(FILE, format!("{path}: its text {weak}")))
        });
        match (text.transpose()?, file.transpose()?) {
            (Some(text), Some(file)) if blake3::Hash::from(text.0) != blake3::Hash::from(file.0) => {
                Err(refuse(TEXT, format!("and {FILE} hold different tokens: leave one of them out")))
            }
            (text, file) => Ok(text.or(file)),
        }
    }

    /// The proof of `side`. Compare proofs with `==`, which takes the same time wherever they differ.
    pub(crate) fn proof(&self, side: Side, transcript: Transcript) -> blake3::Hash {
        self.derive(format!("proof of the {side} side").as_bytes()).hash(transcript)
    }

    /// The secret of the records that `side` sends.
    pub(crate) fn secret(&self, side: Side, transcript: Transcript) -> [u8; TOKEN_BYTES] {
        *self.derive(format!("records of the {side} side").as_bytes()).hash(transcript).as_bytes()
    }

    fn hash(&self, transcript: Transcript) -> blake3::Hash {
        let Transcript { connecting, accepting, offer, introduction } = transcript;
        // Only the last part varies in length.
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(connecting).update(accepting).update(&[offer]).update(introduction).finalize()
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
    use std::os::unix::fs::{PermissionsExt, symlink};

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

    /// Regression test: the file of a run followed links, was waited for if it was a FIFO, and could be longer.
    #[test]
    fn files_that_others_may_have_made_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let token = Token::generate().unwrap();
        let refused = |expected: &str| {
            let error = Token::read_file(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
            fs::remove_file(&path).unwrap();
        };
        let other = folder.path().join("other");
        token.write_file(&other).unwrap();
        symlink(&other, &path).unwrap();
        refused("symbolic link");
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        refused("it is not a regular file");
        for length in [0, TOKEN_BYTES - 1, TOKEN_BYTES + 1] {
            token.write_file(&path).unwrap();
            fs::write(&path, vec![7; length]).unwrap();
            refused(&format!("it has {length} bytes instead of 32"));
        }
        token.write_file(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        refused("other users may use it (mode 0604)");
        // A link in its place is replaced, and not followed.
        symlink(&other, &path).unwrap();
        let new = Token::generate().unwrap();
        new.write_file(&path).unwrap();
        assert_eq!((Token::read_file(&path).unwrap().0, Token::read_file(&other).unwrap().0), (new.0, token.0));
    }

    #[test]
    fn variables_hold_a_text_or_name_a_file() {
        const TEXT: &str = "a text that is long enough";
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &[u8], mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let own = path("own", b"a text that is long enough\n", 0o600);
        let read = |text: Option<&str>, file: Option<&str>| {
            let found = Token::from_variables(&|name: &str| match name {
                "ENMASSE_TOKEN" => text.map(str::to_owned),
                "ENMASSE_TOKEN_FILE" => file.map(str::to_owned),
                _ => None,
            });
            found.map(|token| token.map(|token| token.0)).map_err(|error| error.to_string())
        };
        let expected = Some(Token::from_text(TEXT).unwrap().0);
        assert_eq!(read(None, None), Ok(None));
        assert_eq!(read(Some(" "), Some("")), Ok(None));
        assert_eq!(read(Some(TEXT), None), Ok(expected));
        assert_eq!(read(None, Some(&own)), Ok(expected));
        assert_eq!(read(Some(TEXT), Some(&own)), Ok(expected));
        let refused = |text: Option<&str>, file: &str, says: &str| {
            assert_eq!(read(text, Some(file)).unwrap_err(), says);
        };
        let different = "ENMASSE_TOKEN and ENMASSE_TOKEN_FILE hold different tokens: leave one of them out";
        refused(Some("another text, as long"), &own, different);
        let open = path("open", TEXT.as_bytes(), 0o640);
        let says = "other users may use it (mode 0640): chmod go= it";
        refused(None, &open, &format!("ENMASSE_TOKEN_FILE {open}: {says}"));
        let short = path("short", b"short", 0o600);
        let starts = |file: &str, says: &str| {
            let error = read(None, Some(file)).unwrap_err();
            assert!(
                error.starts_with(&format!("ENMASSE_TOKEN_FILE {file}: {says}")) && !error.contains('\n'),
                "{error}"
            );
        };
        starts(&short, "its text is shorter than 16 bytes: make a secret with");
        let long = path("long", &[b'a'; 5000], 0o600);
        starts(&long, "it has 5000 bytes, and a token has at most 4096");
        starts(&path("bytes", &[0xff; 32], 0o600), "");
        starts(folder.path().to_str().unwrap(), "it is not a regular file");
        let link = folder.path().join("link");
        symlink(&own, &link).unwrap();
        assert!(read(None, link.to_str()).unwrap_err().contains("symbolic link"));
        starts("/no/such/file", "No such file");
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
    fn proofs_and_secrets_depend_on_token_side_numbers_offer_and_introduction() {
        let (token, other) = (Token::from_bytes([1; 32]), Token::from_bytes([2; 32]));
        let (a, b) = ([3; 32], [4; 32]);
        let all = |token: &Token, connecting, accepting, offer, introduction| {
            let transcript = Transcript { connecting, accepting, offer, introduction };
            let sides = [Side::Connecting, Side::Accepting];
            let proofs = sides.map(|side| *token.proof(side, transcript).as_bytes());
            [proofs, sides.map(|side| token.secret(side, transcript))].concat()
        };
        assert_eq!(all(&token, &a, &b, 1, b"who"), all(&token.clone(), &a, &b, 1, b"who"));
        let different = [
            all(&token, &a, &b, 1, b"who"),
            all(&token, &b, &a, 1, b"who"),
            all(&token, &a, &b, 2, b"who"),
            all(&token, &a, &b, 1, b"whose"),
            all(&token, &a, &b, 1, b""),
            all(&other, &a, &b, 1, b"who"),
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
