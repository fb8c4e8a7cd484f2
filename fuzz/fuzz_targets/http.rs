//! What a server of data answers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_remote::fuzzing::http(bytes));
