//! A run's lists of algorithms and of unreadable images.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_train::fuzzing::lists(bytes));
