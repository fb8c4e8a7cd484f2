//! The airbench94 network on CIFAR-10 by a loop of one's own. Its paper publishes 94 % in ten epochs (K. Jordan, arXiv:2404.04454, 2024).
//!
//! ```text
//! cargo run --release --example airbench94 -- CIFAR10 [EPOCHS]
//! ```
//!
//! `enmasse train CIFAR10 --recipe airbench94` is the same run by settings alone. Here the learning rate of each step is the
//! program's own.

use std::error::Error;

use enmasse::data::PaddingMode;
use enmasse::models::Airbench;
use enmasse::prelude::*;
use enmasse::train::{Augmentation, Flip};

/// The highest learning rate, the share of the run in which it rises, and the factors of the first and of the last rate.
const PEAK: f64 = 1.5;
const RISE: f64 = 0.23;
const FIRST: f64 = 0.2;
const LAST: f64 = 0.07;

/// A triangle over the run, of whose steps `done` of `all` are done.
fn learning_rate(done: f64, all: f64) -> f64 {
    let between = |from: f64, to: f64, share: f64| from + (to - from) * share;
    let position = done / all;
    PEAK * match position < RISE {
        true => between(FIRST, 1.0, position / RISE),
        false => between(1.0, LAST, (position - RISE) / (1.0 - RISE)),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("name a folder of CIFAR-10")?;
    let epochs = arguments.next().map_or(Ok(10), |epochs| epochs.parse())?;
    let config = TrainConfig {
        epochs,
        size: Some(32),
        global_batch: 1024,
        drop_last: true,
        sync_bn: true,
        lr: PEAK,
        momentum: 0.85,
        nesterov: true,
        // Biases of norms have 64 times the rate, and the same decay of a step.
        weight_decay: 0.00133,
        lr_mult: vec!["layers.*.bias=64".parse()?],
        decay_mult: vec!["layers.*.bias=0.015625".parse()?],
        lookahead: Some(5),
        lookahead_alpha: 1.0 - 0.95f64.powi(5),
        lookahead_power: 3.0,
        label_smoothing: 0.2,
        augment: Some(Augmentation::Crop),
        crop_padding: 2,
        padding_mode: PaddingMode::Reflect,
        flip: Some(Flip::Alternating),
        ..TrainConfig::default()
    };
    let data = TrainingData::open(folder.as_ref(), &config.open_options())?;
    let all = (epochs * (data.train.len() / config.global_batch)) as f64;

    let model = |x: Tensor, classes: usize| Airbench::airbench94().forward(x, classes);
    let mut trainer = Trainer::new(config, device("cpu", 2)?).logger(Printer::default());
    let mut steps = trainer.steps("airbench94", &model, &data)?;
    while let Some(mut step) = steps.next_step()? {
        step.learning_rate = learning_rate((step.number() - 1) as f64, all);
        steps.submit(step)?;
    }
    let done = steps.end()?;
    println!("best {} in {:.0} s, kept in {}", done.best, done.seconds, done.run.display());
    Ok(())
}
