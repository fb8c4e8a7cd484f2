//! Callbacks: the order of events, and the effect of one rank's callback on the run of all ranks.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::Batch;
use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, DoneRecord, EpochRecord, Evaluation, Progress, RunPaths, SaveReason,
    Saved, Started, TrainConfig, TrainError, Trainer, TrainingData,
};

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().dropout("drop", 0.2).linear("fc", classes)
}

/// On 2 ranks, an epoch has 6 steps of 8 samples, and validation 3 batches on each rank.
fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 3,
        batch: Some(4),
        size: Some(8),
        drop_last: true,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// Records every event, and performs an action at one of them, on one rank.
#[derive(Clone)]
struct Script<'a> {
    events: Vec<String>,
    at: &'a str,
    action: fn(&mut Control) -> CallbackResult,
    /// Fails at this event, on rank 0: a checkpoint is written by then, which an error of another rank might keep it from.
    fails_at: &'a str,
}

impl<'a> Script<'a> {
    fn new(at: &'a str, action: fn(&mut Control) -> CallbackResult) -> Self {
        Script { events: Vec::new(), at, action, fails_at: "nothing" }
    }

    fn event(&mut self, event: String, control: &mut Control) -> CallbackResult {
        let result = if event == self.at { (self.action)(control) } else { Ok(()) };
        let fails = event == self.fails_at;
        self.events.push(event);
        if fails { Err("killed".into()) } else { result }
    }
}

impl Callback for Script<'_> {
    fn on_fit_start(&mut self, started: &Started, control: &mut Control) -> CallbackResult {
        self.event(format!("start {}", started.model), control)
    }

    fn on_train_epoch_start(&mut self, epoch: u64, control: &mut Control) -> CallbackResult {
        self.event(format!("begin {epoch}"), control)
    }

    fn on_train_batch_start(&mut self, batch: &Batch, control: &mut Control) -> CallbackResult {
        self.event(format!("batch of {}", batch.valid), control)
    }

    fn on_train_batch_end(&mut self, progress: &Progress, control: &mut Control) -> CallbackResult {
        self.event(format!("step {} {}", progress.optimizer_step, progress.samples), control)
    }

    fn on_validation_start(&mut self, epoch: u64, control: &mut Control) -> CallbackResult {
        self.event(format!("validation of {epoch}"), control)
    }

    fn on_validation_batch_end(&mut self, progress: &Progress, control: &mut Control) -> CallbackResult {
        self.event(format!("validation step {} {}", progress.optimizer_step, progress.samples), control)
    }

    fn on_validation_end(&mut self, found: &Evaluation, control: &mut Control) -> CallbackResult {
        self.event(format!("validated {}", found.samples), control)
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        self.event(format!("epoch {}", record.epoch), control)
    }

    fn on_checkpoint(&mut self, saved: &Saved, control: &mut Control) -> CallbackResult {
        let reason = match saved.reason {
            SaveReason::EpochEnd(record) => format!("of epoch {}", record.epoch),
            SaveReason::Step => "of a step".to_owned(),
            SaveReason::Stop => "of a stop".to_owned(),
        };
        self.event(format!("checkpoint {reason} at {} {}", saved.epoch, saved.samples), control)
    }

    fn on_exception(&mut self, error: &TrainError) {
        self.events.push(format!("exception: {error}"));
    }
}

/// The result of a rank, and its events.
type Told = (Result<DoneRecord, String>, Vec<String>);

/// Trains on 2 ranks, of which the last has the script.
fn run(config: &TrainConfig, script: &Script) -> Vec<Told> {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let ranks = enmasse_launch::spawn(2, |group| {
        let mut own = script.clone();
        if group.rank() == 0 {
            own.at = "nothing";
        } else {
            own.fails_at = "nothing";
        }
        let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let result = Trainer::new(config.clone(), device).group(group).callback(&mut own).fit("net", &net, &data);
        Ok::<_, String>((result.map_err(|error| error.to_string()), own.events))
    });
    ranks.unwrap()
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

#[test]
fn events_come_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { epochs: 1, save_every: 4, ..config(folder.path()) };
    let (result, events) = run(&config, &Script::new("nothing", |_| Ok(()))).remove(0);
    result.unwrap();
    let expected = "start net, begin 0, batch of 4, batch of 4, step 1 8, batch of 4, step 2 16, batch of 4, step 3 24, \
                    checkpoint of a step at 0 32, step 4 32, batch of 4, batch of 4, step 5 40, step 6 48, \
                    validation of 0, validation step 6 8, validation step 6 16, validation step 6 17, validated 17, epoch 0, \
                    checkpoint of epoch 0 at 1 0";
    assert_eq!(events.join(", "), expected);
}

