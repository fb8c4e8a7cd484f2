//! Every operation as its mathematical definition, in f64.
//!
//! Activations are dense `[batch, height, width, channels]`, linear weights `[inputs, outputs]`; convolution weights have the
//! order of the plan. Integers are held as f64 too, which is exact for every byte, every label, and every sample index below
//! 2^53. Slices must have the sizes of the given shapes.

pub mod activation;
pub mod batch_norm;
pub mod conv2d;
pub mod dropout;
pub mod function;
pub mod image;
pub mod linear;
pub mod loss;
pub mod loss_scale;
pub mod pool;
pub mod samples;
pub mod tree;
pub mod update;
pub mod window;

/// Checks that two tables agree to twelve digits, the accuracy that decimals computed by hand can guarantee.
#[cfg(test)]
fn assert_close(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{actual:?}");
    for (a, b) in actual.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{actual:?} is not {expected:?}");
    }
}
