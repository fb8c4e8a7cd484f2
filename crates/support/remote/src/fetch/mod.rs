//! Known data sets and single files from the network: checked, resumed, whole or not at all; data sets are extracted.
//!
//! Every wait for a server has a limit ([`Fetcher`]): a connection, an answer and every read may
//! take 30 seconds, and a server that sends a byte now and then is too slow (`pace.rs`). So has
//! everything that a server can make longer: headers, bodies, redirects, entries and decompressed
//! bytes of archives. Nothing is extracted before its SHA-256 is that of the table, so a server
//! need not be trusted. The library reads no environment but the proxies' variables.

mod client;
mod download;
mod error;
mod file;
mod known;
mod pace;
mod place;
mod unpack;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use enmasse_system::files::FileError;

use client::Client;
use download::Download;
use place::FetchLocation;

pub use error::FetchError;
pub use file::{Answer, RemoteFile, git_digest, sha256_of};
pub use known::{Archive, Form, KnownSet, SETS, find};

/// What happens, for a line of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A server is asked for an archive.
    Asking {
        /// Where the archive is.
        url: &'a str,
    },
    /// Bytes of an archive are on the disk.
    Received {
        /// Its name.
        archive: &'a str,
        /// Bytes that are there, including those of earlier attempts.
        bytes: u64,
        /// Its length.
        total: u64,
    },
    /// A server does not give an archive; the next one is asked.
    Refused {
        /// The reason, which begins with the address.
        why: &'a str,
    },
    /// Another process is fetching the same file.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// The archive is whole, and is being extracted.
    Unpacking {
        /// Its name.
        archive: &'a str,
    },
}

/// How to fetch.
#[derive(Clone, Debug)]
pub struct Fetcher {
    mirrors: Vec<String>,
    timeout: Duration,
    trusted: Option<PathBuf>,
}

impl Default for Fetcher {
    fn default() -> Self {
        Fetcher { mirrors: Vec::new(), timeout: Duration::from_secs(30), trusted: None }
    }
}

impl Fetcher {
    /// Asks these servers, in this order, instead of those of the table. Each is the address of a folder with the archives.
    pub fn mirrors(self, mirrors: Vec<String>) -> Self {
        Fetcher { mirrors, ..self }
    }

    /// How long a server may take to accept a connection, to answer, or to send a little more. 30 seconds by default.
    pub fn timeout(self, timeout: Duration) -> Self {
        Fetcher { timeout, ..self }
    }

    /// Trusts the authorities whose certificates are in this PEM file, instead of Mozilla's.
    pub fn trust(self, trusted: PathBuf) -> Self {
        Fetcher { trusted: Some(trusted), ..self }
    }

    /// Makes the set's folder in `folder`, which is created if there is none, and returns its path. A set's folder that is
    /// there already is left as it is.
    ///
    /// What has been received stays in a hidden folder beside it if this fails, or its process ends. The next call goes on
    /// with it.
    ///
    /// # Errors
    /// No server gives an archive with its checksum, there is too little space, another process fetches the same set,
    /// an archive has something that is not unpacked, or a file cannot be written.
    pub fn fetch(&self, set: &KnownSet, folder: &Path, tell: &mut dyn FnMut(Event)) -> Result<PathBuf, FetchError> {
        let target = folder.join(set.folder);
        if target.exists() {
            return Ok(target);
        }
        fs::create_dir_all(folder).map_err(FileError::of("create", folder))?;
        let place = FetchLocation::claim(folder, set)?;
        // Another process may have finished it meanwhile.
        if target.exists() {
            place.remove()?;
            return Ok(target);
        }
        place.require_space(set)?;
        let client = self.client()?;
        let usual = set.mirrors.iter().map(|mirror| mirror.to_string());
        let mirrors = if self.mirrors.is_empty() { usual.collect() } else { self.mirrors.clone() };
        for archive in set.archives {
            let Archive { name, bytes, sha256, .. } = *archive;
            let wanted = Download { name, bytes: Some(bytes), limit: bytes, sha256, token: None };
            let urls: Vec<_> =
                mirrors.iter().map(|mirror| format!("{}/{name}", mirror.trim_end_matches('/'))).collect();
            download::download(&client, &wanted, &urls, &place.part(archive), tell)?;
        }
        let staging = place.empty_staging()?;
        for archive in set.archives {
            tell(Event::Unpacking { archive: archive.name });
            unpack::unpack(archive, set.folder, &place.part(archive), &staging)?;
        }
        place.publish(&staging.join(set.folder), &target)?;
        place.remove()?;
        Ok(target)
    }

    fn client(&self) -> Result<Client, FetchError> {
        Client::new(self.timeout, self.trusted.as_deref())
    }
}
