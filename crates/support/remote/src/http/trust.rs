//! Whose certificates are trusted, where these are not Mozilla's authorities.

use std::path::Path;

use enmasse_system::files::read_regular;
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// Limit of a file of certificates, in bytes. A system's usual one has a quarter of a megabyte.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// Authorities that are trusted in the place of Mozilla's.
#[derive(Clone, Debug)]
pub struct Authorities(pub(crate) RootCerts);

/// The authorities whose certificates are in a PEM file. The error is the end of a sentence that begins with the file.
pub fn authorities(path: &Path) -> Result<Authorities, String> {
    let text = read_regular(path, MAX_CERTIFICATES).map_err(|error| error.to_string())?;
    let found: Vec<Certificate> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match found.as_slice() {
        [] => Err("it has no certificates".to_owned()),
        found => Ok(Authorities(RootCerts::new_with_certs(found))),
    }
}
