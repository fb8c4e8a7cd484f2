//! HTTP by axum and hyper: connections within limits, and pages for a browser on this machine, which need the token of the printed link.
//!
//! One thread and its runtime hold all connections; what computes an answer runs on blocking threads, of which there are never more
//! than connections. Nothing of an address reaches the file system: a [`Site`] looks its parts up in a table.

mod access;
mod body;
pub mod connections;
mod form;
mod labels;
mod request;
mod response;
mod server;
#[cfg(test)]
mod tests;

pub use body::{Refusal, drain, read_body, refusal};
pub use form::{FormFile, files};
pub use labels::label_value;
pub use request::Request;
pub use response::{Response, Stream};
pub use server::{Server, Site, lower_priority};

/// The header of pages that load their own styles, scripts and images, and nothing else.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// That of images that may hold other people's markup: they are drawn, and nothing in them runs or is fetched.
const IMAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'";
