//! One archive: from the first server that has it, resumed where an earlier attempt ended, and checked.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use crate::fault::Fault;
use enmasse_system::files::FileError;
use ring::digest::{Context, SHA256};
use rustix::fs::OFlags;

use crate::fetch::client::Client;
use crate::fetch::pace::Pace;
use crate::fetch::{Archive, Event, FetchError};

/// Attempts with one server that bring less than [`PROGRESS`], one after another.
const ATTEMPTS: u32 = 4;

/// Bytes after which attempts are counted anew: a server that often cuts connections still gets there.
const PROGRESS: u64 = 1 << 20;

/// Bytes that are read at a time.
const CHUNK: usize = 128 << 10;

/// Why a server did not give the archive, or why it could not be written.
enum Failure {
    Server(Fault),
    Disk(FileError),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Server(fault)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Failure::Disk(error)
    }
}

/// Makes `part` the whole archive. It may have some of its bytes already.
pub(crate) fn download(
    client: &Client,
    archive: &Archive,
    mirrors: &[String],
    part: &Path,
    tell: &mut dyn FnMut(Event),
) -> Result<(), FetchError> {
    let mut refusals = Vec::new();
    for mirror in mirrors {
        let url = format!("{}/{}", mirror.trim_end_matches('/'), archive.name);
        match from_server(client, archive, &url, part, tell) {
            Ok(()) => return Ok(()),
            Err(Failure::Disk(error)) => return Err(error.into()),
            Err(Failure::Server(Fault::Passing(why) | Fault::Lasting(why))) => {
                let why = format!("{url}: {why}");
                tell(Event::Refused { why: &why });
                refusals.push(why);
            }
        }
    }
    Err(FetchError::Servers { archive: archive.name.to_owned(), refusals })
}

/// The same from one server.
fn from_server(
    client: &Client,
    archive: &Archive,
    url: &str,
    part: &Path,
    tell: &mut dyn FnMut(Event),
) -> Result<(), Failure> {
    let mut file = open_part(part)?;
    let (mut attempts, mut begun_anew) = (0, false);
    loop {
        let before = length(&file, part)?;
        if before > archive.bytes {
            set_length(&file, part, 0)?;
            continue;
        }
        if before == archive.bytes {
            let found = sha256(&mut file, part)?;
            if found == archive.sha256 {
                return Ok(());
            }
            set_length(&file, part, 0)?;
            if begun_anew {
                let why = format!("its SHA-256 is {found}, not {}", archive.sha256);
                return Err(Fault::Lasting(why).into());
            }
            // Bytes of an earlier attempt may be to blame.
            begun_anew = true;
            continue;
        }
        begun_anew |= before == 0;
        tell(Event::Asking { url });
        match transfer(client, archive, url, (&mut file, part), tell) {
            Ok(()) => attempts = 0,
            Err(Failure::Server(Fault::Passing(why))) => {
                let arrived = length(&file, part)?.saturating_sub(before);
                attempts = if arrived >= PROGRESS { 0 } else { attempts + 1 };
                if attempts == ATTEMPTS {
                    return Err(Fault::Passing(why).into());
                }
                // A cut connection is taken up again at once. A server that gave nothing gets some time.
                if arrived == 0 {
                    std::thread::sleep(client.timeout() / 120 * (1 << attempts));
                }
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Appends what the server sends, up to the end of the archive.
fn transfer(
    client: &Client,
    archive: &Archive,
    url: &str,
    (file, part): (&mut File, &Path),
    tell: &mut dyn FnMut(Event),
) -> Result<(), Failure> {
    let have = length(file, part)?;
    let mut opened = client.open(url, have, archive.bytes)?;
    let mut have = opened.from;
    set_length(file, part, have)?;
    file.seek(SeekFrom::Start(have)).map_err(FileError::of("write", part))?;
    let mut pace = Pace::new(client.timeout(), Instant::now());
    let mut chunk = vec![0; CHUNK];
    let told = |bytes: u64| Event::Received { archive: archive.name, bytes, total: archive.bytes };
    tell(told(have));
    while have < archive.bytes {
        let read = opened.read(&mut chunk)?;
        if read == 0 {
            return Err(Fault::Passing(format!("it ends after {have} of {} bytes", archive.bytes)).into());
        }
        // Whatever a server sends after the end is not read.
        let wanted = (archive.bytes - have).min(read as u64) as usize;
        file.write_all(&chunk[..wanted]).map_err(FileError::of("write", part))?;
        have += wanted as u64;
        tell(told(have));
        if !pace.goes_on(read as u64, Instant::now()) {
            let seconds = client.timeout().as_secs_f64();
            return Err(Fault::Passing(format!("it sends less than 64 KiB in {seconds} s")).into());
        }
    }
    Ok(())
}

/// Opens the file for an archive's bytes, which is created if there is none. A link is an error.
fn open_part(part: &Path) -> Result<File, FileError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o644);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    options.open(part).map_err(FileError::of("write", part))
}

fn length(file: &File, part: &Path) -> Result<u64, FileError> {
    file.metadata().map(|metadata| metadata.len()).map_err(FileError::of("read", part))
}

fn set_length(file: &File, part: &Path, bytes: u64) -> Result<(), FileError> {
    file.set_len(bytes).map_err(FileError::of("write", part))
}

/// The SHA-256 of a whole file, in hexadecimal digits.
fn sha256(file: &mut File, part: &Path) -> Result<String, FileError> {
    let mut digest = Context::new(&SHA256);
    let mut chunk = vec![0; CHUNK];
    file.seek(SeekFrom::Start(0)).map_err(FileError::of("read", part))?;
    loop {
        match file.read(&mut chunk).map_err(FileError::of("read", part))? {
            0 => break,
            read => digest.update(&chunk[..read]),
        }
    }
    Ok(digest.finish().as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
