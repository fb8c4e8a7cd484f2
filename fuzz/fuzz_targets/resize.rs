//! Any dimensions of an image, of a crop and of the result.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_image::fuzzing::resize(bytes));
