//! Pickles.

#![no_main]

use enmasse_pickle::{Limits, numpy, parse, write};
use test_support::heap::peak_of;

const LIMITS: Limits = Limits { values: 10_000, depth: 64 };
/// What is written has no shared values, and more opcodes.
const AGAIN: Limits = Limits { values: 100_000, depth: 128 };

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (result, peak) = peak_of(|| parse(bytes, &LIMITS));
    assert!(peak <= 1024 + 256 * bytes.len().min(LIMITS.values) + 2 * bytes.len(), "it took {peak} bytes");
    let Ok((value, consumed)) = result else { return };
    assert!(consumed <= bytes.len());
    let _ = numpy::byte_array(&value);
    let written = write(&value);
    let (again, consumed) = parse(&written, &AGAIN).expect("it wrote the pickle itself");
    assert_eq!((write(&again), consumed), (written.clone(), written.len()));
});
