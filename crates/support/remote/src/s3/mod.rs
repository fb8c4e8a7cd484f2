//! Objects in the buckets of S3 and of storage that speaks its protocol.
//!
//! The crate `object_store` knows the protocol: signatures, ways to credentials, addresses of
//! buckets. It is polled on the thread that waits. Requests go through our own transport, which
//! blocks, has the limits, and gives each fault its words. Our attempts are the only ones.

mod connector;
mod profile;
mod valid;
mod wait;

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use crate::fault::Fault;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, RetryConfig};

use crate::retry::{Limits, retried};
use crate::source::{Part, Source, Version, checked};
use crate::transport::Transport;
use crate::{RemoteError, Variables};
use connector::Connector;
use profile::Profile;
use valid::check;
use wait::wait;

/// Variables that say where credentials come from. Without any of them the profiles in `~/.aws` are asked.
const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];

/// What to check where a server does not answer.
const ADVICE: &str = "check AWS_ENDPOINT_URL, AWS_REGION and the network";

/// Attempts to list a folder.
const LISTS: u32 = 3;

/// A bucket. What is read of it is asked for with one set of credentials.
#[derive(Debug)]
pub(crate) struct Bucket {
    store: AmazonS3,
    /// The server in messages.
    server: String,
}

impl Bucket {
    /// Finds out about the server and the credentials, and asks nobody as yet.
    pub fn new(address: &str, name: &str, variables: &Variables, transport: Transport) -> Result<Self, RemoteError> {
        let refused = |problem: String| RemoteError::address(address, problem);
        let mut builder = AmazonS3Builder::new();
        let profile = match CREDENTIALS.iter().any(|name| variables.get(name).is_some()) {
            true => Profile::default(),
            false => Profile::find(variables).map_err(refused)?,
        };
        for (name, value) in profile.variables().chain(variables.iter()) {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                check(name, value)?;
                builder = builder.with_config(key, value);
            }
        }
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region).unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
        let endpoint = endpoint.iter().find_map(|key| builder.get_config_value(key));
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let builder = builder.with_bucket_name(name).with_retry(once).with_http_connector(Connector(transport));
        let store = builder.build().map_err(|error| refused(describe(&error)))?;
        Ok(Bucket { store, server: endpoint.unwrap_or_else(|| format!("Amazon S3 in {region}")) })
    }

    /// An object of the bucket.
    pub fn object(self: Arc<Self>, key: &str) -> Result<S3Object, RemoteError> {
        let path = Path::parse(key).map_err(|error| RemoteError::address(key, error.to_string()))?;
        Ok(S3Object { bucket: self, path })
    }

    /// The names of the objects directly below a folder, in order.
    pub fn list(&self, address: &str, folder: &str) -> Result<Vec<String>, RemoteError> {
        let path = Path::parse(folder).map_err(|error| RemoteError::address(address, error.to_string()))?;
        let limits = Limits { attempts: LISTS, timeout: std::time::Duration::from_secs(60) };
        let found = retried(limits, ADVICE, || wait(self.store.list_with_delimiter(Some(&path))).map_err(fault));
        let found = found.map_err(|fault| RemoteError::address(address, format!("{}: {fault}", self.server)))?;
        let mut names: Vec<String> =
            found.objects.iter().filter_map(|object| object.location.filename().map(str::to_owned)).collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// An object of a bucket.
#[derive(Debug)]
pub(crate) struct S3Object {
    bucket: Arc<Bucket>,
    path: Path,
}

impl Source for S3Object {
    fn server(&self) -> &str {
        &self.bucket.server
    }

    fn advice(&self) -> &str {
        ADVICE
    }

    fn read(&self, wanted: Range<u64>, version: Option<&Version>) -> Result<Part, Fault> {
        let tag = version.map(|version| version.tag.clone()).filter(|tag| tag.starts_with('"'));
        let range = Some(GetRange::Bounded(wanted.clone()));
        let options = GetOptions { range, if_match: tag, ..GetOptions::default() };
        let found = wait(async {
            let found = self.bucket.store.get_opts(&self.path, options).await?;
            let meta = found.meta.clone();
            Ok((meta, found.bytes().await?))
        });
        let (meta, bytes) = found.map_err(fault)?;
        let tag = meta.e_tag.unwrap_or_else(|| meta.last_modified.to_rfc3339());
        checked(Part { bytes: bytes.to_vec(), version: Version { length: meta.size, tag } }, &wanted, version)
    }
}

/// The fault of our transport that is behind an error of the crate.
fn fault(error: object_store::Error) -> Fault {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(inner) = cause {
        if let Some(fault) = inner.downcast_ref::<Fault>() {
            return fault.clone();
        }
        cause = inner.source();
    }
    Fault::Lasting(describe(&error))
}

/// The innermost cause in one line: those around it repeat it.
fn describe(error: &object_store::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
