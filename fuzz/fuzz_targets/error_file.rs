//! Error files, and tracebacks in the last lines of a program.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enmasse_launch::fuzzing::error_file(bytes));
