//! The bytes of a collective operation, changed on the way.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_comm::fuzzing::message(bytes));
