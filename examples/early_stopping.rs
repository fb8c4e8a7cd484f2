//! A custom callback: training ends when the validation loss has not fallen for three epochs.
//!
//! ```text
//! cargo run --release --example early_stopping
//! ```

use enmasse::prelude::*;

struct EarlyStopping {
    patience: u64,
    best: (u64, f64),
}

impl Callback for EarlyStopping {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        if record.val_loss < self.best.1 {
            self.best = (record.epoch, record.val_loss);
        } else if record.epoch >= self.best.0 + self.patience {
            control.stop();
        }
        Ok(control.log("best_epoch", self.best.0 as f64)?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = TrainConfig { epochs: 50, size: Some(32), ..TrainConfig::default() };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?;
    let device = device("cpu", 2)?;
    let mut trainer = Trainer::new(config, device).callback(EarlyStopping { patience: 3, best: (0, f64::MAX) });
    let done = trainer.fit("lenet", &enmasse::models::lenet, &data)?;
    println!("best {}, kept in {}", done.best, done.run.display());
    Ok(())
}
