//! A program without the feature `servers`: every address is refused.

use crate::source::Source;
use crate::{RemoteError, RemoteOptions};

/// No servers.
#[derive(Debug)]
pub(crate) struct Servers;

impl Servers {
    pub fn new(_: &RemoteOptions) -> Result<Self, RemoteError> {
        Ok(Servers)
    }

    pub fn source(&self, address: &str) -> Result<Box<dyn Source>, RemoteError> {
        Err(refused(address))
    }

    pub fn list(&self, folder: &str) -> Result<Vec<String>, RemoteError> {
        Err(refused(folder))
    }
}

fn refused(address: &str) -> RemoteError {
    RemoteError::address(
        address,
        "this program was built without data from servers; build it with the feature `remote`",
    )
}

#[cfg(test)]
mod tests {
    use crate::{Remote, RemoteOptions};

    #[test]
    fn every_address_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let options = RemoteOptions { cache: Some(folder.path().join("cache")), ..RemoteOptions::default() };
        let remote = Remote::new(&options).unwrap();
        let check = |address: &str| {
            let refused = "this program was built without data from servers; build it with the feature `remote`";
            let expected = format!("{address}: {refused}");
            assert_eq!(remote.object(address).unwrap_err().to_string(), expected);
            assert_eq!(remote.list(address).unwrap_err().to_string(), expected);
        };
        check("s3://bucket/train.tar");
        check("https://host/train.tar");
    }
}
