//! One program of tests: it is linked once, and its tests run side by side.

mod algorithms;
#[path = "../cases/mod.rs"]
mod cases;
mod common;
mod compressed;
mod exchanges;
mod rendezvous;
mod shards;
mod split;
mod stalls;
mod threads;
mod transports;
mod watch;
