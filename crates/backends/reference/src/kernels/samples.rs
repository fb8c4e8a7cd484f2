//! Functions of logits and labels, sample by sample. A label below 0 marks a place without a sample.

use std::cmp::Ordering;

/// `[N,K]`: 1 at the label, 0 elsewhere. Of mixtures, which have other labels and lambdas, the share at the label plus the rest
/// at the other one.
pub fn targets(labels: &[f64], mixture: Option<[&[f64]; 2]>, classes: usize) -> Vec<f64> {
    let of_sample = |(sample, &label): (usize, &f64)| {
        let (other, share) = mixture.map_or((label, 1.0), |[others, lambdas]| (others[sample], lambdas[sample]));
        let at = |class: usize, label: f64| f64::from(u8::from(class as f64 == label));
        let target = move |class| at(class, label) * share + at(class, other) * (1.0 - share);
        (0..classes).map(move |class| if label < 0.0 { 0.0 } else { target(class) })
    };
    labels.iter().enumerate().flat_map(of_sample).collect()
}

/// 1 for each sample whose label is among the `k` largest logits, else 0. The first of equal logits counts as the
/// largest, and NaN logits are ignored.
pub fn top_k_correct(logits: &[f64], labels: &[f64], classes: usize, k: usize) -> Vec<f64> {
    let is_top_k_correct = |(row, &label): (&[f64], &f64)| {
        let mut order: Vec<usize> = (0..classes).filter(|&class| !row[class].is_nan()).collect();
        // A stable sort keeps equal logits in the order of classes.
        order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap_or(Ordering::Equal));
        order.iter().take(k).any(|&class| class as f64 == label)
    };
    logits.chunks(classes).zip(labels).map(|sample| f64::from(u8::from(is_top_k_correct(sample)))).collect()
}

/// The sum over samples, times `scale`.
pub fn sample_sum(values: &[f64], labels: &[f64], scale: f32) -> f64 {
    let samples = values.iter().zip(labels).filter(|(_, label)| **label >= 0.0);
    f64::from(scale) * samples.fold(0.0, |sum, (value, _)| sum + value)
}

/// The gradient of each value in [`sample_sum`].
pub fn sample_sum_backward(labels: &[f64], scale: f32) -> Vec<f64> {
    labels.iter().map(|&label| if label >= 0.0 { scale.into() } else { 0.0 }).collect()
}

/// x, with zeros where there is no sample.
pub fn mask(x: &[f64], labels: &[f64], classes: usize) -> Vec<f64> {
    let row = |(row, &label): (&[f64], &f64)| if label >= 0.0 { row.to_vec() } else { vec![0.0; classes] };
    x.chunks(classes).zip(labels).flat_map(row).collect()
}

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

/// `dy - exp(y) * sum of dy` of each row.
pub fn log_softmax_backward(dy: &[f64], y: &[f64], classes: usize) -> Vec<f64> {
    let row = |(dy, y): (&[f64], &[f64])| {
        let sum: f64 = dy.iter().sum();
        dy.iter().zip(y).map(|(dy, y)| dy - y.exp() * sum).collect::<Vec<_>>()
    };
    dy.chunks(classes).zip(y.chunks(classes)).flat_map(row).collect()
}

/// Each class times its factor.
pub fn scale_classes(x: &[f64], factors: &[f32]) -> Vec<f64> {
    x.iter().zip(factors.iter().cycle()).map(|(x, &factor)| x * f64::from(factor)).collect()
}

/// `[N,K]` to `[N]`: the sum over classes.
pub fn sum_classes(x: &[f64], classes: usize) -> Vec<f64> {
    x.chunks(classes).map(|row| row.iter().sum()).collect()
}

/// `[N]` to `[N,K]`: the sample's gradient at every class.
pub fn sum_classes_backward(dy: &[f64], classes: usize) -> Vec<f64> {
    dy.iter().flat_map(|&dy| std::iter::repeat_n(dy, classes)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_close;
    use super::*;

    #[test]
    fn targets_by_hand() {
        assert_eq!(targets(&[2.0, -1.0, 0.0], None, 3), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let mixture = [&[1.0, 1.0, 0.0][..], &[0.75, 0.5, 0.25]];
        assert_eq!(targets(&[2.0, -1.0, 0.0], Some(mixture), 3), [0.0, 0.25, 0.75, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn hits_by_hand() {
        const NAN: f64 = f64::NAN;
        let check = |row: [f64; 4], label: f64, expected: [f64; 4]| {
            let found: Vec<f64> = (1..=4).flat_map(|k| top_k_correct(&row, &[label], 4, k)).collect();
            assert_eq!(found, expected, "{row:?} {label}");
        };
        check([3.0, 1.0, 4.0, 2.0], 2.0, [1.0, 1.0, 1.0, 1.0]);
        check([3.0, 1.0, 4.0, 2.0], 0.0, [0.0, 1.0, 1.0, 1.0]);
        check([3.0, 1.0, 4.0, 2.0], 1.0, [0.0, 0.0, 0.0, 1.0]);
        // The first of equal logits counts as the largest.
        check([0.0, 5.0, 5.0, 5.0], 1.0, [1.0, 1.0, 1.0, 1.0]);
        check([0.0, 5.0, 5.0, 5.0], 3.0, [0.0, 0.0, 1.0, 1.0]);
        check([-0.0, 0.0, -1.0, -2.0], 0.0, [1.0; 4]);
        check([f64::NEG_INFINITY; 4], 1.0, [0.0, 1.0, 1.0, 1.0]);
        check([NAN, 5.0, 6.0, NAN], 1.0, [0.0, 1.0, 1.0, 1.0]);
        check([NAN, 5.0, 6.0, NAN], 0.0, [0.0; 4]);
        check([3.0, 1.0, 4.0, 2.0], -1.0, [0.0; 4]);
    }

    #[test]
    fn rows_by_hand() {
        assert_eq!(mask(&[1.0, 2.0, f64::NAN, 4.0], &[1.0, -1.0], 2), [1.0, 2.0, 0.0, 0.0]);
        assert_eq!(scale_classes(&[1.0, 2.0, 3.0, 4.0], &[0.5, -2.0]), [0.5, -4.0, 1.5, -8.0]);
        let logs = |weights: [f64; 3]| weights.map(f64::ln);
        let y = logs([0.125, 0.25, 0.625]);
        assert_close(&log_softmax(&logs([1.0, 2.0, 5.0]), 3), &y);
        assert_close(&log_softmax(&[1000.0, 1000.0], 2), &[0.5f64.ln(); 2]);
        // The gradient of -log p at the last class is p minus the target.
        assert_close(&log_softmax_backward(&[0.0, 0.0, -1.0], &y, 3), &[0.125, 0.25, -0.375]);
        assert_close(&log_softmax_backward(&[2.0, 0.0, 2.0], &y, 3), &[1.5, -1.0, -0.5]);
    }

    #[test]
    fn sums_by_hand() {
        assert_eq!(sample_sum(&[1.0, f64::NAN, 4.0], &[0.0, -1.0, 9.0], 0.5), 2.5);
        assert_eq!(sample_sum(&[1.0], &[-1.0], 1.0).to_bits(), 0.0f64.to_bits());
        assert_eq!(sample_sum_backward(&[0.0, -1.0, 9.0], 0.5), [0.5, 0.0, 0.5]);
        assert_eq!(sum_classes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [6.0, 15.0]);
        assert_eq!(sum_classes_backward(&[1.0, 2.0], 3), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    }
}
