//! Requests to rank 0's store, and the notice of its place.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_comm::fuzzing::store(bytes));
