//! Keeps the checkpoints of the best epochs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use enmasse_system::files::Staging;

use super::{Callback, CallbackResult, Control, SaveReason, Saved, Started};
use crate::run_folder::create_folder_of;
use crate::{Artifact, EpochRecord, Monitor, RunPaths};

/// Keeps the checkpoints of the best epochs by any value of their records, as Lightning's `ModelCheckpoint`. The run folder has
/// the last one and that of the best epoch without it, and with the setting `keep` those of the newest epochs.
///
/// The files are in a folder of the value's name in the run's `checkpoints`, and take no further space while an epoch has another one.
///
/// ```no_run
/// use enmasse_train::{ModelCheckpoint, Monitor, TrainConfig, Trainer};
/// # fn example(device: std::sync::Arc<dyn enmasse_device::Device>) {
/// // checkpoints/val_loss/7-0.1234.safetensors and two more
/// let best = ModelCheckpoint::new(Monitor::lower("val_loss")).save_top_k(3).filename("{epoch}-{val_loss}");
/// let trainer = Trainer::new(TrainConfig::default(), device).callback(best);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ModelCheckpoint {
    monitor: Monitor,
    save_top_k: usize,
    filename: String,
    /// On rank 0.
    folder: Option<PathBuf>,
    /// The best epochs, each with its value and the name of its file; the best one first. Until a checkpoint has followed an epoch there may be
    /// one too many.
    best: Vec<(f64, u64, String)>,
}

impl ModelCheckpoint {
    /// Keeps the checkpoint of the best epoch by a value of [`EpochRecord::scalars`].
    pub fn new(monitor: Monitor) -> Self {
        let filename = format!("{{epoch}}-{{{}}}", monitor.name);
        ModelCheckpoint { monitor, save_top_k: 1, filename, folder: None, best: Vec::new() }
    }

    /// Sets how many epochs it keeps.
    pub fn save_top_k(self, epochs: usize) -> Self {
        ModelCheckpoint { save_top_k: epochs.max(1), ..self }
    }

    /// Sets the pattern of the files' names: `{epoch}`, from 0, and `{NAME}` for the value of that name. `.safetensors` follows.
    pub fn filename(self, pattern: impl Into<String>) -> Self {
        ModelCheckpoint { filename: pattern.into(), ..self }
    }

    /// The checkpoint of the best epoch so far, on rank 0.
    pub fn best_model_path(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(&self.best.first()?.2))
    }

    fn name_of(&self, record: &EpochRecord) -> Result<String, String> {
        let mut name = self.filename.replace("{epoch}", &record.epoch.to_string());
        for (scalar, value) in record.scalars() {
            name = name.replace(&format!("{{{scalar}}}"), &format!("{value:.4}"));
        }
        match name.contains(['{', '}', '/']) {
            true => Err(format!("no epoch has all values of the file name {name:?}")),
            false => Ok(name + ".safetensors"),
        }
    }

    /// Gives the checkpoint at `last` its further name, if it is that of one of the best epochs, and removes what is worse.
    fn keep(&mut self, last: &Path, epoch: u64, control: &mut Control) -> CallbackResult {
        let worse = self.best.split_off(self.save_top_k.min(self.best.len()));
        let Some(folder) = &self.folder else { return Ok(()) };
        if let Some((_, _, name)) = self.best.iter().find(|(_, own, _)| *own == epoch) {
            let path = folder.join(name);
            create_folder_of(&path)?;
            Staging::new(folder.clone(), "it is gone").write_link(last, &path)?;
            control.artifact(Artifact::Checkpoint, &path);
        }
        for (.., name) in worse {
            match std::fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Callback for ModelCheckpoint {
    fn on_fit_start(&mut self, started: &Started, control: &mut Control) -> CallbackResult {
        if !self.filename.contains("{epoch}") {
            return Err(format!("the file name {:?} has no {{epoch}}", self.filename).into());
        }
        self.folder = started.run.as_ref().map(|run| run.join("checkpoints").join(&self.monitor.name));
        match (started.resumed, &started.run) {
            (None, _) => self.best.clear(),
            // A run that was killed between its last checkpoint and what follows.
            (Some(resumed), Some(run)) if resumed.samples == 0 && resumed.epoch > 0 => {
                self.keep(&RunPaths::new(run).last_checkpoint(), resumed.epoch - 1, control)?;
            }
            (Some(_), _) => {}
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        if record.unvalidated {
            return Ok(());
        }
        let value = self.monitor.value(record)?;
        let name = self.name_of(record)?;
        if record.partial || value.is_nan() {
            return Ok(());
        }
        // Of equals the first stays.
        let place = self.best.iter().position(|(other, ..)| self.monitor.improves(value, Some(*other)));
        self.best.insert(place.unwrap_or(self.best.len()), (value, record.epoch, name));
        Ok(())
    }

    fn on_checkpoint(&mut self, saved: &Saved, control: &mut Control) -> CallbackResult {
        match saved.reason {
            SaveReason::EpochEnd(record) => self.keep(saved.path.unwrap_or(Path::new("")), record.epoch, control),
            SaveReason::Step | SaveReason::Stop => Ok(()),
        }
    }

    fn state_key(&self) -> Option<String> {
        Some(format!("ModelCheckpoint {}", self.monitor.name))
    }

    /// A line for each epoch.
    fn state_dict(&self) -> String {
        self.best.iter().map(|(value, epoch, name)| format!("{value} {epoch} {name}\n")).collect()
    }

    fn load_state_dict(&mut self, state: &str) -> CallbackResult {
        let line = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let (value, epoch) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some((value, epoch, words.next()?.to_owned()))
        };
        self.best = state.lines().map(line).collect::<Option<_>>().ok_or("it is no list of epochs")?;
        Ok(())
    }
}
