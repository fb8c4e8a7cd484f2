//! A task of one's own: the position of a dot, as two numbers, by their squared error.
//!
//! ```text
//! cargo run --release --example custom_task
//! ```
//!
//! It reaches a mean squared distance below 0.001, 3 % of the image's side, in eight epochs, within a minute on two cores.

use std::error::Error;
use std::sync::Arc;

use enmasse::models;
use enmasse::prelude::*;
use enmasse::tensor::RandomStream;
use enmasse::train::{Augmentation, Flip};

const SIDE: usize = 28;

/// Noise with a bright dot. The targets of an image are the dot's place across and down, from 0 to 1.
struct Dots {
    seed: u64,
    count: usize,
}

impl Dataset for Dots {
    fn len(&self) -> usize {
        self.count
    }

    /// There are no classes: a label only says that there is a sample.
    fn label(&self, _: usize) -> usize {
        0
    }

    fn targets(&self, index: usize) -> Vec<f32> {
        let mut random = RandomStream::new(self.seed, "dots", 0, index as u64);
        (0..2).map(|_| random.uniform(0.1, 0.9) as f32).collect()
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        let place = self.targets(index);
        let mut noise = RandomStream::new(self.seed, "noise", 0, index as u64);
        let mut light = |i: usize| {
            let [x, y] = [i % SIDE, i / SIDE].map(|at| (at as f32 + 0.5) / SIDE as f32);
            let distance = (x - place[0]).hypot(y - place[1]) * 10.0;
            (40.0 + 180.0 * (-distance * distance).exp() + noise.uniform(-30.0, 30.0) as f32) as u8
        };
        Ok(Image::new(SIDE, SIDE, (0..SIDE * SIDE).flat_map(|i| [light(i); 3]).collect())?)
    }
}

#[derive(Debug)]
struct Position;

impl Task for Position {
    fn target(&self) -> TargetKind {
        TargetKind::Values(2)
    }

    fn outputs(&self) -> usize {
        2
    }

    fn loss(&self, _: &TrainConfig) -> Loss {
        Loss::Custom(PerSample::new(|x: Tensor, y: Tensor| (x + y.affine(-1.0, 0.0)).power(2.0).sum_classes()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dots = |seed: u64, count: usize| Arc::new(Dots { seed, count });
    let data = TrainingData::new(dots(1, 3000), dots(2, 501));
    // The dot of a mirror image would be elsewhere.
    let size = Some(SIDE);
    let augment = Some(Augmentation::None);
    let flip = Some(Flip::Chance(0.0));
    let (optimizer, lr) = (OptimizerKind::AdamW, 0.003);
    let config = TrainConfig { epochs: 8, size, augment, flip, optimizer, lr, ..TrainConfig::default() };
    let mut trainer = Trainer::new(config, device("cpu", 2)?).loader_threads(2).task(Position);
    let done = trainer.fit("position", &models::lenet, &data)?;
    println!("best {} in {:.0} s, kept in {}", done.best, done.seconds, done.run.display());
    Ok(())
}
