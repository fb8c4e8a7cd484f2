//! Frames of control messages, of the store and of agents.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_comm::fuzzing::frames(bytes));
