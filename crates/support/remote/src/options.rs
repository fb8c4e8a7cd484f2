//! How objects are read: where they are kept, how long a server may take, and whose credentials are shown.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How to read objects.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteOptions {
    /// The folder of the cache. `None` is `objects` in the user's cache of this program.
    pub cache: Option<PathBuf>,
    /// Bytes that the cache may take.
    pub limit: u64,
    /// How long the attempts to read a part may take together, once the object has been found.
    pub timeout: Duration,
    /// What S3's users expect to be read from the environment.
    pub variables: Variables,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        RemoteOptions {
            cache: None,
            limit: RemoteOptions::LIMIT,
            timeout: Duration::from_secs(300),
            variables: Variables::default(),
        }
    }
}

impl RemoteOptions {
    /// Bytes that the cache may take by default: 50 GB.
    pub const LIMIT: u64 = 50_000_000_000;
}

/// Environment variables that begin with `AWS_`, and `HOME`. Their values are not shown.
#[derive(Clone, PartialEq)]
pub struct Variables(BTreeMap<String, String>);

/// Those of this process.
impl Default for Variables {
    fn default() -> Self {
        let own =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Variables::new(own)
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Variables {
    /// Takes those that count. An empty value is none.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let counts = |name: &str| name.starts_with("AWS_") || name == "HOME";
        Variables(variables.into_iter().filter(|(name, value)| counts(name) && !value.is_empty()).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let all = [("AWS_SECRET_ACCESS_KEY", "hidden"), ("AWS_REGION", ""), ("PATH", "/bin")];
        let variables = Variables::new(all.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(format!("{variables:?}"), "{\"AWS_SECRET_ACCESS_KEY\"}");
        assert_eq!((variables.get("AWS_SECRET_ACCESS_KEY"), variables.get("AWS_REGION")), (Some("hidden"), None));
    }
}
