//! Lightning's shape: a module, a data module, `Trainer(devices, max_epochs)` with fit, test and predict.
//!
//! ```text
//! cargo run --release --example module_and_trainer
//! ```
//!
//! It reaches a test accuracy above 0.85 in five epochs, within a minute or two on two cores.

use std::error::Error;
use std::sync::Arc;

use enmasse::data::Folder;
use enmasse::prelude::*;

/// The module: what `forward` would be. Loss, optimiser and logging over all ranks are the trainer's.
fn module(x: Tensor, classes: usize) -> Tensor {
    let block = |x: Tensor, name: &str, channels: usize| {
        let conv = Conv::new(channels, 3).padding(1).no_bias();
        x.conv2d(&format!("{name}.conv"), conv).batch_norm(&format!("{name}.norm")).relu().max_pool(Pool::new(2))
    };
    let x = block(block(block(x, "1", 24), "2", 48), "3", 96);
    x.adaptive_avg_pool([1, 1]).flatten().dropout("dropout", 0.1).linear("classifier", classes)
}

/// The data module: parts to train on, to validate by after each epoch, and to test with once.
fn data_module() -> Result<TrainingData, Box<dyn Error>> {
    let folder = Folder::scan(shapes::ensure(&shapes::default_cache()?)?)?;
    let held_out = folder.split(0, 0.2)?;
    let parts = held_out.train.split(1, 0.2)?;
    let classes = folder.classes().to_vec();
    let train = Arc::new(parts.train);
    let validation = Arc::new(parts.val);
    Ok(TrainingData::of_classes(classes, train, validation).with_test(Arc::new(held_out.val)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (devices, max_epochs) = (2, 5);
    let data = data_module()?;
    let config = TrainConfig {
        epochs: max_epochs,
        size: Some(64),
        batch: Some(32),
        optimizer: OptimizerKind::AdamW,
        lr: 0.004,
        ranks: RankKind::Thread,
        out: Some(std::env::temp_dir().join(format!("module_and_trainer-{}", std::process::id()))),
        ..TrainConfig::default()
    };

    spawn(devices, |group| {
        let device = device("cpu", 1)?;
        let is_main = group.is_main();
        let mut trainer = Trainer::new(config.clone(), device).group(group).logger(Printer::default());
        trainer.fit("module", &module, &data)?;
        let test = trainer.test(&data)?;
        let rows = match &data.test {
            Some(images) => trainer.predict(images)?,
            None => Vec::new(),
        };
        if is_main {
            let accuracy = test.accuracy.unwrap_or_default();
            println!("test: loss {:.3}, accuracy {accuracy:.3} over {} images", test.loss, test.samples);
            println!("probabilities of the first: {:.2?}", rows.first());
        }
        Ok::<_, Box<dyn Error>>(())
    })?;
    Ok(())
}
