//! A custom model, trained on the embedded data set, by one process or by several ranks.
//!
//! ```text
//! cargo run --release --example custom_model
//! cargo build --release --example custom_model && target/release/enmasse launch -n 2 -- target/release/examples/custom_model
//! ```
//!
//! It reaches a validation accuracy above 0.9 in five epochs, within some minutes on two cores.

use std::error::Error;

use enmasse::prelude::*;

/// A residual network of three stages, each with half the width and twice the channels of the one before.
fn model(x: Tensor, classes: usize) -> Tensor {
    let mut x = convolution(x, "stem", 16, 1).relu();
    for (stage, channels) in [16, 32, 64].into_iter().enumerate() {
        let name = format!("stage{stage}");
        let stride = if stage == 0 { 1 } else { 2 };
        x = block(x, &name, channels, stride);
    }
    x.adaptive_avg_pool([1, 1]).flatten().dropout("dropout", 0.1).linear("head", classes)
}

fn block(x: Tensor, name: &str, channels: usize, stride: usize) -> Tensor {
    let y = convolution(x.clone(), &format!("{name}.first"), channels, stride).relu();
    let y = convolution(y, &format!("{name}.second"), channels, 1);
    (y + convolution(x, &format!("{name}.skip"), channels, stride)).relu()
}

fn convolution(x: Tensor, name: &str, channels: usize, stride: usize) -> Tensor {
    let conv = Conv::new(channels, 3).stride(stride).padding(1).no_bias();
    x.conv2d(&format!("{name}.conv"), conv).batch_norm(&format!("{name}.norm"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let config =
        TrainConfig { epochs: 5, size: Some(48), optimizer: OptimizerKind::AdamW, lr: 0.002, ..TrainConfig::default() };
    let folder = shapes::ensure(&shapes::default_cache()?)?;
    let data = TrainingData::open(&folder, &config.open_options())?;

    // A launcher, ours or torchrun, tells each rank its place; without one this is a single process.
    let launched = std::env::var_os("RANK").is_some();
    let group = if launched { Rendezvous::from_environment()?.join()? } else { Group::single() };
    let device = device_of_rank("cpu", &group)?;

    let is_first = group.rank() == 0;
    let mut trainer = Trainer::new(config, device).group(group).logger(Printer::default());
    let done = trainer.fit("custom", &model, &data)?;
    if is_first {
        println!("best {} in {:.0} s, kept in {}", done.best, done.seconds, done.run.display());
    }
    Ok(())
}
