//! Messages between the agents of an elastic job.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_launch::fuzzing::message(bytes));
