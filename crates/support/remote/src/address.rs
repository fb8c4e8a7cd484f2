//! Addresses of objects.

use std::path::Path;

use crate::RemoteError;

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On a server, under its address.
    Http,
    /// In a bucket. The key may be empty, or that of a folder.
    S3 { bucket: String, key: String },
}

/// A valid address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub place: Place,
}

/// Whether a path is an address such as `s3://bucket/key`, of any kind.
pub fn is_remote(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|text| text.split_once("://"));
    scheme.is_some_and(|(scheme, _)| {
        scheme.len() > 1 && scheme.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"+-.".contains(&letter))
    })
}

/// Whether a bucket may have this name. Old ones have capital letters and underscores.
fn is_bucket(name: &str) -> bool {
    let ends = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    name.chars().all(is_letter) && ends(name.chars().next()) && ends(name.chars().last()) && !name.contains("..")
}

impl Address {
    /// Takes `s3://bucket/key`, `https://host/path` and `http://host/path`. Whatever may hold a secret is refused, since a run
    /// records its addresses.
    pub fn parse(text: &str) -> Result<Self, RemoteError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(RemoteError::address(text, "it is no address: s3://bucket/key or https://host/path"));
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        // Without what may be secret.
        let shown = || format!("{scheme}://{}/{path}", host.rsplit('@').next().unwrap_or_default());
        let shown = || shown().split(['?', '#']).next().unwrap_or_default().to_owned();
        let refused = |problem: &str| Err(RemoteError::address(&shown(), problem));
        if host.contains('@') {
            return refused("an address may not have a user or a password, since a run records it");
        }
        if host.is_empty() {
            return refused("it names no server or bucket");
        }
        let place = match scheme {
            "s3" if !is_bucket(host) => {
                return refused("its bucket has no valid name: letters, digits, hyphens and single dots");
            }
            "s3" => Place::S3 { bucket: host.to_owned(), key: path.trim_end_matches('/').to_owned() },
            "http" | "https" if text.contains(['?', '#']) => {
                return refused("an address may not have a query (?) or a fragment (#), since a run records it");
            }
            "http" | "https" if path.is_empty() => return refused("it names a server, and no file on it"),
            "http" | "https" => Place::Http,
            "gs" => {
                return refused(
                    "take s3://, with AWS_ENDPOINT_URL=https://storage.googleapis.com and an HMAC key of Google's storage",
                );
            }
            _ => return refused("data are read from s3://, https:// and http://"),
        };
        Ok(Address { place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: an address that was none was quoted with its line breaks.
    #[test]
    fn an_address_of_two_lines_is_refused_in_one() {
        let error = Address::parse("a\nb").unwrap_err().to_string();
        assert_eq!(error, "a b: it is no address: s3://bucket/key or https://host/path");
    }

    #[test]
    fn addresses() {
        let s3 = |bucket: &str, key: &str| Ok(Place::S3 { bucket: bucket.to_owned(), key: key.to_owned() });
        let check = |text: &str, expected: Result<Place, &str>| {
            let found = Address::parse(text).map(|address| address.place).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{text}");
        };
        check("s3://data/train.pack", s3("data", "train.pack"));
        check("s3://data/a/b c.tar", s3("data", "a/b c.tar"));
        check("s3://data/shards/", s3("data", "shards"));
        check("s3://data", s3("data", ""));
        check("https://host/a/b.tar", Ok(Place::Http));
        check("http://127.0.0.1:8000/a", Ok(Place::Http));
        let bucket = "its bucket has no valid name: letters, digits, hyphens and single dots";
        check("s3://a b/c", Err(&format!("s3://a b/c: {bucket}")));
        check("s3://a..b/c", Err(&format!("s3://a..b/c: {bucket}")));
        check("s3://.a/c", Err(&format!("s3://.a/c: {bucket}")));
        check("s3:///a", Err("s3:///a: it names no server or bucket"));
        check("https://host", Err("https://host/: it names a server, and no file on it"));
        let secret = "since a run records it";
        check(
            "https://u:p@host/a",
            Err(&format!("https://host/a: an address may not have a user or a password, {secret}")),
        );
        check(
            "https://host/a?sig=x",
            Err(&format!("https://host/a: an address may not have a query (?) or a fragment (#), {secret}")),
        );
        check("ftp://host/a", Err("ftp://host/a: data are read from s3://, https:// and http://"));
    }

    #[test]
    fn paths_are_no_addresses() {
        let check = |text: &str, expected: bool| assert_eq!(is_remote(Path::new(text)), expected, "{text}");
        check("s3://a/b", true);
        check("https://a/b", true);
        check("gs://a", true);
        check("photos", false);
        check("/data/a://b", false);
        check("c://b", false);
        check("://b", false);
    }
}
