//! A logger of one's own: a table of the epochs as CSV, which a resumed run continues.
//!
//! ```text
//! cargo run --release --example custom_logger
//! ```
//!
//! Training ends as soon as the validation loss has not fallen for three epochs.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;

use enmasse::prelude::*;

/// Writes `epochs.csv` into the run folder.
#[derive(Default)]
struct Table {
    file: Option<File>,
}

impl Logger for Table {
    /// Keeps the lines of epochs before the first one to come: a later one may be there, of a run that was killed before its checkpoint.
    fn start(&mut self, started: &Started, _settings: &RunConfig) -> CallbackResult {
        let Some(run) = &started.run else { return Ok(()) };
        let path = run.join("epochs.csv");
        let text = if started.resumed.is_some() { fs::read_to_string(&path)? } else { String::new() };
        let is_kept = |line: &&str| {
            let epoch = line.split(',').next().and_then(|epoch| epoch.parse::<u64>().ok());
            epoch.is_none_or(|epoch| epoch < started.first_epoch())
        };
        fs::write(&path, text.split_inclusive('\n').filter(is_kept).collect::<String>())?;
        self.file = Some(OpenOptions::new().append(true).open(&path)?);
        Ok(())
    }

    fn scalars(&mut self, at: LogPoint, scalars: &[(&str, f64)]) -> CallbackResult {
        let (LogPoint::Epoch(epoch), Some(file)) = (at, &mut self.file) else { return Ok(()) };
        let row = |first: String, column: &dyn Fn(&(&str, f64)) -> String| {
            std::iter::once(first).chain(scalars.iter().map(column)).collect::<Vec<_>>().join(",") + "\n"
        };
        if file.metadata()?.len() == 0 {
            file.write_all(row("epoch".to_owned(), &|(name, _)| (*name).to_owned()).as_bytes())?;
        }
        file.write_all(row(epoch.to_string(), &|(_, value)| value.to_string()).as_bytes())?;
        // The record is on disk before the checkpoint.
        Ok(file.sync_data()?)
    }

    fn artifact(&mut self, kind: Artifact, path: &std::path::Path) -> CallbackResult {
        println!("{kind:?}: {}", path.display());
        Ok(())
    }

    /// What follows is a test, whose values are others.
    fn finish(&mut self, _error: Option<&TrainError>) -> CallbackResult {
        self.file = None;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let config = TrainConfig { epochs: 50, size: Some(32), ..TrainConfig::default() };
    let data = TrainingData::open(&shapes::ensure(&shapes::default_cache()?)?, &config.open_options())?;
    let device = device("cpu", 2)?;
    let mut trainer = Trainer::new(config, device)
        .callback(EarlyStopping::new(Monitor::lower("val_loss")).patience(3))
        .logger(Table::default());
    let done = trainer.fit("lenet", &enmasse::models::lenet, &data)?;
    println!("best {}, with epochs.csv in {}", done.best, done.run.display());
    Ok(())
}
