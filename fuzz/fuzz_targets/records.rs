//! Records of a failure and of operations.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_doctor::fuzzing::records(bytes));
