//! A rank's log.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_doctor::fuzzing::log(bytes));
