//! The sum over samples. A label below 0 marks a place without a sample.

use enmasse_graph::ops::{SampleSum, SampleSumBackward};

/// The sum over samples, times `scale`.
pub fn sample_sum(values: &[f64], labels: &[f64], scale: f32) -> f64 {
    let samples = values.iter().zip(labels).filter(|(_, label)| **label >= 0.0);
    f64::from(scale) * samples.fold(0.0, |sum, (value, _)| sum + value)
}

each_shard!(SampleSum, |&SampleSum { scale }, _, [values, labels]| vec![vec![sample_sum(values, labels, scale)]]);

/// The gradient of each value in [`sample_sum`].
pub fn sample_sum_backward(labels: &[f64], scale: f32) -> Vec<f64> {
    labels.iter().map(|&label| if label >= 0.0 { scale.into() } else { 0.0 }).collect()
}

each_shard!(SampleSumBackward, |&SampleSumBackward(SampleSum { scale }), _, [labels]| {
    vec![sample_sum_backward(labels, scale)]
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_by_hand() {
        assert_eq!(sample_sum(&[1.0, f64::NAN, 4.0], &[0.0, -1.0, 9.0], 0.5), 2.5);
        assert_eq!(sample_sum(&[1.0], &[-1.0], 1.0).to_bits(), 0.0f64.to_bits());
        assert_eq!(sample_sum_backward(&[0.0, -1.0, 9.0], 0.5), [0.5, 0.0, 0.5]);
    }
}
