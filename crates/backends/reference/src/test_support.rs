//! What tests of several operations share.

use enmasse_graph::Window;

/// An image of one channel and its shape, and that of the results of pooling it.
pub const NINE: [f64; 9] = [1., 9., 3., 4., 5., 6., 7., 8., 2.];
pub const THREE: [usize; 4] = [1, 3, 3, 1];
pub const TWO: [usize; 4] = [1, 2, 2, 1];

/// A window that is the same in both directions.
pub fn window(kernel: usize, stride: usize, padding: usize, dilation: usize) -> Window {
    Window { kernel: [kernel; 2], stride: [stride; 2], padding: [[padding; 2]; 2], dilation: [dilation; 2] }
}

/// Checks that two tables agree to twelve digits, the accuracy that decimals computed by hand can guarantee.
pub fn assert_close(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{actual:?}");
    for (a, b) in actual.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{actual:?} is not {expected:?}");
    }
}
