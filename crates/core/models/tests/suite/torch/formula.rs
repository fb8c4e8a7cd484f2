//! Weights, images and labels of the fixtures, and the form in which they store large tensors: `fixtures/make.py` in
//! Rust.

use enmasse_tensor::RandomStream;

/// Number of values in a sketch.
const SKETCH: usize = 512;

/// The first `count` random words for a purpose.
fn words(seed: u64, purpose: &str, count: usize) -> impl Iterator<Item = u32> {
    let mut stream = RandomStream::new(seed, purpose, 0, 0);
    (0..count).map(move |_| stream.next_u32())
}

/// The initial values of a parameter or buffer of PyTorch's `shape`, in its order. Biases of batch norms lie around
/// `centres`.
pub fn initial(seed: u64, name: &str, shape: &[usize], centres: Option<[f64; 2]>) -> Vec<f64> {
    let (layer, suffix) = name.rsplit_once('.').unwrap_or(("", name));
    let value = |random: f64| match suffix {
        _ if shape.len() > 1 => (6.0 / shape[1..].iter().product::<usize>() as f64).sqrt() * random,
        "weight" if layer.ends_with("bn3") => (1.0 + 0.25 * random) * 0.25,
        "weight" | "running_var" => 1.0 + 0.25 * random,
        "bias" => 0.125 * random + centres.map_or(0.0, |[low, high]| if random < -0.5 { low } else { high }),
        _ => 0.125 * random,
    };
    words(seed, &format!("fixture {name}"), shape.iter().product())
        .map(|word| (f64::from(word >> 8) - f64::from(1 << 23)) / f64::from(1 << 23))
        .map(|random| f64::from(value(random) as f32))
        .collect()
}

/// The images of a step.
pub fn images(seed: u64, step: u64, len: usize) -> Vec<u8> {
    words(seed, &format!("fixture images {step}"), len).map(|word| (word >> 24) as u8).collect()
}

/// The labels of a step.
pub fn labels(seed: u64, step: u64, count: usize, classes: usize) -> Vec<i32> {
    words(seed, &format!("fixture labels {step}"), count).map(|word| (word % classes as u32) as i32).collect()
}

/// The share of each label in a mixture: none, all, and parts.
pub fn lambdas(step: u64, count: usize) -> Vec<f32> {
    (0..count as u64).map(|place| ((5 * place + step) % 9) as f32 / 8.0).collect()
}

/// A tensor as stored in the fixtures: itself, or sums to which each element contributes once with a hashed sign.
pub fn sketch(values: &[f64]) -> Vec<f64> {
    if values.len() <= SKETCH {
        return values.to_vec();
    }
    let mut sums = vec![0.0; SKETCH];
    for (value, hash) in values.iter().zip(words(0, "fixture sketch", values.len())) {
        sums[hash as usize % SKETCH] += if hash >> 31 == 1 { -value } else { *value };
    }
    sums
}
