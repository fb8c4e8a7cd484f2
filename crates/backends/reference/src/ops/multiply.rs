//! The product of two tensors, of which the second may have one factor for each channel.

use enmasse_graph::ops::{Multiply, MultiplyReduce};

/// The index of an element's factor among `factors` `[groups, channels]`, where groups are equal parts of all elements.
fn factor(element: usize, elements: usize, factors: usize, channels: usize) -> usize {
    let group = elements / (factors / channels);
    element / group * channels + element % channels
}

/// `a * b`, where `b` is as large as `a`, or has a factor for each of `channels` of equal parts of `a`.
pub fn multiply(a: &[f64], b: &[f64], channels: usize) -> Vec<f64> {
    a.iter().enumerate().map(|(i, value)| value * b[factor(i, a.len(), b.len(), channels)]).collect()
}

each_shard!(Multiply, |_, call, [a, b]| vec![multiply(a, b, call.last(0))]);

/// The gradient of `factors` factors: sums of `dy * a`.
pub fn reduce(dy: &[f64], a: &[f64], factors: usize, channels: usize) -> Vec<f64> {
    let mut db = vec![0.0; factors];
    for (i, (dy, value)) in dy.iter().zip(a).enumerate() {
        db[factor(i, a.len(), factors, channels)] += dy * value;
    }
    db
}

each_shard!(MultiplyReduce, |_, call, [dy, a]| vec![reduce(dy, a, call.result_elements(0), call.last(0))]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_by_hand() {
        assert_eq!(multiply(&[3.0, 2.0], &[10.0, -0.5], 2), [30.0, -1.0]);
        // Two samples of two rows and two channels.
        let a = [1., 2., 3., 4., 5., 6., 7., 8.];
        let dy = [1., 10., 1., 10., 100., 1., 100., 1.];
        assert_eq!(multiply(&a, &[2.0, 0.5], 2), [2., 1., 6., 2., 10., 3., 14., 4.]);
        assert_eq!(multiply(&a, &[2.0, 0.5, 1.0, -1.0], 2), [2., 1., 6., 2., 5., -6., 7., -8.]);
        assert_eq!(reduce(&dy, &a, 2, 2), [1204.0, 74.0]);
        assert_eq!(reduce(&dy, &a, 4, 2), [4.0, 60.0, 1200.0, 14.0]);
    }
}
