//! Values that requests can be made of. `object_store` panics on others.

use ureq::http::Uri;
use url::Url;

use crate::RemoteError;

/// Refuses the value of a variable or of a profile that would make no valid request. A secret is not shown.
pub(super) fn check(name: &str, value: &str) -> Result<(), RemoteError> {
    let refused = |problem: &str| Err(RemoteError::Setting(format!("{name}: {problem}")));
    if !value.bytes().all(|letter| letter.is_ascii_graphic()) {
        return refused("it has a space, a line break or a letter that is not ASCII");
    }
    if name.ends_with("REGION") && !value.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'-') {
        return refused("it is no name of a region, such as eu-west-1");
    }
    let names_path = name == "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
    let address = match name {
        _ if names_path && value.starts_with('/') => format!("http://host{value}"),
        _ if names_path || name.contains("ENDPOINT") || name.ends_with("FULL_URI") => value.to_owned(),
        _ => return Ok(()),
    };
    let is_http = Url::parse(&address).is_ok_and(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
    match is_http && address.parse::<Uri>().is_ok() {
        true => Ok(()),
        false if names_path => refused("it is no path, which begins with a slash"),
        false => refused("it is no address, such as https://host or http://127.0.0.1:9000"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let test = |name: &str, value: &str, expected: &str| {
            let found = check(name, value).map_err(|error| error.to_string());
            let expected = if expected.is_empty() { Ok(()) } else { Err(format!("{name}: {expected}")) };
            assert_eq!(found, expected, "{value}");
        };
        let address = "it is no address, such as https://host or http://127.0.0.1:9000";
        test("AWS_ENDPOINT_URL", "http://127.0.0.1:9000", "");
        test("AWS_ENDPOINT_URL_S3", "https://storage.example/below", "");
        for value in ["nonsense", "host:9000", "ftp://host", "http://", "http://host:99999", "http://1.2.3.4.5", "/a"] {
            test("AWS_ENDPOINT_URL", value, address);
        }
        test("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials", "");
        test("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "a", "it is no path, which begins with a slash");
        test("AWS_REGION", "eu-west-1", "");
        test("AWS_DEFAULT_REGION", "eu.west/1", "it is no name of a region, such as eu-west-1");
        test("AWS_SECRET_ACCESS_KEY", "a/b+c=", "");
        let space = "it has a space, a line break or a letter that is not ASCII";
        test("AWS_SECRET_ACCESS_KEY", "a\n", space);
        test("AWS_SESSION_TOKEN", "é", space);
    }
}
