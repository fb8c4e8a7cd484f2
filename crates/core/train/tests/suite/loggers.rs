//! Loggers: on rank 0 alone, each epoch once and before its checkpoint, also over a resume.

use std::path::Path;
use std::sync::{Arc, Mutex};

use enmasse_train::{
    Artifact, Callback, CallbackResult, Control, EpochRecord, LogPoint, Logger, Progress, RunConfig, RunPaths, Saved,
    Started, TrainConfig, TrainError, Trainer, TrainingData,
};

use crate::common::Colours;
use crate::fit::{config, cpu, net};

/// What a run has told, in order.
type Told = Arc<Mutex<Vec<String>>>;

fn tell(told: &Told, event: String) -> CallbackResult {
    told.lock().unwrap().push(event);
    Ok(())
}

/// Records every call, and fails in one.
struct Recorder {
    told: Told,
    fails_in: &'static str,
}

impl Recorder {
    fn call(&self, event: String) -> CallbackResult {
        let fails = !self.fails_in.is_empty() && event.starts_with(self.fails_in);
        tell(&self.told, event)?;
        if fails { Err("the disk is full".into()) } else { Ok(()) }
    }
}

impl Logger for Recorder {
    fn start(&mut self, started: &Started, settings: &RunConfig) -> CallbackResult {
        let epoch = started.first_epoch();
        let step = started.optimizer_step;
        let lr = settings.train.lr;
        self.call(format!("start at {epoch} {step} with lr {lr}"))
    }

    fn scalars(&mut self, at: LogPoint, scalars: &[(&str, f64)]) -> CallbackResult {
        let names: Vec<&str> = scalars.iter().map(|(name, _)| *name).collect();
        // An epoch has eleven values of its own.
        let named = if names.len() < 11 { names.join(" ") } else { names[11..].join(" ") };
        self.call(format!("{at:?} {named}"))
    }

    fn artifact(&mut self, kind: Artifact, path: &Path) -> CallbackResult {
        assert!(path.is_file(), "{}", path.display());
        self.call(format!("{kind:?} {}", path.file_stem().unwrap().display()))
    }

    fn finish(&mut self, error: Option<&TrainError>) -> CallbackResult {
        self.call(error.map_or("finish".to_owned(), |error| format!("finish by {error}")))
    }
}

/// Logs a value of the step and of the epoch, and tells of checkpoints. Ends the run after that of an epoch.
struct Logs {
    told: Told,
    ends_after: Option<u64>,
}

impl Callback for Logs {
    fn on_train_batch_end(&mut self, progress: &Progress, control: &mut Control) -> CallbackResult {
        if progress.optimizer_step.is_multiple_of(5) {
            control.log_step(progress.optimizer_step, "temperature", 36.5);
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        Ok(control.log("twice", 2.0 * record.epoch as f64)?)
    }

    fn on_checkpoint(&mut self, saved: &Saved, _: &mut Control) -> CallbackResult {
        tell(&self.told, format!("checkpoint at {}", saved.epoch))?;
        if Some(saved.epoch) == self.ends_after { Err("killed".into()) } else { Ok(()) }
    }
}

/// What a run on `ranks` ranks tells, and its result.
fn run(
    config: &TrainConfig,
    ranks: usize,
    fails_in: &'static str,
    ends_after: Option<u64>,
) -> (Vec<String>, Result<(), String>) {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17))).with_test(Arc::new(Colours(11)));
    let results = enmasse_launch::spawn(ranks, |group| {
        let told = Told::default();
        let is_main = group.is_main();
        let mut trainer = Trainer::new(config.clone(), cpu(1))
            .callback(Logs { told: told.clone(), ends_after })
            .logger(Recorder { told: told.clone(), fails_in })
            .group(group);
        let result = trainer.fit("net", &net, &data).and_then(|_| trainer.test(&data)).map(drop);
        drop(trainer);
        let told = told.lock().unwrap().clone();
        Ok::<_, String>((is_main, told, result.map_err(|error| error.to_string())))
    });
    let mut results = results.unwrap();
    for (is_main, told, _) in &results[1..] {
        assert!(!is_main && told.iter().all(|event| event.starts_with("checkpoint")), "{told:?}");
    }
    let (_, told, result) = results.remove(0);
    (told, result)
}

#[test]
fn rank_0_records_all_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2] {
        let out = folder.path().join(ranks.to_string());
        let config = TrainConfig { epochs: 1, batch: Some(8 / ranks), save_every: 0, ..config(&out) };
        let (told, result) = run(&config, ranks, "", None);
        result.unwrap();
        let expected = "start at 0 0 with lr 0.05, Chart class_distribution, Step(5) temperature, \
                        Chart training_curves, Chart confusion_matrix, Chart augmented, Epoch(0) twice, checkpoint at 1, \
                        Checkpoint best, Checkpoint last, finish, \
                        Epoch(0) test_loss test_accuracy test_balanced_accuracy test_macro_f1, finish";
        assert_eq!(told.join(", "), expected, "{ranks} ranks");
        assert_eq!(std::fs::read_dir(out.join("steps")).unwrap().count(), 1);
        assert_eq!(std::fs::read_to_string(RunPaths::new(&out).metrics()).unwrap().lines().count(), 1);
    }
}

#[test]
fn a_resumed_run_records_no_epoch_twice() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let config = TrainConfig { save_every: 0, ..config(&out) };
    let epochs = |told: &[String]| -> Vec<String> {
        told.iter().filter(|event| event.starts_with("Epoch") || event.starts_with("start")).cloned().collect()
    };
    let (told, result) = run(&config, 1, "", Some(2));
    assert_eq!(epochs(&told), ["start at 0 0 with lr 0.05", "Epoch(0) twice", "Epoch(1) twice"]);
    let killed = "a callback failed in on_checkpoint: killed";
    assert_eq!((result.unwrap_err().as_str(), told.last().unwrap()), (killed, &format!("finish by {killed}")));
    let (told, result) = run(&TrainConfig { resume: true.into(), ..config }, 1, "", None);
    result.unwrap();
    let test = "Epoch(2) test_loss test_accuracy test_balanced_accuracy test_macro_f1";
    let told = epochs(&told);
    assert_eq!(told[..2], ["start at 2 14 with lr 0.05", "Epoch(2) twice"]);
    assert!(told.len() == 3 && told[2].ends_with(&test[9..]), "{told:?}");
}

#[test]
fn an_error_of_a_logger_ends_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let check = |fails_in: &'static str, method: &str, is_saved: bool| {
        let out = folder.path().join(method);
        let (told, result) =
            run(&TrainConfig { epochs: 1, batch: Some(4), save_every: 0, ..config(&out) }, 2, fails_in, None);
        let error = result.unwrap_err();
        assert_eq!(error, format!("a callback failed in Logger::{method}: the disk is full"));
        assert_eq!(told.iter().filter(|event| event.starts_with("finish")).count(), 1, "{told:?}");
        assert_eq!(RunPaths::new(&out).last_checkpoint().exists(), is_saved, "{method}");
    };
    check("start", "start", false);
    check("Step", "scalars", false);
    // The record comes before the checkpoint.
    check("Epoch", "epoch", false);
    check("Checkpoint last", "artifact", true);
    check("finish", "finish", true);
}
