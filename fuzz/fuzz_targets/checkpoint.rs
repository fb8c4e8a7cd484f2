//! The metadata of checkpoints.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_train::fuzzing::checkpoint(bytes));
