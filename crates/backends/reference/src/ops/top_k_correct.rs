//! Whether the label is among the largest logits.

use std::cmp::Ordering;

use enmasse_graph::ops::TopKCorrect;

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

each_shard!(TopKCorrect, |&TopKCorrect { k }, call, [logits, labels]| {
    vec![top_k_correct(logits, labels, call.last(0), k)]
});

#[cfg(test)]
mod tests {
    use super::*;

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
}
