//! Both sides of a handshake with a stranger.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_comm::fuzzing::handshake(bytes));
