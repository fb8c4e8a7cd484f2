//! Every operation as its mathematical definition, in f64.
//!
//! Activations are dense `[batch, height, width, channels]`, convolution weights in the order that the plan says, linear
//! weights `[inputs, outputs]`. Integers are held as f64 too, which is exact for every byte, label and sample index
//! below 2^53. Slices must have the sizes that the shapes given say.

pub mod activation;
pub mod batch_norm;
pub mod conv2d;
pub mod dropout;
pub mod function;
pub mod image;
pub mod linear;
pub mod loss;
pub mod pool;
pub mod samples;
pub mod tree;
pub mod update;
pub mod window;

/// Checks that two tables agree to twelve digits: what a hand computation written as decimals can promise.
#[cfg(test)]
fn assert_close(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{actual:?}");
    for (a, b) in actual.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{actual:?} is not {expected:?}");
    }
}
