//! Files that only this user may know. Others may be able to write to the folder, so a file is used only after it was checked.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::process::geteuid;

use super::{TOKEN_BYTES, Token};

/// Permissions of others to change an entry.
pub(super) const WRITABLE: u32 = 0o022;
/// Permissions of others to use an entry in any way.
pub(super) const USABLE: u32 = 0o077;
/// Length limit of a file with a token as text, in bytes.
const MAX_TEXT: u64 = 4096;

/// Opens a regular file of this user that no other may use. Neither follows a link nor waits for the other end of a FIFO.
fn open(folder: impl AsFd, name: &Path) -> io::Result<(File, Stat)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(folder, name, flags, Mode::empty())?);
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file: remove it"));
    }
    check(&stat, USABLE)?;
    Ok((file, stat))
}

/// Reads a file with the bytes of a token, and nothing else.
pub(super) fn read_token(folder: impl AsFd, name: &Path) -> io::Result<Token> {
    let (mut file, stat) = open(folder, name)?;
    if stat.st_size != TOKEN_BYTES as i64 {
        return Err(io::Error::other(format!("it has {} bytes instead of {TOKEN_BYTES}: remove it", stat.st_size)));
    }
    let mut bytes = [0; TOKEN_BYTES];
    file.read_exact(&mut bytes)?;
    Ok(Token(bytes))
}

/// Reads a file with a token as text.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    let (file, stat) = open(CWD, path)?;
    let mut text = String::new();
    if file.take(MAX_TEXT + 1).read_to_string(&mut text)? as u64 > MAX_TEXT {
        return Err(io::Error::other(format!("it has {} bytes, and a token has at most {MAX_TEXT}", stat.st_size)));
    }
    Ok(text)
}

/// Refuses an entry of another user, and one for which others have any of the permissions `forbidden`.
pub(super) fn check(stat: &Stat, forbidden: u32) -> io::Result<()> {
    let own = geteuid().as_raw();
    let why = match stat.st_mode & forbidden {
        _ if stat.st_uid != own => format!("it belongs to user {}, and this is user {own}", stat.st_uid),
        0 => return Ok(()),
        _ => format!("other users may use it (mode {:04o}): chmod go= it", stat.st_mode & 0o7777),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}
