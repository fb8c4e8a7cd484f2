//! Heartbeats and causes of a control connection.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_comm::fuzzing::control(bytes));
