//! A classifier from the metadata of a checkpoint.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_train::fuzzing::classifier(bytes));
