//! An activation and a loss as expressions, whose derivatives are derived: Mish, and the focal loss of each class on its own.
//!
//! ```text
//! cargo run --release --example expressions
//! ```
//!
//! Sources: D. Misra, "Mish: a self regularized non-monotonic activation function", 2019; T.-Y. Lin, P. Goyal, R. Girshick, K. He,
//! P. Dollar, "Focal loss for dense object detection", 2017 (torchvision's `sigmoid_focal_loss`).

use std::error::Error;

use enmasse::prelude::*;

/// `log(1 + exp(x))`, without an overflow. Of equal numbers the first has the gradient, so the derivative at 0 is 1/2.
fn softplus(x: &Expression) -> Expression {
    x.maximum(0.0) + (1.0 + (-x).minimum(x).exp()).log()
}

fn mish() -> Expression {
    let [x] = Expression::operands();
    &x * softplus(&x).tanh()
}

/// Of a logit and its target, which is 0 or 1: the cross-entropy of the sigmoid, times the squared probability of a mistake.
fn focal() -> Expression {
    let [logit, target] = Expression::operands();
    let cross_entropy = softplus(&logit) - &logit * &target;
    let mistake = (&logit * (1.0 - 2.0 * target)).sigmoid();
    cross_entropy * mistake.power(2.0)
}

fn model(x: Tensor, classes: usize) -> Tensor {
    let mish = mish();
    let layer = |x: Tensor, name: &str, channels: usize| {
        let x = x.conv2d(name, Conv::new(channels, 3).padding(1).no_bias()).batch_norm(&format!("{name}.norm"));
        x.pointwise(&mish, &[]).max_pool(Pool::new(2))
    };
    let x = layer(layer(layer(x, "first", 16), "second", 32), "third", 64);
    x.adaptive_avg_pool([1, 1]).flatten().linear("head", classes)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("mish: {}\nits derivative: {}", mish(), mish().derivative(0));
    let config =
        TrainConfig { epochs: 4, size: Some(32), optimizer: OptimizerKind::AdamW, lr: 0.003, ..TrainConfig::default() };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?;
    let focal = focal();
    let trainer = Trainer::new(config, device("cpu", 2)?)
        .loss(move |logits, targets| logits.pointwise(&focal, &[targets]).mean_classes());
    let done = trainer.loader_threads(2).fit("mish", &model, &data)?;
    println!("best {} in {:.0} s, kept in {}", done.best, done.seconds, done.run.display());
    Ok(())
}
