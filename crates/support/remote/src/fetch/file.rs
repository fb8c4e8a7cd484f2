//! Single files and short answers.

use std::fs::{self, File};
use std::path::Path;

use enmasse_system::files::{FileError, Lock, folder_of, open_regular};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

use crate::fault::Fault;
use crate::fetch::download::{ATTEMPTS, Download, download, hexadecimal, sha256};
use crate::fetch::{Event, FetchError, Fetcher};
use crate::retry::{Limits, retried};

/// Longest file that is taken.
const MAX_BYTES: u64 = 64 << 30;

/// Longest waits for a server after which another process that receives nothing is given up.
const TIMEOUTS: u32 = 4;

/// A file on a server.
#[derive(Clone, Debug, Default)]
pub struct RemoteFile {
    /// Its address.
    pub url: String,
    /// What the server is shown as `Authorization: Bearer`. No other one sees it.
    pub token: Option<String>,
    /// Its length, if that is known.
    pub bytes: Option<u64>,
    /// Its SHA-256 in hexadecimal digits, or the first ones of them; empty if it is not known. Without it nothing is resumed.
    pub sha256: String,
}

/// A short answer of a server.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The number and its words.
    pub status: String,
    /// Whether that is 200.
    pub is_well: bool,
    /// The body.
    pub body: Vec<u8>,
}

impl Fetcher {
    /// Makes `target` the file of a server, in folders that are created, unless it is there. Bytes gather in `part`, in the same
    /// file system, while `lock` is locked: other processes wait, and then find the file.
    ///
    /// # Errors
    /// No server gives the file with this size and checksum, another process fetches it and gets no further, or a file
    /// or folder cannot be written. `part` stays then, and the next call goes on with it.
    pub fn fetch_file(
        &self,
        file: &RemoteFile,
        target: &Path,
        (part, lock): (&Path, &Path),
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), FetchError> {
        if target.exists() {
            return Ok(());
        }
        for folder in [folder_of(target), folder_of(part), folder_of(lock)] {
            fs::create_dir_all(folder).map_err(FileError::of("create", folder))?;
        }
        let name = target.display().to_string();
        let _lock = self.lock(&name, part, lock, tell)?;
        if target.exists() {
            return Ok(());
        }
        let RemoteFile { url, token, bytes, sha256 } = file;
        let short = url.rsplit('/').next().unwrap_or(url);
        let wanted = Download { name: short, bytes: *bytes, limit: MAX_BYTES, sha256, token: token.as_deref() };
        download(&self.client()?, &wanted, std::slice::from_ref(url), part, tell).inspect_err(|_| {
            if fs::metadata(part).is_ok_and(|received| received.len() == 0) {
                // Nothing to go on with.
                let _ = fs::remove_file(part);
            }
        })?;
        let on_disk = File::open(part).and_then(|file| file.sync_all());
        on_disk.and_then(|()| fs::rename(part, target)).map_err(FileError::of("write", target))?;
        Ok(())
    }

    /// The lock, after any other process that has it.
    fn lock(&self, name: &str, part: &Path, lock: &Path, tell: &mut dyn FnMut(Event)) -> Result<Lock, FetchError> {
        let mut is_told = false;
        let received = || {
            if !std::mem::replace(&mut is_told, true) {
                tell(Event::Waiting { file: name });
            }
            fs::metadata(part).map_or(0, |metadata| metadata.len())
        };
        let taken = Lock::wait(lock, self.timeout * TIMEOUTS, received).map_err(FileError::of("write", lock))?;
        taken.ok_or_else(|| FetchError::Stuck(name.to_owned()))
    }

    /// What a server answers, whatever the status.
    ///
    /// # Errors
    /// It cannot be reached, does not answer in time, or answers more than `limit` bytes; or the file of certificates
    /// cannot be used.
    pub fn ask(&self, url: &str, token: Option<&str>, limit: u64) -> Result<Answer, FetchError> {
        let client = self.client()?;
        let limits = Limits { attempts: ATTEMPTS, timeout: self.timeout };
        retried(limits, "check the network", || client.ask(url, token, limit)).map_err(|fault| {
            let (Fault::Passing(why) | Fault::Lasting(why)) = fault;
            let short = url.split('?').next().unwrap_or(url);
            // The caller says what.
            FetchError::Servers { archive: "it".to_owned(), refusals: vec![format!("{short}: {why}")] }
        })
    }
}

/// The SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// The file cannot be read.
pub fn sha256_of(path: &Path) -> Result<String, FetchError> {
    let mut file = open_regular(path).map_err(FileError::of("read", path))?;
    Ok(sha256(&mut file, path)?)
}

/// What git calls a file of these bytes, in hexadecimal digits.
pub fn git_digest(bytes: &[u8]) -> String {
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(format!("blob {}\0", bytes.len()).as_bytes());
    digest.update(bytes);
    hexadecimal(digest.finish().as_ref())
}
