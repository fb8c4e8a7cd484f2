//! A learning-rate schedule of one's own: one cycle, up to a peak and down to nothing, as in "Super-convergence".
//!
//! ```text
//! cargo run --release --example custom_schedule
//! ```
//!
//! It reaches a validation accuracy above 0.85 in five epochs, within a minute on two cores.
//!
//! Source: L. Smith and N. Topin, "Super-convergence: very fast training of neural networks using large learning rates", 2018.

use std::error::Error;

use enmasse::prelude::*;

const EPOCHS: usize = 5;

/// The rate after `progress` epochs, such as 2.5 in the middle of the third.
fn one_cycle(progress: f64) -> f64 {
    const PEAK: (f64, f64) = (1.5, 0.006);
    match progress {
        rises if rises < PEAK.0 => PEAK.1 * (0.1 + 0.9 * rises / PEAK.0),
        falls => PEAK.1 * (EPOCHS as f64 - falls) / (EPOCHS as f64 - PEAK.0),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let config =
        TrainConfig { epochs: EPOCHS, size: Some(32), optimizer: OptimizerKind::AdamW, ..TrainConfig::default() };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?;
    let mut trainer = Trainer::new(config, device("cpu", 2)?).schedule(one_cycle);
    let done = trainer.fit("lenet", &enmasse::models::lenet, &data)?;
    println!("best {}, kept in {}", done.best, done.run.display());
    Ok(())
}
