//! A custom transform: training images become darker at random, after the default crops and flips.
//!
//! ```text
//! cargo run --release --example custom_transform
//! ```

use enmasse::data::{Canvas, RandomStream, Transform};
use enmasse::prelude::*;

struct Darken {
    least: f64,
}

impl Transform for Darken {
    fn name(&self) -> &str {
        "darken"
    }

    fn parameters(&self) -> String {
        format!("least={}", self.least)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        // All draws come from `random`, so every start, with any number of ranks and threads, makes the same images.
        let factor = self.least + (1.0 - self.least) * random.unit();
        canvas.pixels_mut().iter_mut().for_each(|byte| *byte = (f64::from(*byte) * factor) as u8);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = TrainConfig { epochs: 3, size: Some(32), ..TrainConfig::default() };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?
        .with_augmentation(|default| default.then(Darken { least: 0.5 }));
    let device = device("cpu", 2)?;
    let done = Trainer::new(config, device).fit("lenet", &enmasse::models::lenet, &data)?;
    println!("best {}, kept in {}", done.best, done.run.display());
    Ok(())
}
