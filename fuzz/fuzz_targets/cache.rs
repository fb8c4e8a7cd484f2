//! The files of the cache of data on servers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_remote::fuzzing::cache(bytes, enmasse_fuzz::folder()));
