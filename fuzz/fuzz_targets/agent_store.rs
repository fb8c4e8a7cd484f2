//! Answers of torchrun's store.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_comm::fuzzing::agent_store(bytes));
