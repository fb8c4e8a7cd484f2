//! Early stopping, the checkpoints of the best three epochs, and the learning rate of each tenth step for TensorBoard.
//!
//! ```text
//! cargo run --release --example early_stopping
//! ```

use enmasse::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = TrainConfig { epochs: 50, size: Some(32), ..TrainConfig::default() };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?;
    let device = device("cpu", 2)?;
    let mut best = ModelCheckpoint::new(Monitor::lower("val_loss")).save_top_k(3);
    let mut trainer = Trainer::new(config, device)
        .callback(EarlyStopping::new(Monitor::lower("val_loss")).patience(3).min_delta(0.001))
        .callback(LrMonitor::every(10))
        .callback(&mut best);
    let done = trainer.fit("lenet", &enmasse::models::lenet, &data)?;
    drop(trainer);
    println!("best {}, kept in {}", done.best, done.run.display());
    println!("of the lowest loss: {}", best.best_model_path().unwrap_or_default().display());
    Ok(())
}
