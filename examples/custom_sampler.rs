//! An order of training samples of one's own: epochs that grow from a quarter of the data to all of them.
//!
//! ```text
//! cargo run --release --example custom_sampler
//! ```
//!
//! The order is a function of the epoch alone. So every rank has the same, and a run that is resumed within an epoch goes on in it.
//! It reaches a validation accuracy above 0.7 in eight epochs, within a minute on two cores.

use std::error::Error;

use enmasse::prelude::*;
use enmasse::tensor::RandomStream;

const EPOCHS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let config = TrainConfig {
        epochs: EPOCHS,
        size: Some(32),
        optimizer: OptimizerKind::AdamW,
        lr: 0.003,
        ..TrainConfig::default()
    };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?;
    let samples = data.train.len();
    let growing = move |epoch: u64| {
        let share = (epoch as usize + 2).min(EPOCHS);
        let all = RandomStream::new(7, "growing epochs", epoch, 0).permutation(samples);
        all.into_iter().take((samples * share).div_ceil(EPOCHS)).map(|sample| sample as usize).collect()
    };
    let mut trainer = Trainer::new(config, device("cpu", 2)?).sampler(growing);
    let done = trainer.fit("lenet", &enmasse::models::lenet, &data)?;
    println!("best {}, kept in {}", done.best, done.run.display());
    Ok(())
}
