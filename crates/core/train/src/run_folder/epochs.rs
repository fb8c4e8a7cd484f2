//! The files of single epochs: their checkpoints, of which a run keeps some, and weights for PyTorch.

use std::io::Write;
use std::path::{Path, PathBuf};

use enmasse_system::files::FileError;
use enmasse_weights::{Tensors, pth};

use super::{RunError, RunFolder, RunPaths, create_folder_of};
use crate::{Keep, Preprocessing};

/// The names of epoch checkpoints, around the epoch's number.
const CHECKPOINT: (&str, &str) = ("epoch-", ".safetensors");

impl RunPaths {
    /// The checkpoint at the end of an epoch, counted from 0.
    pub fn epoch_checkpoint(&self, epoch: u64) -> PathBuf {
        self.checkpoints().join(format!("{}{epoch}{}", CHECKPOINT.0, CHECKPOINT.1))
    }

    /// The weights at the end of an epoch, counted from 0 as in the tutorials, in the format of PyTorch's `torch.load`.
    pub fn epoch_weights(&self, epoch: u64) -> PathBuf {
        self.weights().join(format!("model-{epoch}.pth"))
    }

    /// Bytes of all files of the run. Files that vanish meanwhile do not count.
    pub fn bytes(&self) -> u64 {
        bytes_below(self.root())
    }
}

impl RunFolder {
    /// Writes the weights at the end of an epoch, and how images are prepared for them. `updates` is how many steps batch norms
    /// have seen.
    ///
    /// # Errors
    /// A file cannot be written, or the device does not give the tensors.
    pub fn write_epoch_weights(
        &self,
        epoch: u64,
        tensors: &impl Tensors,
        updates: u64,
        preprocessing: &Preprocessing,
    ) -> Result<(), RunError> {
        let path = self.paths.epoch_weights(epoch);
        create_folder_of(&path)?;
        let text = preprocessing.to_json();
        self.staging().write_whole(&Preprocessing::beside(&path), |file| file.write_all(text.as_bytes()))?;
        Ok(self.staging().write_whole(&path, |mut file| pth::write(&mut file, tensors, updates as i64))?)
    }

    /// Removes the checkpoints of epochs that a run at the end of `newest` does not keep.
    pub(crate) fn remove_epoch_checkpoints(&self, keep: Keep, newest: u64) -> Result<(), RunError> {
        let Keep::Newest(kept) = keep else { return Ok(()) };
        let folder = self.paths.checkpoints();
        // A later start of the job keeps what it likes.
        self.staging().check(&folder)?;
        for entry in std::fs::read_dir(&folder).map_err(FileError::of("read", &folder))? {
            let path = entry.map_err(FileError::of("read", &folder))?.path();
            if epoch_of(&path).is_some_and(|epoch| epoch.saturating_add(kept) <= newest) {
                std::fs::remove_file(&path).map_err(FileError::of("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// The epoch whose checkpoint has this name.
fn epoch_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(CHECKPOINT.0)?.strip_suffix(CHECKPOINT.1)?.parse().ok()
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attempt;

    #[test]
    fn the_newest_epochs_stay() {
        let check = |keep: Keep, newest: u64, expected: &[&str]| {
            let place = tempfile::tempdir().unwrap();
            let paths = RunPaths::new(place.path());
            std::fs::create_dir(paths.checkpoints()).unwrap();
            let others = ["best.safetensors", "epoch-x.safetensors", "last.safetensors"];
            let epochs = (0..4).map(|epoch| format!("epoch-{epoch}.safetensors"));
            for name in epochs.chain(others.map(str::to_owned)) {
                std::fs::write(paths.checkpoints().join(name), "1234").unwrap();
            }
            let folder = RunFolder::open(paths.clone(), true, &Attempt::default()).unwrap();
            folder.remove_epoch_checkpoints(keep, newest).unwrap();
            let left = (0..4).filter(|&epoch| paths.epoch_checkpoint(epoch).exists());
            assert_eq!(left.map(|epoch| epoch.to_string()).collect::<Vec<_>>(), expected, "{keep:?}");
            assert!(others.iter().all(|name| paths.checkpoints().join(name).exists()));
            assert_eq!(paths.bytes(), 4 * (expected.len() + others.len()) as u64);
        };
        check(Keep::Newest(0), 3, &[]);
        check(Keep::Newest(1), 3, &["3"]);
        check(Keep::Newest(2), 3, &["2", "3"]);
        check(Keep::Newest(u64::MAX), 3, &["0", "1", "2", "3"]);
        check(Keep::All, 3, &["0", "1", "2", "3"]);
        // An epoch that runs again.
        check(Keep::Newest(1), 2, &["2", "3"]);
    }
}
