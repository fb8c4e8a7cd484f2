//! The logarithm of the softmax, and its gradient.

use enmasse_graph::ops::{LogSoftmax, LogSoftmaxBackward};

/// The logarithm of the softmax of each row.
pub fn log_softmax(x: &[f64], classes: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        // Subtracting the largest element changes only the range of the exponentials.
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
        row.iter().map(|x| x - log_sum).collect::<Vec<_>>()
    };
    x.chunks(classes).flat_map(row).collect()
}

each_shard!(LogSoftmax, |_, call, [x]| vec![log_softmax(x, call.last(0))]);

/// `dy - exp(y) * sum of dy` of each row.
pub fn log_softmax_backward(dy: &[f64], y: &[f64], classes: usize) -> Vec<f64> {
    let row = |(dy, y): (&[f64], &[f64])| {
        let sum: f64 = dy.iter().sum();
        dy.iter().zip(y).map(|(dy, y)| dy - y.exp() * sum).collect::<Vec<_>>()
    };
    dy.chunks(classes).zip(y.chunks(classes)).flat_map(row).collect()
}

each_shard!(LogSoftmaxBackward, |_, call, [dy, y]| vec![log_softmax_backward(dy, y, call.last(0))]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::assert_close;

    #[test]
    fn rows_by_hand() {
        let logs = |weights: [f64; 3]| weights.map(f64::ln);
        let y = logs([0.125, 0.25, 0.625]);
        assert_close(&log_softmax(&logs([1.0, 2.0, 5.0]), 3), &y);
        assert_close(&log_softmax(&[1000.0, 1000.0], 2), &[0.5f64.ln(); 2]);
        // The gradient of -log p at the last class is p minus the target.
        assert_close(&log_softmax_backward(&[0.0, 0.0, -1.0], &y, 3), &[0.125, 0.25, -0.375]);
        assert_close(&log_softmax_backward(&[2.0, 0.0, 2.0], &y, 3), &[1.5, -1.0, -0.5]);
    }
}
