//! AlexNet in two halves, on two ranks: the first has the convolutions, the second the linear layers, and activations go from one to the other.
//!
//! ```text
//! cargo run --release --example alexnet_halves
//! ```
//!
//! The model says where its second half begins. The weights are the bits of one rank with as many shards as micro-batches.

use std::error::Error;

use enmasse::graph::{CompileOptions, stages_of};
use enmasse::launch::SpawnError;
use enmasse::prelude::*;

/// Height and width of the images, which are the smallest that AlexNet takes.
const SIZE: usize = 64;

/// AlexNet with an eighth of its channels.
fn alexnet(x: Tensor, classes: usize) -> Tensor {
    let pool = Pool::new(3).stride(2);
    let x = x.conv2d("conv1", Conv::new(8, 11).stride(4).padding(2)).relu().max_pool(pool);
    let x = x.conv2d("conv2", Conv::new(24, 5).padding(2)).relu().max_pool(pool);
    let x = x.conv2d("conv3", Conv::new(48, 3).padding(1)).relu();
    let x = x.conv2d("conv4", Conv::new(32, 3).padding(1)).relu();
    let x = x.conv2d("conv5", Conv::new(32, 3).padding(1)).relu().adaptive_avg_pool([6, 6]).flatten();
    let x = x.begin_stage().linear("fc6", 512).relu();
    x.linear("fc7", 512).relu().linear("fc8", classes)
}

fn main() -> Result<(), SpawnError> {
    // Starts this program twice more, as ranks that end with the function.
    spawn_processes(2, train)
}

fn train(group: Group) -> Result<(), Box<dyn Error>> {
    let config = TrainConfig {
        epochs: 5,
        size: Some(SIZE),
        optimizer: OptimizerKind::AdamW,
        lr: 0.001,
        micro_batches: Some(4),
        ..TrainConfig::default()
    };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?;
    let classes = data.classes.len();
    let stages = stages_of(&|x| alexnet(x, classes), &CompileOptions::new("alexnet", 1, SIZE, classes))?;
    let device = device_of_rank("cpu", &group)?;
    let done = Trainer::new(TrainConfig { stages, ..config }, device)
        .group(group)
        .logger(Printer::default())
        .fit("alexnet", &alexnet, &data)?;
    println!("best {}, kept in {}", done.best, done.run.display());
    Ok(())
}
