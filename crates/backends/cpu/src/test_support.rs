//! Helpers that the kernel tests share.

use enmasse_tensor::RandomStream;

use crate::isa::Isa;

/// The levels of this machine, including emulated ones.
pub(crate) fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.runs())
}

/// `n` values in -1..1, a function of `key`.
pub(crate) fn noise(key: u64, n: usize) -> Vec<f32> {
    let mut stream = RandomStream::new(0, "test", 0, key);
    (0..n).map(|_| stream.uniform(-1.0, 1.0) as f32).collect()
}

/// Asserts that `found` is near `expected`, relative to the largest expected value.
#[track_caller]
pub(crate) fn assert_near(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-30f64, |m, v| m.max(v.abs()));
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*a) - b).abs() <= tolerance * scale, "{what} [{i}]: {a} instead of {b}");
    }
}
