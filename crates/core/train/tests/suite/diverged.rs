//! Runs that diverge after a step whose weights are finite, but ruined: no checkpoint of them stays the last one, and no good one is
//! lost, whenever the run is killed.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use crate::fit::{config, cpu};
use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Control, Resume, RunPaths, SaveReason, Saved, TrainConfig, TrainError, Trainer,
    TrainingData,
};

/// Products of its weights overflow long before the weights do.
fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("a", 4).relu().linear("fc", classes)
}

/// Ends the run after as many checkpoints within epochs, as if it was killed there.
struct Killer(usize);

impl Callback for Killer {
    fn on_checkpoint(&mut self, saved: &Saved, _: &mut Control) -> CallbackResult {
        self.0 -= usize::from(matches!(saved.reason, SaveReason::Step));
        if self.0 == 0 { Err("killed".into()) } else { Ok(()) }
    }
}

fn run(config: TrainConfig, saves: usize) -> Option<String> {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    match Trainer::new(config, cpu(1)).callback(Killer(saves)).fit("net", &net, &data) {
        Ok(_) => None,
        Err(TrainError::Callback { .. }) => Some("killed".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// A checkpoint after each step, at the rate, and further ones within 1000 steps.
fn each_step(out: &Path, lr: f64, resume: Resume) -> TrainConfig {
    TrainConfig { save_every: 1, epochs: 2, warmup_epochs: 0.0, lr, resume, ..config(out) }
}

const NEVER: usize = 1000;
const RUINOUS: f64 = 1e20;

/// The checkpoints of a run, as bytes.
fn held(out: &Path) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let paths = RunPaths::new(out);
    let read = |path| std::fs::read(path).ok();
    (read(paths.last_checkpoint()), read(paths.previous_checkpoint()))
}

/// Regression test: the last checkpoint was that of the ruined weights, so that every resume failed at its first step.
#[test]
fn ruined_weights_are_not_the_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    run(TrainConfig { epochs: 1, ..each_step(&out, 0.05, Resume::No) }, NEVER);
    let good = held(&out);
    assert!(good.0.is_some() && good.1.is_none());
    let error = run(each_step(&out, RUINOUS, Resume::Last), NEVER).unwrap();
    let onward = format!(
        "the checkpoint of the step before is no better and gives way to the one before it; continue from it, or from the \
         best epoch by `resume = best`, at a lower rate with: enmasse train --resume --out {} --lr 1e-2",
        out.display()
    );
    assert!(error.starts_with("non-finite loss") && error.ends_with(&onward), "{error}");
    assert!(held(&out) == good);
    assert_eq!(run(each_step(&out, 0.05, Resume::Last), NEVER), None);
    assert!(held(&out).1.is_none());
}

#[test]
fn a_first_checkpoint_of_ruined_weights_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let error = run(each_step(folder.path(), RUINOUS, Resume::No), NEVER).unwrap();
    let onward = "the only checkpoint, of the step before, is no better and is removed; there is no checkpoint yet; start again \
                  with a lower `lr`, or with `warmup_epochs`";
    assert!(error.ends_with(onward), "{error}");
    assert!(held(folder.path()) == (None, None));
}

#[test]
fn a_run_killed_before_a_checkpoint_is_proven_loses_neither() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, out) = (folder.path().join("whole"), folder.path().join("run"));
    assert_eq!(run(each_step(&whole, 0.05, Resume::No), NEVER), None);

    assert_eq!(run(each_step(&out, 0.05, Resume::No), 3).unwrap(), "killed");
    let (third, second) = held(&out);
    assert!(third.is_some() && second.is_some() && third != second);
    // The later one is good: the run goes on from it, and ends with the bits of the other.
    assert_eq!(run(each_step(&out, 0.05, Resume::Last), 1).unwrap(), "killed");
    assert!(held(&out).1 == third);

    // The later one is ruined, and the run was killed before anybody knew.
    let (good, _) = held(&out);
    assert_eq!(run(each_step(&out, RUINOUS, Resume::Last), 1).unwrap(), "killed");
    let (ruined, previous) = held(&out);
    assert!(previous == good && ruined != good);
    let error = run(each_step(&out, 0.05, Resume::Last), NEVER).unwrap();
    assert!(error.contains("gives way to the one before it"), "{error}");
    assert!(held(&out) == (good, None));
    assert_eq!(run(each_step(&out, 0.05, Resume::Last), NEVER), None);
    assert_eq!(held(&out).1, None);
    let tensors = |out: &Path| enmasse_train::load_weights(&RunPaths::new(out).last_checkpoint()).unwrap();
    assert!(tensors(&out) == tensors(&whole));
}
