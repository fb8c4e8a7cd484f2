//! A custom loss and a custom metric: the focal loss, and the probability that the model gives to the label.
//!
//! ```text
//! cargo run --release --example own_loss
//! ```

use enmasse::prelude::*;

fn label_probability(logits: Tensor, targets: Tensor) -> Tensor {
    (logits.log_softmax() * targets).sum_classes().exp()
}

/// -(1 - p)^2 log p (Lin et al., 2017): samples with confident predictions have little weight.
fn focal(logits: Tensor, targets: Tensor) -> Tensor {
    let p = label_probability(logits, targets);
    p.clone().affine(-1.0, 1.0).power(2.0) * p.clamp_min(1e-12).log().affine(-1.0, 0.0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = TrainConfig { epochs: 5, size: Some(32), ..TrainConfig::default() };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?;
    let device = device("cpu", 2)?;
    let trainer = Trainer::new(config, device).loss(focal).metric("label_probability", label_probability);
    let done = trainer.loader_threads(2).fit("lenet", &enmasse::models::lenet, &data)?;
    println!("best {}, kept in {}", done.best, done.run.display());
    Ok(())
}
