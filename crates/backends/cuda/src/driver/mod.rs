//! The driver, safe to use: contexts, memory, streams, events, kernels and graphs, each freed by its owner.
//!
//! A call that fails gives the driver's own words. Every object holds its context, which is made current on the calling
//! thread before each call: any thread may use any object.

mod context;
mod functions;
mod graph;
mod memory;
mod module;
mod object;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use context::{Context, Found, Properties};
pub(crate) use functions::Functions;
pub(crate) use graph::Graph;
pub(crate) use memory::{Buffer, PinnedMemory};
pub(crate) use module::{Binary, Function, Module};
pub(crate) use stream::{Event, Stream, Timestamp};
