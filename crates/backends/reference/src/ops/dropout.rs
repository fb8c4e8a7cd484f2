//! Dropout, whose mask is a function of only (seed, layer, epoch, sample index, element).

use enmasse_graph::ops::Dropout;
use enmasse_tensor::RandomStream;
use enmasse_tensor::random::unit_f32;

/// Element e of the sample with index i is multiplied by `1 / (1 - probability)` if random word e of the stream (seed,
/// `"dropout LAYER"`, epoch, i) is at least `probability`. Otherwise it becomes 0. The function is its own gradient.
///
/// `sample_indices` has one index per sample; `x` consists of one equal piece per sample.
pub fn dropout(x: &[f64], sample_indices: &[f64], probability: f32, seed: u64, layer: &str, epoch: u64) -> Vec<f64> {
    let purpose = format!("dropout {layer}");
    let factor = 1.0 / (1.0 - f64::from(probability));
    let elements = (x.len() / sample_indices.len().max(1)).max(1);
    let mut y = Vec::with_capacity(x.len());
    for (sample, &index) in x.chunks(elements).zip(sample_indices) {
        let mut stream = RandomStream::new(seed, &purpose, epoch, index as u64);
        y.extend(sample.iter().map(|x| if unit_f32(stream.next_u32()) >= probability { x * factor } else { 0.0 }));
    }
    y
}

each_shard!(Dropout, |Dropout { probability, seed, layer }, call, [x, indices]| {
    vec![dropout(x, indices, *probability, *seed, layer, call.step.epoch)]
});

#[cfg(test)]
mod tests {
    use enmasse_tensor::random::{key, philox};

    use super::*;

    #[test]
    fn the_mask_is_word_e_of_the_samples_stream() {
        let (seed, layer, epoch, indices) = (9, "classifier.1", 4, [7.0, 5_000_000_000.0]);
        let x: Vec<f64> = (1..=12).map(f64::from).collect();
        let y = dropout(&x, &indices, 0.25, seed, layer, epoch);
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            let (sample, element) = (indices[i / 6] as u64, i % 6);
            let counter = [element as u32 / 4, epoch as u32, sample as u32, (sample >> 32) as u32];
            let word = philox(key(seed, "dropout classifier.1"), counter)[element % 4];
            let expected = if unit_f32(word) >= 0.25 { x / 0.75 } else { 0.0 };
            assert!((y - expected).abs() < 1e-12, "element {i}: {y} is not {expected}");
        }
    }

    #[test]
    fn drops_about_the_probability_and_keeps_the_mean() {
        let y = dropout(&[1.0; 20_000], &[3.0], 0.3, 1, "fc", 0);
        let dropped = y.iter().filter(|&&y| y == 0.0).count();
        assert!(dropped.abs_diff(6_000) < 300, "{dropped}");
        assert_eq!(dropout(&[1.0, -2.0], &[3.0], 0.0, 1, "fc", 0), [1.0, -2.0]);
    }
}
