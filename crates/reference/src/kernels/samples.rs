//! Functions of logits and labels, sample by sample. A label below 0 marks no sample.

use std::cmp::Ordering;

/// `[N,K]`: 1 at the label, 0 elsewhere.
pub fn targets(labels: &[f64], classes: usize) -> Vec<f64> {
    let row = |&label: &f64| (0..classes).map(move |class| if class as f64 == label { 1.0 } else { 0.0 });
    labels.iter().flat_map(row).collect()
}

/// 1 for each sample whose label is among so many of the largest logits, the first of equals counting as the largest.
pub fn hits(logits: &[f64], labels: &[f64], classes: usize, among: usize) -> Vec<f64> {
    let is_hit = |(row, &label): (&[f64], &f64)| {
        let mut order: Vec<usize> = (0..classes).filter(|&class| !row[class].is_nan()).collect();
        // Stable, so that equals stay in the order of classes.
        order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap_or(Ordering::Equal));
        order.iter().take(among).any(|&class| class as f64 == label)
    };
    logits.chunks(classes).zip(labels).map(|sample| f64::from(u8::from(is_hit(sample)))).collect()
}

/// The sum over samples, times `scale`.
pub fn sample_sum(values: &[f64], labels: &[f64], scale: f32) -> f64 {
    let samples = values.iter().zip(labels).filter(|(_, label)| **label >= 0.0);
    f64::from(scale) * samples.fold(0.0, |sum, (value, _)| sum + value)
}

/// `[N,K]` to `[N]`: the sum over classes.
pub fn sum_classes(x: &[f64], classes: usize) -> Vec<f64> {
    x.chunks(classes).map(|row| row.iter().sum()).collect()
}

/// `[N]` to `[N,K]`: the same at every class.
pub fn sum_classes_backward(dy: &[f64], classes: usize) -> Vec<f64> {
    dy.iter().flat_map(|&dy| std::iter::repeat_n(dy, classes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_by_hand() {
        assert_eq!(targets(&[2.0, -1.0, 0.0], 3), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn hits_by_hand() {
        const NAN: f64 = f64::NAN;
        let check = |row: [f64; 4], label: f64, expected: [f64; 4]| {
            let found: Vec<f64> = (1..=4).flat_map(|among| hits(&row, &[label], 4, among)).collect();
            assert_eq!(found, expected, "{row:?} {label}");
        };
        check([3.0, 1.0, 4.0, 2.0], 2.0, [1.0, 1.0, 1.0, 1.0]);
        check([3.0, 1.0, 4.0, 2.0], 0.0, [0.0, 1.0, 1.0, 1.0]);
        check([3.0, 1.0, 4.0, 2.0], 1.0, [0.0, 0.0, 0.0, 1.0]);
        // The first of equals is the largest.
        check([0.0, 5.0, 5.0, 5.0], 1.0, [1.0, 1.0, 1.0, 1.0]);
        check([0.0, 5.0, 5.0, 5.0], 3.0, [0.0, 0.0, 1.0, 1.0]);
        check([-0.0, 0.0, -1.0, -2.0], 0.0, [1.0; 4]);
        check([f64::NEG_INFINITY; 4], 1.0, [0.0, 1.0, 1.0, 1.0]);
        check([NAN, 5.0, 6.0, NAN], 1.0, [0.0, 1.0, 1.0, 1.0]);
        check([NAN, 5.0, 6.0, NAN], 0.0, [0.0; 4]);
        check([3.0, 1.0, 4.0, 2.0], -1.0, [0.0; 4]);
    }

    #[test]
    fn sums_by_hand() {
        assert_eq!(sample_sum(&[1.0, f64::NAN, 4.0], &[0.0, -1.0, 9.0], 0.5), 2.5);
        assert_eq!(sample_sum(&[1.0], &[-1.0], 1.0).to_bits(), 0.0f64.to_bits());
        assert_eq!(sum_classes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [6.0, 15.0]);
        assert_eq!(sum_classes_backward(&[1.0, 2.0], 3), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    }
}
