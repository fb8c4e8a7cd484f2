//! Requests over HTTP and HTTPS, whose every wait has a limit, and words for what goes wrong.
//!
//! What is requested, and what an answer means, is up to the crates that use this one: archives of known data sets in
//! `fetch`, parts of objects in `remote`.

mod client;
mod fault;
mod headers;
mod trust;

pub use client::{Client, Redirects};
pub use fault::Fault;
pub use headers::{number, range};
pub use trust::{Authorities, authorities};
pub use ureq::http;
pub use ureq::{AsSendBody, Body};
