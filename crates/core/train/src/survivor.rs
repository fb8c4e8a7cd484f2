//! What a rank needs to write the run's last checkpoint in the place of rank 0, after another rank has died.

use std::collections::BTreeMap;
use std::path::Path;

use enmasse_comm::Group;
use enmasse_device::Program;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{CallbackStates, Draft, Fill};
use crate::plans::training_metrics;
use crate::run_folder::{SharedFolder, create_folder_of};
use crate::run_writer::RunWriter;
use crate::state::StateTensors;
use crate::weights::first_non_finite;
use crate::{CheckpointMeta, Position, RunError, TrainError};

/// A rank's copy of what rank 0 writes beside the tensors, and the way to the run's folder.
pub struct Survivor {
    folder: SharedFolder,
    /// Only the position and the states of callbacks change during a run.
    meta: CheckpointMeta,
}

/// Where the run stands on a rank, for a checkpoint.
pub struct Standing {
    pub position: Position,
    /// The states of this rank's callbacks.
    pub states: CallbackStates,
    /// Whether the last checkpoint stays beside the new one.
    pub keeps_last: bool,
}

/// What rank 0 tells the others.
#[derive(Default, Serialize, Deserialize)]
struct Told {
    root: String,
    claim: String,
    meta: BTreeMap<String, String>,
}

impl Survivor {
    /// On every rank that sees the run folder; `writer` is rank 0's. All ranks must call it.
    pub fn of_run(writer: Option<&RunWriter>, group: &Group) -> Result<Option<Self>, TrainError> {
        let own = writer.map_or_else(String::new, |writer| serde_json::json!(writer.told()).to_string());
        let texts = group.all_gather_bytes(own.as_bytes())?;
        let told: Told = texts.first().and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let folder = SharedFolder::find(Path::new(&told.root), &told.claim);
        let meta = CheckpointMeta::from_map(&told.meta).ok();
        Ok(folder.zip(meta).map(|(folder, meta)| Survivor { folder, meta }))
    }

    /// Writes the checkpoint, if it is later than the last one; returns whether it was. It waits for other ranks that do the same,
    /// without a deadline.
    pub fn save(&self, program: &mut dyn Program, standing: Standing) -> Result<bool, TrainError> {
        let Standing { position, states, keeps_last } = standing;
        if let Some(name) = first_non_finite(program)? {
            return Err(TrainError::Weights(format!("values of {name} are not finite")));
        }
        let lock = self.folder.lock_checkpoint()?;
        let last = self.folder.paths().last_checkpoint();
        let previous = self.folder.paths().previous_checkpoint();
        let saved = last.exists().then(|| CheckpointMeta::load(&last)).transpose()?;
        if position.optimizer_step <= saved.as_ref().map_or(0, |saved| saved.optimizer_step) {
            return Ok(false);
        }
        let mut meta = self.meta.clone();
        // Some callbacks are rank 0's alone.
        meta.callbacks = saved.map(|saved| saved.callbacks).unwrap_or_default();
        meta.callbacks.extend(states);
        position.write_to(&mut meta, training_metrics(program.plans()));
        if keeps_last && !previous.exists() {
            // Where it is there, another rank has kept it, and no step has proven that rank's checkpoint.
            lock.staging().write_link(&last, &previous).map_err(RunError::from)?;
        }
        let tensors = StateTensors::all(program, None);
        let write = |path: &Path, fill: &mut Fill| lock.staging().write_whole(path, |file| fill(file));
        create_folder_of(&last)?;
        Draft::new(&last, &meta, &tensors)?.write(&last, &write)?;
        Ok(true)
    }
}

impl RunWriter {
    /// What the other ranks need to take its place.
    fn told(&self) -> Told {
        let root = self.paths().root();
        Told {
            root: std::path::absolute(root).as_deref().unwrap_or(root).to_string_lossy().into_owned(),
            claim: self.folder.claim().to_string_lossy().into_owned(),
            meta: self.meta().to_map(),
        }
    }
}
