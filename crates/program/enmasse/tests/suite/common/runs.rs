//! Runs on tiny images: their arguments, and comparisons between two runs.

use std::path::{Path, PathBuf};

use enmasse_train::{Checkpoint, NamedTensor};

use super::{Ended, images, metrics};

/// The arguments of a run on `data` into `run`, and further ones.
pub fn arguments(data: &Path, run: &Path, others: &[&str]) -> Vec<String> {
    let fixed = ["--model", "mlp", "--size", "8", "--batch", "2", "--threads", "1", "--json", "--out"];
    let mut arguments = vec!["train".to_owned(), data.display().to_string()];
    arguments
        .extend(fixed.iter().chain([&run.display().to_string().as_str()]).chain(others).map(|word| word.to_string()));
    arguments
}

/// Images and runs, in a folder that is removed on drop.
pub struct Folder {
    temporary: tempfile::TempDir,
    pub data: PathBuf,
    epochs: &'static str,
}

impl Folder {
    pub fn new(epochs: &'static str) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let data = images(temporary.path(), 20);
        Folder { temporary, data, epochs }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// The arguments of a run.
    pub fn arguments(&self, run: &Path, others: &[&str]) -> Vec<String> {
        arguments(&self.data, run, &[&["--epochs", self.epochs, "--lr", "0.001"], others].concat())
    }
}

/// Every loss and accuracy of a run, digit by digit.
pub fn figures(ended: &Ended) -> Vec<String> {
    let epochs = ended.json().into_iter().filter(|line| line["event"] == "epoch");
    epochs.map(|epoch| format!("{} {} {}", epoch["train_loss"], epoch["val_loss"], epoch["val_accuracy"])).collect()
}

/// The tensors of a run's checkpoint, including optimiser state, as bits.
pub fn tensors(run: &Path, name: &str) -> Vec<(String, Vec<u32>)> {
    let path = run.join("checkpoints").join(name);
    let checkpoint = Checkpoint::load(&path).unwrap_or_else(|error| panic!("{error}"));
    let bits = |tensor: NamedTensor| (tensor.name, tensor.values.into_iter().map(f32::to_bits).collect());
    checkpoint.tensors.into_iter().map(bits).collect()
}

/// Asserts that two runs ended with the same bits, and recorded the same epochs once each.
#[track_caller]
pub fn assert_same(one: &Path, other: &Path) {
    for file in ["last.safetensors", "best.safetensors"] {
        assert!(tensors(one, file) == tensors(other, file), "{file} differs: {}", other.display());
    }
    let epochs = |run: &Path| {
        let of = |epoch: &serde_json::Value| {
            ["epoch", "train_loss", "val_loss", "val_accuracy", "learning_rate"].map(|key| epoch[key].to_string())
        };
        metrics(run).iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(epochs(one), epochs(other));
}
