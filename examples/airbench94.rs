//! The airbench94 network on CIFAR-10 by a loop of one's own: 94 % in ten epochs (K. Jordan, arXiv:2404.04454, 2024).
//!
//! ```text
//! cargo run --release --example airbench94 -- CIFAR10 [EPOCHS]
//! ```
//!
//! `enmasse train CIFAR10 --recipe airbench94` is the same run by settings alone. Here the network and the learning rate of each step are the
//! program's own.

use std::error::Error;

use enmasse::data::PaddingMode;
use enmasse::graph::{BatchNorm, Linear};
use enmasse::prelude::*;
use enmasse::train::{Augmentation, Flip};

/// The highest learning rate, the share of the run in which it rises, and the factors of the first and of the last rate.
const PEAK: f64 = 1.5;
const RISE: f64 = 0.23;
const FIRST: f64 = 0.2;
const LAST: f64 = 0.07;

fn model(x: Tensor, classes: usize) -> Tensor {
    // 24 filters that whiten the 2x2 patches of the training images; they are computed before the first step, and not trained.
    let mut x = x.conv2d("whiten", Conv::new(24, 2).whitening(5e-4)).gelu();
    for (number, width) in [64, 256, 256].into_iter().enumerate() {
        x = group(x, &format!("layers.{}", number + 1), width);
    }
    let x = x.max_pool(Pool::new(3)).flatten().affine(1.0 / 9.0, 0.0);
    x.linear("head", Linear::new(classes).no_bias())
}

/// Two convolutions that begin as the identity of their first channels.
fn group(x: Tensor, name: &str, width: usize) -> Tensor {
    let conv = Conv::new(width, 3).padding(1).no_bias().dirac();
    let norm = BatchNorm::new().epsilon(1e-12).momentum(0.4).fixed_weight();
    let x = x.conv2d(&format!("{name}.conv1"), conv).max_pool(Pool::new(2));
    let x = x.batch_norm_with(&format!("{name}.norm1"), norm).gelu();
    x.conv2d(&format!("{name}.conv2"), conv).batch_norm_with(&format!("{name}.norm2"), norm).gelu()
}

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
