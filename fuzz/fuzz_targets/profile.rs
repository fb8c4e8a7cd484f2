//! An address, and the profiles of S3's users.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_remote::fuzzing::profile(bytes, enmasse_fuzz::folder()));
