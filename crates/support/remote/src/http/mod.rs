//! Requests over HTTP and HTTPS, whose every wait has a limit, and words for what goes wrong.
//!
//! What is requested, and what an answer means, is up to the callers: archives of known data sets, and parts
//! of objects.

mod client;
mod fault;
mod headers;
mod trust;

pub(crate) use client::{Client, Redirects};
pub(crate) use headers::{number, range};
pub(crate) use trust::authorities;
