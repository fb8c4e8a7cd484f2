//! Runs that are shorter than their epochs: limits of time and of batches, validations after some epochs, and a run that only tries
//! whether everything works.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::Colours;
use crate::fit::{config, cpu, net};
use enmasse_data::{DataError, Dataset};
use enmasse_image::Image;
use enmasse_train::{
    BatchLimit, Callback, CallbackResult, Checkpoint, Control, DoneRecord, EpochRecord, FastDevRun, Progress, RunPaths,
    Saved, Started, TimeLimit, TrainConfig, TrainError, Trainer, TrainingData,
};

/// What a run tells.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Told>>);

#[derive(Clone, Default)]
struct Told {
    /// The samples of an epoch after each step of it, and of validation.
    training: Vec<(u64, u64)>,
    validation: Vec<(u64, u64)>,
    rates: Vec<f64>,
    records: Vec<EpochRecord>,
    reason: Option<String>,
    started: Option<([usize; 2], usize)>,
    has_saved: bool,
}

impl Watch {
    fn take(&self) -> Told {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Callback for Watch {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        self.0.lock().unwrap().started = Some((started.epoch_steps, started.evaluated_samples));
        Ok(())
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        let mut told = self.0.lock().unwrap();
        told.training.push((progress.samples, progress.total));
        told.rates.push(progress.learning_rate);
        Ok(())
    }
    fn on_validation_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        self.0.lock().unwrap().validation.push((progress.samples, progress.total));
        Ok(())
    }
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.0.lock().unwrap().records.push(record.clone());
        Ok(())
    }
    fn on_checkpoint(&mut self, saved: &Saved, _: &mut Control) -> CallbackResult {
        self.0.lock().unwrap().has_saved |= saved.path.is_some();
        Ok(())
    }
    fn on_fit_end(&mut self, control: &mut Control) -> CallbackResult {
        self.0.lock().unwrap().reason = control.reason().map(str::to_owned);
        Ok(())
    }
}

/// 50 samples to train on, which are seven steps, and 17 to validate on, which are three.
fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

fn fit(config: TrainConfig) -> (Told, DoneRecord) {
    let watch = Watch::default();
    let done = Trainer::new(config, cpu(1)).callback(watch.clone()).fit("net", &net, &data()).unwrap();
    (watch.take(), done)
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

#[test]
fn an_epoch_of_some_batches_is_a_whole_one() {
    let folder = tempfile::tempdir().unwrap();
    let limited = |name: &str| TrainConfig {
        epochs: 2,
        limit_train_batches: Some(BatchLimit::Batches(3)),
        limit_val_batches: Some(BatchLimit::Share(0.5)),
        warmup_epochs: 2.0,
        ..config(&folder.path().join(name))
    };
    let (told, done) = fit(limited("whole"));
    assert_eq!(told.training, [(8, 24), (16, 24), (24, 24), (8, 24), (16, 24), (24, 24)]);
    assert_eq!(told.validation, [(8, 8), (8, 8)]);
    assert_eq!(told.started, Some(([3, 7], 8)));
    assert!(told.records.iter().all(|record| !record.partial) && done.best.value.is_some());
    // The warm-up takes six steps.
    let expected = (0..6).map(|step| 0.05 * (0.01 + 0.99 * (f64::from(step) / 6.0)));
    assert!(
        told.rates.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-15),
        "{:?}",
        told.rates
    );
    // Resumed within an epoch.
    let (before, _) = fit(TrainConfig { max_steps: Some(4), ..limited("cut") });
    let (after, _) = fit(TrainConfig { resume: true.into(), ..limited("cut") });
    assert_eq!([before.training, after.training].concat(), told.training);
    assert!(last(&folder.path().join("cut")).tensors == last(&folder.path().join("whole")).tensors);
}

/// The classes of the images that were read.
struct Ordered(Mutex<Vec<usize>>);

impl Dataset for Ordered {
    fn len(&self) -> usize {
        30
    }
    fn label(&self, index: usize) -> usize {
        index / 10
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.0.lock().unwrap().push(index);
        Colours(30).read(index)
    }
}

#[test]
fn a_validation_of_some_batches_has_all_classes() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, name) in [(1, "one"), (2, "two")] {
        let images = Arc::new(Ordered(Mutex::default()));
        let data = TrainingData::new(Arc::new(Colours(30)), images.clone());
        let config = TrainConfig {
            epochs: 1,
            batch: Some(3),
            shards: Some(2),
            limit_val_batches: Some(BatchLimit::Batches(1)),
            ..config(&folder.path().join(name))
        };
        let losses = enmasse_launch::spawn(ranks, |group| {
            let watch = Watch::default();
            Trainer::new(config.clone(), cpu(1)).group(group).callback(watch.clone()).fit("net", &net, &data)?;
            Ok::<_, TrainError>(watch.take().records[0].val_loss)
        });
        assert!(losses.unwrap().windows(2).all(|pair| pair[0] == pair[1]));
        let mut read = std::mem::take(&mut *images.0.lock().unwrap());
        read.sort_unstable();
        assert_eq!(read, [0, 5, 10, 15, 20, 25], "{name}");
    }
}

