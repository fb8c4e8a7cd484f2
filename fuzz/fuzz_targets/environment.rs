//! Launchers' variables.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_launch::fuzzing::environment(bytes));
