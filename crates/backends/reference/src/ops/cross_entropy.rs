//! Cross-entropy with label smoothing, and its gradient. A label below 0 marks a place without a sample.

use enmasse_graph::ops;

use super::targets::targets_of;

/// Probabilities `[N,K]`, the scaled sum of losses, and the number of hits.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Softmax of each row of logits.
    pub probabilities: Vec<f64>,
    /// Sum over samples of the cross-entropy, times `scale`.
    pub loss: f64,
    /// Number of samples whose largest logit, the first of equals, is at the label.
    pub correct: f64,
}

/// A target, smoothed: `1 - smoothing + smoothing / K` instead of 1, `smoothing / K` instead of 0.
fn smoothed(target: f64, classes: usize, smoothing: f32) -> f64 {
    let smoothing = f64::from(smoothing);
    smoothing / classes as f64 + target * (1.0 - smoothing)
}

/// The cross-entropy of every row of `classes` logits against its row of `targets`, which are smoothed.
pub fn cross_entropy(
    logits: &[f64],
    labels: &[f64],
    targets: &[f64],
    classes: usize,
    scale: f32,
    smoothing: f32,
) -> CrossEntropy {
    let mut result = CrossEntropy { probabilities: Vec::with_capacity(logits.len()), loss: 0.0, correct: 0.0 };
    for ((row, &label), targets) in logits.chunks(classes).zip(labels).zip(targets.chunks(classes)) {
        // Subtracting the largest logit changes only the range of the exponentials.
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = largest + row.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
        result.probabilities.extend(row.iter().map(|logit| (logit - log_sum).exp()));
        if label >= 0.0 {
            // A class with target 0 adds nothing, even if its logit is minus infinity.
            let cross = |(logit, &target): (&f64, &f64)| match smoothed(target, classes, smoothing) {
                0.0 => 0.0,
                target => target * (log_sum - logit),
            };
            result.loss += f64::from(scale) * row.iter().zip(targets).map(cross).sum::<f64>();
            let first = row.iter().position(|&logit| logit == largest);
            result.correct += if first == Some(label as usize) { 1.0 } else { 0.0 };
        }
    }
    result
}

each_shard!(ops::CrossEntropy, |&ops::CrossEntropy { scale, smoothing }, call, [logits, labels]| {
    let classes = call.last(0);
    let targets = targets_of(call, labels, call.last(0))?;
    let result = cross_entropy(logits, labels, &targets, classes, scale, smoothing);
    vec![result.probabilities, vec![result.loss], vec![result.correct]]
});

/// `scale * (probability - target)`, and 0 where there is no sample.
pub fn cross_entropy_backward(
    probabilities: &[f64],
    labels: &[f64],
    targets: &[f64],
    classes: usize,
    scale: f32,
    smoothing: f32,
) -> Vec<f64> {
    let element = |(at, (probability, &target)): (usize, (&f64, &f64))| match labels[at / classes] {
        label if label < 0.0 => 0.0,
        _ => f64::from(scale) * (probability - smoothed(target, classes, smoothing)),
    };
    probabilities.iter().zip(targets).enumerate().map(element).collect()
}

each_shard!(ops::CrossEntropyBackward, |ops::CrossEntropyBackward(op), call, [probabilities, labels]| {
    let classes = call.last(0);
    let targets = targets_of(call, labels, call.last(0))?;
    vec![cross_entropy_backward(probabilities, labels, &targets, classes, op.scale, op.smoothing)]
});

#[cfg(test)]
mod tests {
    use super::super::targets::targets;
    use super::*;
    use crate::test_support::assert_close;

    /// Logits whose softmax is 1/8, 2/8, 5/8 and 1/2, 1/4, 1/4.
    fn logits() -> Vec<f64> {
        let row = |weights: [f64; 3], offset: f64| weights.map(|w| w.ln() + offset);
        [row([1., 2., 5.], 0.0), row([2., 1., 1.], 0.0)].concat()
    }

