//! One file: from the first server that has it, resumed where an earlier attempt ended, and checked.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use crate::fault::Fault;
use enmasse_system::files::{FileError, Space, folder_of};
use ring::digest::{Context, SHA256};
use rustix::fs::OFlags;

use crate::fetch::client::Client;
use crate::fetch::pace::Pace;
use crate::fetch::{Event, FetchError};

/// Attempts with one server that bring less than [`PROGRESS`], one after another.
pub(crate) const ATTEMPTS: u32 = 4;

/// Bytes after which attempts are counted anew: a server that often cuts connections still gets there.
const PROGRESS: u64 = 1 << 20;

/// Bytes that are read at a time.
const CHUNK: usize = 128 << 10;

/// A file to be made whole.
pub(crate) struct Download<'a> {
    /// Its name, for errors and progress.
    pub name: &'a str,
    /// Its length, if that is known before a server tells it.
    pub bytes: Option<u64>,
    /// The longest that is taken.
    pub limit: u64,
    /// The SHA-256 in hexadecimal digits, or the first ones of them; empty if it is not known.
    pub sha256: &'a str,
    /// What the server is shown, and no other one.
    pub token: Option<&'a str>,
}

/// Why a server did not give the file, or why it could not be written.
enum Failure {
    Server(Fault),
    Disk(FetchError),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Server(fault)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Failure::Disk(error.into())
    }
}

/// Makes `part` the whole file, which is at each of these addresses. It may have some of its bytes already.
pub(crate) fn download(
    client: &Client,
    wanted: &Download,
    urls: &[String],
    part: &Path,
    tell: &mut dyn FnMut(Event),
) -> Result<(), FetchError> {
    let mut refusals = Vec::new();
    for url in urls {
        match from_server(client, wanted, url, part, tell) {
            Ok(()) => return Ok(()),
            Err(Failure::Disk(error)) => return Err(error),
            Err(Failure::Server(Fault::Passing(why) | Fault::Lasting(why))) => {
                let why = format!("{url}: {why}");
                tell(Event::Refused { why: &why });
                refusals.push(why);
            }
        }
    }
    Err(FetchError::Servers { archive: wanted.name.to_owned(), refusals })
}

/// The same from one server.
fn from_server(
    client: &Client,
    wanted: &Download,
    url: &str,
    part: &Path,
    tell: &mut dyn FnMut(Event),
) -> Result<(), Failure> {
    let mut file = open_part(part)?;
    let (mut attempts, mut begun_anew, mut total) = (0, false, wanted.bytes);
    loop {
        let before = length(&file, part)?;
        if total.is_some_and(|total| before > total) {
            set_length(&file, part, 0)?;
            continue;
        }
        if total == Some(before) {
            let found = sha256(&mut file, part)?;
            if found.starts_with(wanted.sha256) {
                return Ok(());
            }
            set_length(&file, part, 0)?;
            if begun_anew {
                let digits = found.get(..wanted.sha256.len()).unwrap_or(&found);
                let why = format!("its SHA-256 is {digits}, not {}", wanted.sha256);
                return Err(Fault::Lasting(why).into());
            }
            // Bytes of an earlier attempt may be to blame.
            begun_anew = true;
            continue;
        }
        if wanted.sha256.is_empty() {
            // Nothing would tell that the server has another file by now.
            set_length(&file, part, 0)?;
        }
        begun_anew |= before == 0;
        tell(Event::Asking { url });
        match transfer(client, wanted, url, (&mut file, part), &mut total, tell) {
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

/// Appends what the server sends, up to the end of the file, whose length it tells.
fn transfer(
    client: &Client,
    wanted: &Download,
    url: &str,
    (file, part): (&mut File, &Path),
    total: &mut Option<u64>,
    tell: &mut dyn FnMut(Event),
) -> Result<(), Failure> {
    let have = length(file, part)?;
    let mut opened = client.open(wanted, url, have)?;
    let (mut have, bytes) = (opened.from, opened.total);
    *total = Some(bytes);
    set_length(file, part, have)?;
    require_space(part, bytes.saturating_sub(have))?;
    file.seek(SeekFrom::Start(have)).map_err(FileError::of("write", part))?;
    let mut pace = Pace::new(client.timeout(), Instant::now());
    let mut chunk = vec![0; CHUNK];
    let told = |have: u64| Event::Received { archive: wanted.name, bytes: have, total: bytes };
    tell(told(have));
    while have < bytes {
        let read = opened.read(&mut chunk)?;
        if read == 0 {
            return Err(Fault::Passing(format!("it ends after {have} of {bytes} bytes")).into());
        }
        // Whatever a server sends after the end is not read.
        let taken = (bytes - have).min(read as u64) as usize;
        file.write_all(&chunk[..taken]).map_err(FileError::of("write", part))?;
        have += taken as u64;
        tell(told(have));
        if !pace.goes_on(read as u64, Instant::now()) {
            let seconds = client.timeout().as_secs_f64();
            return Err(Fault::Passing(format!("it sends less than 64 KiB in {seconds} s")).into());
        }
    }
    Ok(())
}

/// Fails unless there is space for so many bytes more.
fn require_space(part: &Path, needed: u64) -> Result<(), Failure> {
    let folder = folder_of(part);
    let free = Space::of(folder).map_err(FileError::of("read", folder))?.bytes;
    if free >= needed {
        return Ok(());
    }
    let folder = folder.display().to_string();
    Err(Failure::Disk(FetchError::Space { folder, needed: needed.div_ceil(1_000_000), free: free / 1_000_000 }))
}

/// Opens the file for the bytes, which is created if there is none. A link is an error.
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
pub(crate) fn sha256(file: &mut File, part: &Path) -> Result<String, FileError> {
    let mut digest = Context::new(&SHA256);
    let mut chunk = vec![0; CHUNK];
    file.seek(SeekFrom::Start(0)).map_err(FileError::of("read", part))?;
    loop {
        match file.read(&mut chunk).map_err(FileError::of("read", part))? {
            0 => break,
            read => digest.update(&chunk[..read]),
        }
    }
    Ok(hexadecimal(digest.finish().as_ref()))
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
