//! Records of failures, as ranks send them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_comm::fuzzing::cause(bytes));
