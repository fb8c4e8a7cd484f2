//! The callbacks that come with the library, in runs on several ranks, over resumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, EarlyStopping, EpochRecord, LogPoint, Logger, LrMonitor,
    ModelCheckpoint, Monitor, RunPaths, Saved, TrainConfig, TrainError, Trainer, TrainingData,
};

use crate::common::Colours;
use crate::fit::cpu;

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc", classes)
}

/// A run whose weights stay as they are, for at most ten epochs of 6 steps on two ranks.
fn config(out: &Path) -> TrainConfig {
    let (batch, size) = (Some(4), Some(8));
    TrainConfig {
        epochs: 10,
        batch,
        size,
        drop_last: true,
        lr: 1e-30,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// Logs a score for each epoch, and takes note of why training ended. May end the run before callbacks after it hear of a checkpoint.
#[derive(Clone, Default)]
struct Scores {
    scores: Vec<f64>,
    ends_after: Option<u64>,
    epochs: u64,
    reason: Option<String>,
}

impl Callback for Scores {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        self.epochs = record.epoch + 1;
        let score = self.scores.get(record.epoch as usize).copied().unwrap_or(0.0);
        Ok(control.log("score", score)?)
    }

    fn on_checkpoint(&mut self, saved: &Saved, _: &mut Control) -> CallbackResult {
        if Some(saved.epoch) == self.ends_after { Err("killed".into()) } else { Ok(()) }
    }

    fn on_fit_end(&mut self, control: &mut Control) -> CallbackResult {
        self.reason = control.reason().map(str::to_owned);
        Ok(())
    }
}

#[test]
fn a_run_that_no_longer_improves_ends_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let check = |patience: u64, resume: bool, epochs: usize, done: u64, expected: Option<&str>| {
        let config = TrainConfig { epochs, patience: Some(patience), resume: resume.into(), ..config(&out) };
        let ran = enmasse_launch::spawn(2, |group| {
            let mut own = Scores::default();
            Trainer::new(config.clone(), cpu(1)).group(group).callback(&mut own).fit("net", &net, &data())?;
            Ok::<_, TrainError>(own)
        });
        for own in ran.unwrap() {
            let reason = own.reason.as_deref().map(|reason| reason.split(';').next().unwrap());
            assert_eq!((own.epochs, reason), (done, expected), "{patience} {resume}");
        }
    };
    check(2, false, 10, 3, Some("val_accuracy has not improved for 2 epochs"));
    let saved = std::fs::read(RunPaths::new(&out).last_checkpoint()).unwrap();
    // Nothing is left to do: no epoch was trained, and no checkpoint written.
    check(2, true, 10, 0, Some("val_accuracy has not improved for 2 epochs"));
    assert_eq!(std::fs::read(RunPaths::new(&out).last_checkpoint()).unwrap(), saved);
    check(4, true, 10, 5, Some("val_accuracy has not improved for 4 epochs"));
    // The last epoch is no early end.
    check(5, true, 6, 6, None);
}

#[test]
fn one_rank_that_sees_no_improvement_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let ran = enmasse_launch::spawn(2, |group| {
        let scores = if group.is_main() { (0..10).map(f64::from).collect() } else { Vec::new() };
        let mut own = Scores { scores, ..Scores::default() };
        let stopping = EarlyStopping::new(Monitor::higher("score")).patience(3);
        let mut trainer =
            Trainer::new(config(&folder.path().join("run")), cpu(1)).group(group).callback(&mut own).callback(stopping);
        trainer.fit("net", &net, &data())?;
        drop(trainer);
        Ok::<_, TrainError>(own.epochs)
    });
    assert_eq!(ran.unwrap(), [4, 4]);
}

/// The error of a run with this callback.
fn refused(out: PathBuf, callback: impl Callback) -> String {
    Trainer::new(config(&out), cpu(1)).callback(callback).fit("net", &net, &data()).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_monitored_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let stopping = EarlyStopping::new(Monitor::lower("loss"));
    let unknown = "a callback failed in on_train_epoch_end: no epoch has loss: there are learning_rate,";
    let error = refused(folder.path().join("stopping"), stopping);
    assert!(error.starts_with(unknown), "{error}");
    let check = |pattern: &str, expected: &str| {
        let best = ModelCheckpoint::new(Monitor::lower("val_loss")).filename(pattern);
        assert_eq!(refused(folder.path().join(pattern), best), expected);
    };
    check("{val_loss}", "a callback failed in on_fit_start: the file name \"{val_loss}\" has no {epoch}");
    let unknown = "a callback failed in on_train_epoch_end: no epoch has all values of the file name \"0-{loss}\"";
    check("{epoch}-{loss}", unknown);
}

#[test]
fn the_best_epochs_keep_their_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let run = |epochs: usize, resume: bool, ends_after: Option<u64>| {
        let config = TrainConfig { epochs, resume: resume.into(), ..config(&out) };
        let ran = enmasse_launch::spawn(2, |group| {
            let scores = Scores { scores: vec![3.0, 1.0, f64::NAN, 2.0, 5.0, 3.0], ends_after, ..Scores::default() };
            let mut best = ModelCheckpoint::new(Monitor::higher("score")).save_top_k(2).filename("{epoch}-{score}");
            let is_main = group.is_main();
            let mut trainer = Trainer::new(config.clone(), cpu(1)).group(group).callback(scores).callback(&mut best);
            let _ = trainer.fit("net", &net, &data());
            drop(trainer);
            Ok::<_, TrainError>(best.best_model_path().filter(|_| is_main))
        });
        ran.unwrap().remove(0).unwrap()
    };
    let check = |best: PathBuf, expected: &[(&str, u64)]| {
        let kept = out.join("checkpoints/score");
        assert_eq!(best, kept.join(expected[0].0));
        let mut names: Vec<_> = std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let mut sorted: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
        sorted.sort();
        assert_eq!(names, sorted);
        for (name, epoch) in expected {
            assert_eq!(Checkpoint::load(&kept.join(name)).unwrap().meta.epoch, epoch + 1);
        }
    };
    check(run(3, false, None), &[("0-3.0000.safetensors", 0), ("1-1.0000.safetensors", 1)]);
    check(run(4, true, None), &[("0-3.0000.safetensors", 0), ("3-2.0000.safetensors", 3)]);
    // Killed between the checkpoint of the best epoch and its further name.
    let left = run(5, true, Some(5));
    assert!(!left.exists());
    check(run(6, true, None), &[("4-5.0000.safetensors", 4), ("0-3.0000.safetensors", 0)]);
}

/// The values of steps.
struct Steps<'a>(&'a mut Vec<(u64, f64)>);

impl Logger for Steps<'_> {
    fn scalars(&mut self, at: LogPoint, scalars: &[(&str, f64)]) -> CallbackResult {
        if let (LogPoint::Step(step), &[("lr", rate)]) = (at, scalars) {
            self.0.push((step, rate));
        }
        Ok(())
    }
}

#[test]
fn loggers_have_the_rate_of_steps() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { epochs: 1, lr: 0.5, warmup_epochs: 1.0, ..config(&folder.path().join("run")) };
    let mut steps = Vec::new();
    let mut trainer = Trainer::new(config, cpu(1)).callback(LrMonitor::every(4)).logger(Steps(&mut steps));
    trainer.fit("net", &net, &data()).unwrap();
    drop(trainer);
    assert_eq!(steps.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 8, 12]);
    assert!(steps.is_sorted_by(|(_, one), (_, next)| one < next) && steps[2].1 < 0.5, "{steps:?}");
}
