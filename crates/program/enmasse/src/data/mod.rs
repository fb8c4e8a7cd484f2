//! The data of a command: where those of a saved run are, copies of them, and stand-ins for none.

pub mod of_run;
pub mod sample;
pub mod staging;
pub mod stand_in;

use enmasse_remote::fetch::Fetcher;

/// What fetches files, with the certificates of the variable of OpenSSL, curl and Go.
pub fn fetcher() -> Fetcher {
    match std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        Some(trusted) => Fetcher::default().trust(trusted.into()),
        None => Fetcher::default(),
    }
}