#[test]
fn a_callback_of_one_rank_finishes_training_on_all() {
    let folder = tempfile::tempdir().unwrap();
    let check = |at: &str, saved: &str, place: (u64, u64)| {
        let out = folder.path().join(at.replace(' ', "-"));
        let told = run(
            &config(&out),
            &Script::new(at, |control| {
                control.stop();
                Ok(())
            }),
        );
        for (result, events) in told {
            assert!(result.is_ok(), "{at}: {result:?}");
            assert_eq!(events.iter().rfind(|event| event.starts_with("checkpoint")).unwrap(), saved, "{at}");
            assert!(!events.iter().any(|event| event.starts_with("exception")), "{at}: {events:?}");
        }
        let meta = last(&out).meta;
        assert_eq!((meta.epoch, meta.samples_consumed), place, "{at}");
    };
    // The next step is already in flight. The step after it carries the request, and another step is in flight when the
    // request is read.
    check("step 1 8", "checkpoint of a stop at 0 32", (0, 32));
    check("step 8 16", "checkpoint of a stop at 1 40", (1, 40));
    // Too late for a step to carry the request: the epoch ends as usual.
    check("step 12 48", "checkpoint of epoch 1 at 2 0", (2, 0));
    check("validation step 6 8", "checkpoint of epoch 0 at 1 0", (1, 0));
    check("validated 17", "checkpoint of epoch 0 at 1 0", (1, 0));
    check("epoch 1", "checkpoint of epoch 1 at 2 0", (2, 0));
    check("checkpoint of epoch 1 at 2 0", "checkpoint of epoch 1 at 2 0", (2, 0));
}

#[test]
fn an_error_of_a_callback_ends_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let check = |at: &str, hook: &str| {
        let out = folder.path().join(at.replace(' ', "-"));
        for (result, events) in run(&config(&out), &Script::new(at, |_| Err("the disk is on fire".into()))) {
            let error = result.unwrap_err();
            assert!(error.contains(&format!("a callback failed in {hook}: the disk is on fire")), "{error}");
            assert_eq!(events.last().unwrap(), &format!("exception: {error}"));
        }
    };
    check("start net", "on_fit_start");
    check("begin 0", "on_train_epoch_start");
    check("batch of 4", "on_train_batch_start");
    check("step 2 16", "on_train_batch_end");
    check("validation of 0", "on_validation_start");
    check("validation step 6 8", "on_validation_batch_end");
    check("validated 17", "on_validation_end");
    check("epoch 0", "on_train_epoch_end");
    check("checkpoint of epoch 0 at 1 0", "on_checkpoint");
}

#[test]
fn a_callback_of_one_rank_saves_a_checkpoint_on_all() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    run(&config(&whole), &Script::new("nothing", |_| Ok(()))).remove(0).0.unwrap();
    let check = |at: &str, saved: Option<(&str, (u64, u64))>| {
        let out = folder.path().join(at.replace(' ', "-"));
        let mut script = Script::new(at, |control| {
            control.checkpoint();
            Ok(())
        });
        let steps = |events: &[String]| -> Vec<String> {
            events.iter().filter(|event| event.starts_with("checkpoint of a step")).cloned().collect()
        };
        for (result, events) in run(&config(&out), &script) {
            result.unwrap();
            assert_eq!(steps(&events), saved.iter().map(|(event, _)| *event).collect::<Vec<_>>(), "{at}");
        }
        assert_eq!(last(&out).tensors, last(&whole).tensors, "{at}");
        // The same run again, killed after that checkpoint, continues with the same bits.
        let Some((event, place)) = saved else { return };
        let killed = folder.path().join(format!("killed {at}"));
        script.fails_at = event;
        run(&config(&killed), &script).into_iter().for_each(|(result, _)| drop(result.unwrap_err()));
        let meta = last(&killed).meta;
        assert_eq!((meta.epoch, meta.samples_consumed), place, "{at}");
        let resumed = TrainConfig { resume: true.into(), ..config(&killed) };
        run(&resumed, &Script::new("nothing", |_| Ok(()))).into_iter().for_each(|(result, _)| drop(result.unwrap()));
        assert_eq!(last(&killed).tensors, last(&whole).tensors, "{at}");
    };
    check("step 1 8", Some(("checkpoint of a step at 0 32", (0, 32))));
    check("step 8 16", Some(("checkpoint of a step at 1 40", (1, 40))));
    // The last step carries the request, and the end of the epoch saves anyway.
    check("step 4 32", None);
    check("step 12 48", None);
    check("epoch 1", None);
}

/// Logs a number at each step, and another at the end of each epoch.
struct Logs<'a>(&'a mut Vec<EpochRecord>);

impl Callback for Logs<'_> {
    fn on_train_batch_end(&mut self, progress: &Progress, control: &mut Control) -> CallbackResult {
        Ok(control.log("samples", progress.samples as f64)?)
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        self.0.push(record.clone());
        Ok(control.log("twice", 2.0 * record.epoch as f64)?)
    }
}

#[test]
fn logged_values_are_in_the_record_of_their_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
    let config = TrainConfig { epochs: 2, batch: Some(8), ..config(folder.path()) };
    let (mut records, mut later) = (Vec::new(), Vec::new());
    let mut trainer = Trainer::new(config, device).callback(Logs(&mut records)).callback(Logs(&mut later));
    trainer.fit("net", &net, &data).unwrap();
    drop(trainer);
    let metrics = |record: &EpochRecord| -> Vec<_> {
        record.metrics.iter().map(|(name, value)| format!("{name}={value}")).collect()
    };
    assert_eq!(records.iter().map(metrics).collect::<Vec<_>>(), [["samples=28"], ["samples=28"]]);
    assert_eq!(later.iter().map(metrics).collect::<Vec<_>>(), [["samples=28", "twice=0"], ["samples=28", "twice=2"]]);
    let lines = std::fs::read_to_string(RunPaths::new(folder.path()).metrics()).unwrap();
    // What is measured of ranks comes before.
    let ends: Vec<&str> = lines.lines().map(|line| line.split("]},").last().unwrap()).collect();
    assert_eq!(ends, [r#""samples":28.0,"twice":0.0}"#, r#""samples":28.0,"twice":2.0}"#]);
}
