//! Objects of S3-compatible storage and of HTTP servers, read in parts through a bounded cache on the local disk.
//!
//! A caller asks for bytes of an object as of a file, from any thread, and waits for them. Every wait has a limit. What has
//! been read stays in the cache, which the processes of a machine share; a run sees one version of an object or an error.
//!
//! Use it for files that are too large to copy, and for the data sets that [`fetch`] knows.
//!
//! ```no_run
//! use enmasse_remote::{Remote, RemoteOptions};
//! let remote = Remote::new(&RemoteOptions::default())?;
//! let object = remote.object("s3://bucket/train-000.tar")?;
//! let mut head = [0; 512];
//! object.fill(0, &mut head)?;
//! # Ok::<(), enmasse_remote::RemoteError>(())
//! ```

// Without servers no object is ever opened, and what reads them has no caller.
#![cfg_attr(not(feature = "servers"), allow(dead_code))]

mod address;
mod ahead;
mod cache;
mod error;
mod fault;
#[cfg(feature = "servers")]
pub mod fetch;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(feature = "servers")]
mod http;
#[cfg(feature = "servers")]
mod http_object;
mod object;
mod options;
mod permits;
mod reader;
mod retry;
#[cfg(feature = "servers")]
mod s3;
#[cfg_attr(not(feature = "servers"), path = "no_servers.rs")]
mod servers;
mod source;
#[cfg(feature = "servers")]
mod transport;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cache::Cache;
use permits::Permits;
use servers::Servers;

pub use address::is_remote;
pub use ahead::{Ahead, Extent, Turns};
pub use error::RemoteError;
pub use object::Object;
pub use options::{RemoteOptions, Variables};
pub use reader::Reader;
pub use source::Version;

/// The objects of a run, and the cache that they share.
#[derive(Debug)]
pub struct Remote {
    servers: Servers,
    cache: Arc<Cache>,
    permits: Permits,
    /// How long the attempts to read a part of an object may take together.
    timeout: Duration,
    /// By their addresses. An object is looked up once, and its version is the same from then on.
    objects: Mutex<HashMap<String, Arc<Object>>>,
}

impl Remote {
    /// Opens the cache, whose folder is created if there is none. Asks no server.
    ///
    /// # Errors
    /// A setting is wrong, the folder cannot be created or is another user's, or there is no room for the cache.
    pub fn new(options: &RemoteOptions) -> Result<Arc<Self>, RemoteError> {
        Ok(Arc::new(Remote {
            servers: Servers::new(options)?,
            cache: Arc::new(Cache::open(options)?),
            permits: Permits::default(),
            timeout: options.timeout,
            objects: Mutex::default(),
        }))
    }

    /// The object at an address: `s3://bucket/key`, `https://host/path` or `http://host/path`.
    ///
    /// # Errors
    /// It is no such address, there is no object, or its server refuses or does not answer. A server that cannot be
    /// reached is no error if the cache has the object.
    pub fn object(&self, address: &str) -> Result<Arc<Object>, RemoteError> {
        if let Some(found) = lock(&self.objects).get(address) {
            return Ok(found.clone());
        }
        let source = self.servers.source(address)?;
        let opened = Object::open(address, source, self.cache.clone(), self.timeout, self.permits.clone())?;
        // Another thread may have looked it up meanwhile.
        Ok(lock(&self.objects).entry(address.to_owned()).or_insert(Arc::new(opened)).clone())
    }

    /// The names of the objects directly below a folder of a bucket, `s3://bucket/folder`, in order.
    ///
    /// # Errors
    /// It is no folder of a bucket, or the server refuses or does not answer.
    pub fn list(&self, folder: &str) -> Result<Vec<String>, RemoteError> {
        self.servers.list(folder)
    }

    /// What the user should know about the objects that have been looked up, and what to do about it: a sentence without a full stop,
    /// and its end.
    pub fn warnings(&self) -> Vec<(String, &'static str)> {
        let objects = lock(&self.objects);
        let mut warnings = Vec::new();
        let mut unseen = objects.values().filter_map(|object| Some((object.address(), object.unseen()?)));
        if let Some((address, why)) = unseen.next() {
            let others = match unseen.count() {
                0 => String::new(),
                others => format!(", as are {others} more"),
            };
            let problem = format!("{address}: {why}; the version in the cache is read{others}");
            warnings.push((problem, "if the data may have changed, start again when the server answers"));
        }
        let total = objects.values().map(|object| object.length()).sum::<u64>();
        let kept = self.cache.capacity();
        if total > kept {
            let [total, kept] = [total, kept].map(|bytes| bytes.div_ceil(1_000_000));
            let problem =
                format!("the cache keeps {kept} MB of the data's {total} MB, so each epoch fetches the rest again");
            warnings.push((problem, "raise `cache_limit` if the disk has room"));
        }
        warnings
    }
}

/// Locks even if a holder panicked: the guarded state is consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
