//! A program that classifies images by a run of `enmasse train`.
//!
//! ```text
//! cargo run --release --example predict -- runs/flowers rose.jpg
//! ```

use enmasse::prelude::*;

fn main() -> Result<(), TrainError> {
    let [run, image] = [1, 2].map(|place| std::env::args().nth(place).unwrap_or_default());
    for guess in TrainedModel::open(run)?.predict(image)?.top {
        println!("{:5.1} %  {}", 100.0 * guess.probability, guess.class);
    }
    Ok(())
}