    #[test]
    fn forward_by_hand() {
        let check = |labels: &[f64], scale, smoothing, loss: f64, correct: f64| {
            let result = cross_entropy(&logits(), labels, &targets(labels, None, 3), 3, scale, smoothing);
            assert_close(&result.probabilities, &[0.125, 0.25, 0.625, 0.5, 0.25, 0.25]);
            assert_close(&[result.loss, result.correct], &[loss, correct]);
        };
        check(&[2.0, 0.0], 1.0, 0.0, -(0.625f64.ln() + 0.5f64.ln()), 2.0);
        check(&[1.0, 0.0], 0.5, 0.0, -0.5 * (0.25f64.ln() + 0.5f64.ln()), 1.0);
        check(&[-1.0, 0.0], 1.0, 0.0, -(0.5f64.ln()), 1.0);
        check(&[-1.0, -1.0], 1.0, 0.0, 0.0, 0.0);
        // Smoothing 0.75 of three classes: 0.5 at the label, 0.25 elsewhere.
        let smoothed = -(0.25 * 0.125f64.ln() + 0.25 * 0.25f64.ln() + 0.5 * 0.625f64.ln());
        check(&[2.0, -1.0], 1.0, 0.75, smoothed, 1.0);
    }

    #[test]
    fn large_logits_and_ties() {
        let of_two =
            |logits: &[f64], labels: &[f64]| cross_entropy(logits, labels, &targets(labels, None, 2), 2, 1.0, 0.0);
        let result = of_two(&[1000.0, 1000.0, -1000.0, 0.0], &[0.0, 1.0]);
        assert_close(&result.probabilities, &[0.5, 0.5, 0.0, 1.0]);
        assert_close(&[result.loss], &[2f64.ln()]);
        // The tie goes to class 0.
        assert_eq!(result.correct, 2.0);
        assert_eq!(of_two(&[3.0, 3.0], &[1.0]).correct, 0.0);
        assert_eq!(of_two(&[f64::NEG_INFINITY, 0.0], &[1.0]).loss, 0.0);
        assert!(of_two(&[f64::NAN, 0.0], &[0.0]).loss.is_nan());
    }

    #[test]
    fn gradient_by_hand() {
        let probabilities = [0.125, 0.25, 0.625, 0.5, 0.25, 0.25];
        let check = |labels: &[f64], scale, smoothing, expected: &[f64]| {
            let targets = targets(labels, None, 3);
            assert_close(&cross_entropy_backward(&probabilities, labels, &targets, 3, scale, smoothing), expected);
        };
        check(&[2.0, 0.0], 1.0, 0.0, &[0.125, 0.25, -0.375, -0.5, 0.25, 0.25]);
        check(&[2.0, -1.0], 0.5, 0.0, &[0.0625, 0.125, -0.1875, 0.0, 0.0, 0.0]);
        check(&[2.0, -1.0], 1.0, 0.75, &[-0.125, 0.0, 0.125, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn mixtures_by_hand() {
        // Three quarters of class 2 and a quarter of class 0; half of each of equal labels.
        let labels = [2.0, 0.0];
        let mixture = Some([&[0.0, 0.0][..], &[0.75, 0.5]]);
        let targets = targets(&labels, mixture, 3);
        let result = cross_entropy(&logits(), &labels, &targets, 3, 1.0, 0.0);
        let loss = -(0.75 * 0.625f64.ln() + 0.25 * 0.125f64.ln() + 0.5f64.ln());
        assert_close(&[result.loss, result.correct], &[loss, 2.0]);
        let gradient = cross_entropy_backward(&result.probabilities, &labels, &targets, 3, 1.0, 0.0);
        assert_close(&gradient, &[-0.125, 0.25, -0.125, -0.5, 0.25, 0.25]);
        // Smoothing 0.75: 0.25 everywhere, and a quarter of the lambdas.
        let gradient = cross_entropy_backward(&result.probabilities, &labels, &targets, 3, 1.0, 0.75);
        assert_close(&gradient, &[-0.1875, 0.0, 0.1875, 0.0, 0.0, 0.0]);
    }
}
