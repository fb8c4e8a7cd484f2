//! Pages for a browser on this machine: a listener on loopback, a token in the printed link, and limits on all that a client sends.
//!
//! A thread per connection answers one request and closes. That is enough for a few people's browsers, and needs no runtime. Heads are
//! parsed by `httparse`. Nothing of an address reaches the file system: a [`Site`] looks its parts up in a table.

mod access;
mod request;
mod response;
mod server;

pub use request::Request;
pub use response::{Response, Stream};
pub use server::{Server, Site, lower_priority};

/// The header of pages that load their own styles, scripts and images, and nothing else.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// That of images that may hold other people's markup: they are drawn, and nothing in them runs or is fetched.
const IMAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'";
