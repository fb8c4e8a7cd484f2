//! A custom transform: black squares hide a part of some training pictures, after the usual crops and flips.
//!
//! ```text
//! cargo run --release --example custom_transform
//! ```

use std::error::Error;

use enmasse::data::{Canvas, RandomStream, Transform};
use enmasse::models;
use enmasse::prelude::*;

/// Hides a square of `edge` pixels with probability `probability`.
struct Hide {
    edge: usize,
    probability: f64,
}

impl Transform for Hide {
    fn name(&self) -> &str {
        "hide"
    }

    fn parameters(&self) -> String {
        format!("edge={} probability={}", self.edge, self.probability)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        // All draws come from `random`, so every start, with any number of ranks and threads, hides the same pixels.
        if random.unit() >= self.probability {
            return;
        }
        let width = canvas.picture().width();
        let mut start = |length: usize| random.below((length.saturating_sub(self.edge) + 1) as u64) as usize;
        let (left, top) = (start(width), start(canvas.picture().height()));
        for row in canvas.pixels_mut().chunks_exact_mut(width * 3).skip(top).take(self.edge) {
            row[left * 3..].iter_mut().take(self.edge * 3).for_each(|byte| *byte = 0);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = shapes::ensure(&shapes::default_cache()?)?;
    let config = TrainConfig { model: "lenet".to_owned(), epochs: 3, size: Some(32), ..TrainConfig::default() };
    let data = TrainingData::open(&root, &config.open_options())?
        .with_augmentation(|usual| usual.then(Hide { edge: 8, probability: 0.5 }));
    let device = device("cpu", 2)?;
    let done = Trainer::new(config, device.as_ref()).loader_threads(2).fit(&models::lenet, &data)?;
    println!("best {:.3} in {:.0} s, kept in {}", done.best_val_accuracy, done.seconds, done.run.display());
    Ok(())
}
