//! The servers of a run: which kind an address leads to, and the buckets that have been opened.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::address::{Address, Place};
use crate::http_object::HttpObject;
use crate::s3::Bucket;
use crate::source::Source;
use crate::transport::Transport;
use crate::{RemoteError, RemoteOptions, Variables, lock};

/// What requests to servers share.
#[derive(Debug)]
pub(crate) struct Servers {
    transport: Transport,
    variables: Variables,
    buckets: Mutex<HashMap<String, Arc<Bucket>>>,
}

impl Servers {
    /// Asks no server.
    pub fn new(options: &RemoteOptions) -> Result<Self, RemoteError> {
        let transport = Transport::new(options)?;
        let variables = options.variables.clone();
        Ok(Servers { transport, variables, buckets: Mutex::default() })
    }

    /// The object at an address.
    pub fn source(&self, address: &str) -> Result<Box<dyn Source>, RemoteError> {
        match Address::parse(address)?.place {
            Place::Http => Ok(Box::new(HttpObject::new(self.transport.clone(), address))),
            Place::S3 { bucket, key } if !key.is_empty() => Ok(Box::new(self.bucket(address, &bucket)?.object(&key)?)),
            Place::S3 { .. } => Err(RemoteError::address(address, "it names a bucket, and no object in it")),
        }
    }

    /// See [`crate::Remote::list`].
    pub fn list(&self, folder: &str) -> Result<Vec<String>, RemoteError> {
        match Address::parse(folder)?.place {
            Place::S3 { bucket, key } => self.bucket(folder, &bucket)?.list(folder, &key),
            Place::Http => Err(RemoteError::address(
                folder,
                "a server tells of no other files: name each, as in {000..099}.tar, and no folder or *",
            )),
        }
    }

    fn bucket(&self, address: &str, name: &str) -> Result<Arc<Bucket>, RemoteError> {
        let mut buckets = lock(&self.buckets);
        if let Some(bucket) = buckets.get(name) {
            return Ok(bucket.clone());
        }
        let bucket = Bucket::new(address, name, &self.variables, self.transport.clone())?;
        Ok(buckets.entry(name.to_owned()).or_insert(Arc::new(bucket)).clone())
    }
}
