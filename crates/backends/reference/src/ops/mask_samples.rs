//! Zeros where there is no sample. A label below 0 marks such a place.

use enmasse_graph::ops::MaskSamples;

/// x, with zeros where there is no sample.
pub fn mask(x: &[f64], labels: &[f64], classes: usize) -> Vec<f64> {
    let row = |(row, &label): (&[f64], &f64)| if label >= 0.0 { row.to_vec() } else { vec![0.0; classes] };
    x.chunks(classes).zip(labels).flat_map(row).collect()
}

each_shard!(MaskSamples, |_, call, [x, labels]| vec![mask(x, labels, call.last(0))]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_by_hand() {
        assert_eq!(mask(&[1.0, 2.0, f64::NAN, 4.0], &[1.0, -1.0], 2), [1.0, 2.0, 0.0, 0.0]);
    }
}
