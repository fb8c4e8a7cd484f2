//! The training step taken apart, as in ColossalAI's engine: train, zero_grad, forward, criterion, backward, step, then
//! eval, argmax, correct / total. The bits are those of `Trainer`.
//!
//! ```text
//! cargo run --release --example explicit_loop -- CIFAR10          ResNet-34 on a folder of CIFAR-10, two epochs
//! cargo run --release --example explicit_loop                     LeNet on the embedded data set, ten epochs
//! ```
//!
//! The first one reaches an accuracy between 0.3 and 0.45 in two epochs, within some minutes on two cores; the second
//! above 0.85 in ten epochs, within a minute.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use enmasse::data::{DecodePool, EvalLoader, Sharding, TrainLoader};
use enmasse::prelude::*;
use enmasse::train::{Compilation, LrSchedule, Objective, Preparation, ScheduleKind, initialize};

fn main() -> Result<(), Box<dyn Error>> {
    // The tutorial's config.py, and what its script fixes.
    let (folder, config) = match std::env::args().nth(1) {
        Some(folder) => (
            folder.into(),
            TrainConfig {
                model: "resnet34".to_owned(),
                batch: Some(128),
                epochs: 2,
                lr: 0.1,
                weight_decay: 5e-4,
                schedule: ScheduleKind::CosineAnnealing,
                std: Some(vec![0.2023, 0.1994, 0.2010]),
                ..TrainConfig::default()
            },
        ),
        None => (
            shapes::ensure(&shapes::default_cache()?)?,
            TrainConfig {
                model: "lenet".to_owned(),
                batch: Some(64),
                epochs: 10,
                size: Some(32),
                optimizer: OptimizerKind::AdamW,
                lr: 0.002,
                ..TrainConfig::default()
            },
        ),
    };
    train(&folder, &config)
}

fn train(folder: &Path, config: &TrainConfig) -> Result<(), Box<dyn Error>> {
    let data = TrainingData::open(folder, &config.open_options())?;
    let preparation = Preparation::new(config, data.kind);
    let model = enmasse::models::find(&config.model)?;

    // One shard: this process is the whole world.
    let sharding = Sharding::one(0, 1, config.batch_per_shard(1));
    let pool = DecodePool::new(2)?;
    let train_loader =
        TrainLoader::new(&pool, data.train.clone(), preparation.train.clone(), sharding.clone(), config.seed)?;
    let test_loader = EvalLoader::new(&pool, data.validation.clone(), preparation.evaluation.clone(), sharding)?;

    let device = device("cpu", 2)?;
    let forward = |x: Tensor, classes: usize| model.forward(x, classes);
    let compilation = Compilation {
        config,
        preparation: &preparation,
        model: &forward,
        objective: &Objective::default(),
        outputs: data.classes.len(),
        target: &device.target(),
    };
    let plans = compilation.plans(1)?;
    let mut program = device.compile(plans, None)?;
    initialize(program.as_mut(), config.seed)?;
    let mut engine = Engine::new(program, 0);
    let schedule = LrSchedule::new(config, 1);

    for epoch in 0..config.epochs as u64 {
        engine.train();
        // The order of samples is a function of the epoch, so there is nothing to forget.
        let learning_rate = schedule.learning_rate(epoch as f64);
        let (mut train_loss, mut steps) = (0.0, 0.0);
        for batch in train_loader.epoch(epoch, 0) {
            let batch = batch?;
            engine.zero_grad();
            engine.forward(batch, epoch)?;
            train_loss += engine.criterion()?;
            engine.backward()?;
            engine.step(learning_rate)?;
            steps += 1.0;
        }

        engine.eval();
        let (mut test_loss, mut correct, mut total) = (0.0, 0, 0);
        for batch in test_loader.pass() {
            let batch = Arc::new(batch?);
            engine.forward(batch.clone(), epoch)?;
            test_loss += engine.criterion()?;
            let logits = engine.logits()?;
            let rows: Vec<&[f64]> = logits.chunks_exact(data.classes.len()).collect();
            for place in batch.places() {
                correct += usize::from(argmax(rows[place]) == Some(batch.labels[place] as usize));
                total += 1;
            }
        }
        println!(
            "Epoch {epoch} - train loss: {:.5}, test loss: {:.5}, acc: {:.5}, lr: {learning_rate:.5}",
            train_loss / steps,
            test_loss / total as f64,
            correct as f64 / total as f64,
        );
    }
    Ok(())
}

fn argmax(row: &[f64]) -> Option<usize> {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]))
}
