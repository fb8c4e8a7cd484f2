//! Measures how many pictures per second the loader makes from a folder of class folders.
//!
//! `cargo run --release -p enmasse-data --example loader_bench -- DIR [--threads N] [--batch B] [--size PIXELS] [--passes P]`
//!
//! Prints one JSON line each for the training and the evaluation transform. `images_per_second` is the median over the
//! passes after the first; `first_batch_ms` is the time from requesting an iterator to holding its first batch.

use std::sync::Arc;
use std::time::Instant;

use enmasse_data::{Batches, DataError, Dataset, DecodePool, EvalLoader, EvalTransform, ReadOptions};
use enmasse_data::{Folder, Sharding, TrainLoader, TrainTransform};

fn main() -> Result<(), DataError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |flag: &str, default: usize| {
        let position = arguments.iter().position(|argument| argument == flag);
        position.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let Some(root) = arguments.first() else {
        return Err(DataError::Setting("usage: loader_bench DIR [--threads N] [--batch B] [--size PIXELS]".into()));
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (threads, size, passes) = (number("--threads", cores), number("--size", 224), number("--passes", 5));
    let sharding = Sharding::one(0, 1, number("--batch", 32));
    let folder = Arc::new(Folder::scan(root)?.read_with(ReadOptions { convert_rgb: true, ..ReadOptions::default() }));
    let pool = DecodePool::new(threads)?;
    let train = TrainLoader::new(&pool, folder.clone(), TrainTransform::new(size), sharding.clone(), 0)?;
    measure("train", threads, passes, &folder, |epoch| train.epoch(epoch, 0))?;
    let eval = EvalLoader::new(&pool, folder.clone(), EvalTransform::new(size), sharding)?;
    measure("eval", threads, passes, &folder, |_| eval.pass())
}

fn measure(
    transform: &str,
    threads: usize,
    passes: usize,
    folder: &Folder,
    start: impl Fn(u64) -> Batches,
) -> Result<(), DataError> {
    let (mut rates, mut first_batch) = (Vec::new(), None);
    for pass in 0..passes.max(1) {
        let (began, mut images) = (Instant::now(), 0);
        for batch in start(pass as u64) {
            images += batch?.valid;
            first_batch.get_or_insert_with(|| began.elapsed());
        }
        rates.push(images as f64 / began.elapsed().as_secs_f64());
    }
    let first_pass = rates[0];
    if rates.len() > 1 {
        rates.remove(0);
    }
    rates.sort_by(f64::total_cmp);
    println!(
        r#"{{"transform":"{transform}","threads":{threads},"samples":{},"images_per_second":{:.1},"first_pass_images_per_second":{:.1},"first_batch_ms":{:.1}}}"#,
        folder.len(),
        rates[rates.len() / 2],
        first_pass,
        first_batch.unwrap_or_default().as_secs_f64() * 1e3,
    );
    Ok(())
}