#[test]
fn epochs_without_a_validation_are_not_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, epochs: usize| {
        let monitor = Some("train_loss".to_owned());
        fit(TrainConfig { epochs, val_every: 2, monitor, ..config(&folder.path().join(name)) })
    };
    let (told, done) = run("whole", 5);
    let validated: Vec<u64> =
        told.records.iter().filter(|record| !record.unvalidated).map(|record| record.epoch).collect();
    assert_eq!(validated, [1, 3, 4]);
    for record in &told.records {
        let is_validated = validated.contains(&record.epoch);
        assert_eq!((record.val_loss.is_finite(), record.val_accuracy.is_some()), (is_validated, is_validated));
        assert!(record.train_accuracy.is_some() && (is_validated || !record.best));
        assert_eq!(record.value("val_loss").is_some(), is_validated);
    }
    let best = validated.iter().map(|&epoch| told.records[epoch as usize].train_loss).fold(f64::INFINITY, f64::min);
    assert_eq!(done.best.value, Some(best));
    let lines = std::fs::read_to_string(folder.path().join("whole/metrics.jsonl")).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines[0].contains(r#""val_loss":null,"learning_rate""#) && lines[0].contains(r#""unvalidated":true"#));
    assert!(!lines[1].contains("unvalidated"));
    assert!(folder.path().join("whole/charts/training_curves.svg").is_file());
    // The last epoch is validated, whatever its number.
    let (first, _) = run("short", 3);
    assert_eq!(first.records.iter().map(|record| record.unvalidated).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn patience_counts_validated_epochs() {
    let folder = tempfile::tempdir().unwrap();
    // At this rate no accuracy changes.
    let config = TrainConfig { epochs: 9, lr: 1e-12, val_every: 2, patience: Some(2), ..config(folder.path()) };
    let (told, _) = fit(TrainConfig { out: Some(folder.path().join("run")), warmup_epochs: 0.0, ..config });
    assert_eq!(told.records.len(), 6);
    assert_eq!(told.reason.as_deref().map(|reason| reason.contains("for 2 epochs")), Some(true));
}

/// A clock is no part of the arithmetic: after any time has passed all ranks end on one step, and go on with the same bits.
#[test]
fn all_ranks_end_when_the_time_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, cut] = ["whole", "cut"].map(|name| folder.path().join(name));
    let run = |out: &Path, max_time: Option<u64>, resume: bool| {
        let config = TrainConfig {
            batch: Some(2),
            max_time: max_time.map(|nanoseconds| TimeLimit(Duration::from_nanos(nanoseconds))),
            resume: resume.into(),
            ..config(out)
        };
        let data = data().with_test(Arc::new(Colours(7)));
        let ranks = enmasse_launch::spawn(3, |group| {
            let watch = Watch::default();
            let mut trainer = Trainer::new(config.clone(), cpu(1)).group(group).callback(watch.clone());
            trainer.fit("net", &net, &data)?;
            assert_eq!(trainer.test(&data)?.samples, 7);
            Ok::<_, TrainError>(watch.take())
        });
        ranks.unwrap()
    };
    run(&whole, None, false);
    let ended = run(&cut, Some(1), false);
    let steps = ended[0].training.len();
    assert!(steps <= 4 && ended.iter().all(|told| told.training.len() == steps && told.records.is_empty()));
    assert_eq!(ended[0].reason.as_deref(), Some("the 0.000000001s of `max_time` are over"));
    assert_eq!(last(&cut).meta.optimizer_step, steps as u64);
    let state: f64 = last(&cut).meta.callbacks["Timer"].parse().unwrap();
    assert!(state > 0.0);
    // Nothing is left of its time.
    assert!(run(&cut, Some(1), true).iter().all(|told| told.training.is_empty()));
    run(&cut, Some(3_600_000_000_000), true);
    assert!(last(&cut).tensors == last(&whole).tensors);
    let counted: f64 = last(&cut).meta.callbacks["Timer"].parse().unwrap();
    assert!(counted > state);
}

#[test]
fn a_fast_run_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let check = |batches: usize, ranks: usize| {
        let config = TrainConfig {
            fast_dev_run: FastDevRun(NonZeroUsize::new(batches)),
            shards: Some(2),
            batch: Some(4),
            max_steps: Some(1),
            ..config(&out)
        };
        let told = enmasse_launch::spawn(ranks, |group| {
            let watch = Watch::default();
            let done =
                Trainer::new(config.clone(), cpu(1)).group(group).callback(watch.clone()).fit("net", &net, &data())?;
            Ok::<_, TrainError>((watch.take(), done))
        });
        for (told, done) in told.unwrap() {
            assert_eq!((told.training.len(), told.records.len(), told.has_saved), (batches, 1, false));
            assert_eq!(told.started, Some(([batches, 7], 8 * batches)));
            assert_eq!((done.run, done.run_bytes), ("".into(), 0));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    };
    check(1, 1);
    check(2, 2);
    let config = TrainConfig { fast_dev_run: FastDevRun(NonZeroUsize::new(1)), resume: true.into(), ..config(&out) };
    let error = Trainer::new(config, cpu(1)).fit("net", &net, &data()).unwrap_err().to_string();
    assert_eq!(error, "resume true: `fast_dev_run` is for the beginning of a run, and keeps nothing; use one of them");
}
