//! A network, an augmentation and a metric of one's own, with early stopping, on two processes.
//!
//! ```text
//! cargo run --release --example two_processes
//! ```

use std::error::Error;

use enmasse::data::{Canvas, RandomStream, Transform};
use enmasse::launch::SpawnError;
use enmasse::prelude::*;

struct Darken;

impl Transform for Darken {
    fn name(&self) -> &str {
        "darken"
    }

    fn parameters(&self) -> String {
        "least=0.5".to_owned()
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let factor = 0.5 + 0.5 * random.unit();
        canvas.pixels_mut().iter_mut().for_each(|byte| *byte = (f64::from(*byte) * factor) as u8);
    }
}

fn net(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(32, 3).padding(1).no_bias()).batch_norm("bn1").relu().max_pool(Pool::new(2));
    let x = x.conv2d("conv2", Conv::new(64, 3).padding(1).no_bias()).batch_norm("bn2").relu();
    x.adaptive_avg_pool([1, 1]).flatten().linear("fc", classes)
}

fn label_probability(logits: Tensor, targets: Tensor) -> Tensor {
    (logits.log_softmax() * targets).sum_classes().exp()
}

fn main() -> Result<(), SpawnError> {
    // Starts this program twice more, as ranks that end with the function.
    spawn_processes(2, train)
}

fn train(group: Group) -> Result<(), Box<dyn Error>> {
    let config = TrainConfig { epochs: 20, size: Some(32), ..TrainConfig::default() };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?
        .with_augmentation(|default| default.then(Darken));
    let device = device_of_rank("cpu", &group)?;
    let done = Trainer::new(config, device)
        .group(group)
        .metric("label_probability", label_probability)
        .callback(EarlyStopping::new(Monitor::lower("val_loss")).patience(3))
        .logger(Printer::default())
        .fit("net", &net, &data)?;
    println!("best {}, kept in {}", done.best, done.run.display());
    Ok(())
}
