//! Dropout and drop path, whose mask is a function of only (seed, layer, epoch, sample index, element).

use enmasse_device::DeviceError;
use enmasse_graph::ops::Dropout;
use enmasse_tensor::RandomStream;
use enmasse_tensor::random::unit_f32;

use super::{OnReference, StepContext};

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

/// All elements of the sample with index i are multiplied by the factor that [`dropout`] has for its first one.
pub fn drop_path(x: &[f64], sample_indices: &[f64], probability: f32, seed: u64, layer: &str, epoch: u64) -> Vec<f64> {
    let elements = (x.len() / sample_indices.len().max(1)).max(1);
    let factors = dropout(&vec![1.0; sample_indices.len()], sample_indices, probability, seed, layer, epoch);
    x.iter()
        .enumerate()
        .map(|(at, x)| if factors[at / elements] > 0.0 { x * factors[at / elements] } else { 0.0 })
        .collect()
}

impl OnReference for Dropout {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let part = match self.cut_channels {
            Some(channels) => Some((channels, step.exchange.groups.parts()?.rank())),
            None => None,
        };
        step.each_shard(|call, [x, indices]| {
            let Dropout { probability, seed, ref layer, per_sample, .. } = *self;
            let compute = if per_sample { drop_path } else { dropout };
            let compute = |x: &[f64]| compute(x, indices, probability, seed, layer, call.step.epoch);
            Ok(vec![match part {
                None => compute(x),
                // As the whole rows of all ranks have it.
                Some((channels, rank)) => {
                    let own = call.last(0);
                    let mut whole = vec![0.0; x.len() / own * channels];
                    let rows = whole.chunks_mut(channels).zip(x.chunks(own));
                    rows.for_each(|(row, x)| row[rank * own..(rank + 1) * own].copy_from_slice(x));
                    let rows = compute(&whole);
                    rows.chunks(channels).flat_map(|row| &row[rank * own..(rank + 1) * own]).copied().collect()
                }
            }])
        })
    }
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::random::{key, philox};

    use super::*;

    #[test]
    fn the_mask_is_word_e_of_the_samples_stream() {
        let seed = 9;
        let layer = "classifier.1";
        let epoch = 4;
        let indices = [7.0, 5_000_000_000.0];
        let x: Vec<f64> = (1..=12).map(f64::from).collect();
        let y = dropout(&x, &indices, 0.25, seed, layer, epoch);
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            let sample = indices[i / 6] as u64;
            let element = i % 6;
            let counter = [element as u32 / 4, epoch as u32, sample as u32, (sample >> 32) as u32];
            let word = philox(key(seed, "dropout classifier.1"), counter)[element % 4];
            let expected = if unit_f32(word) >= 0.25 { x / 0.75 } else { 0.0 };
            assert!((y - expected).abs() < 1e-12, "element {i}: {y} is not {expected}");
        }
    }

    #[test]
    fn drop_path_keeps_or_drops_whole_samples() {
        let indices: Vec<f64> = (0..2000).map(f64::from).collect();
        let x: Vec<f64> = (1..=6000).map(f64::from).collect();
        let y = drop_path(&x, &indices, 0.25, 9, "block", 4);
        for (sample, (x, y)) in x.chunks(3).zip(y.chunks(3)).enumerate() {
            let word = philox(key(9, "dropout block"), [0, 4, sample as u32, 0])[0];
            let expected = if unit_f32(word) >= 0.25 { x.iter().map(|x| x / 0.75).collect() } else { vec![0.0; 3] };
            let error: f64 = y.iter().zip(&expected).map(|(y, expected)| (y - expected).abs()).sum();
            assert!(error < 1e-9, "sample {sample}: {y:?} is not {expected:?}");
        }
        let dropped = y.chunks(3).filter(|y| y.iter().all(|&y| y == 0.0)).count();
        assert!(dropped.abs_diff(500) < 80, "{dropped}");
        // An infinite value of a dropped sample leaves no NaN.
        assert!(drop_path(&[f64::INFINITY; 2000], &indices, 0.25, 9, "block", 4).iter().all(|y| !y.is_nan()));
    }

    #[test]
    fn drops_about_the_probability_and_keeps_the_mean() {
        let y = dropout(&[1.0; 20_000], &[3.0], 0.3, 1, "fc", 0);
        let dropped = y.iter().filter(|&&y| y == 0.0).count();
        assert!(dropped.abs_diff(6_000) < 300, "{dropped}");
        assert_eq!(dropout(&[1.0, -2.0], &[3.0], 0.0, 1, "fc", 0), [1.0, -2.0]);
    }
}
