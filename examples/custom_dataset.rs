//! A custom data set: length, label, image. Here the images are computed; they could as well come from a database.
//!
//! ```text
//! cargo run --release --example custom_dataset
//! ```
//!
//! It reaches a validation accuracy above 0.95 in six epochs, within a minute on two cores.

use std::error::Error;
use std::sync::Arc;

use enmasse::models;
use enmasse::prelude::*;
use enmasse::tensor::RandomStream;

/// Noisy waves in four patterns. None is another one's mirror image, since training mirrors images.
struct Waves {
    seed: u64,
    count: usize,
}

const SIDE: usize = 32;
const PATTERNS: [&str; 4] = ["columns", "rows", "rings", "checks"];

impl Dataset for Waves {
    fn len(&self) -> usize {
        self.count
    }

    fn label(&self, index: usize) -> usize {
        index % PATTERNS.len()
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        // The same index must always give the same image: the random numbers are a function of seed and index.
        let mut random = RandomStream::new(self.seed, "waves", 0, index as u64);
        let (length, phase) = (random.uniform(5.0, 12.0), random.uniform(0.0, 12.0));
        let wave = |along: f64| (std::f64::consts::TAU * (along + phase) / length).sin();
        let mut pixels = Vec::with_capacity(SIDE * SIDE * 3);
        for place in 0..SIDE * SIDE {
            let x = (place % SIDE) as f64;
            let y = (place / SIDE) as f64;
            let height = match PATTERNS[self.label(index)] {
                "columns" => wave(x),
                "rows" => wave(y),
                "rings" => wave((x - 16.0).hypot(y - 16.0)),
                _ => wave(x) * wave(y),
            };
            pixels.extend((0..3).map(|_| (128.0 + 50.0 * height + 50.0 * random.normal()) as u8));
        }
        Ok(Image::new(SIDE, SIDE, pixels)?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let waves = |seed: u64, count: usize| Arc::new(Waves { seed, count });
    let data = TrainingData::of_classes(PATTERNS.map(str::to_owned).into(), waves(1, 2000), waves(2, 400));
    let config = TrainConfig { epochs: 6, size: Some(SIDE), lr: 0.02, ..TrainConfig::default() };
    let device = device("cpu", 2)?;
    let done = Trainer::new(config, device).loader_threads(2).fit("lenet", &models::lenet, &data)?;
    println!("best {} in {:.0} s, kept in {}", done.best, done.seconds, done.run.display());
    Ok(())
}
