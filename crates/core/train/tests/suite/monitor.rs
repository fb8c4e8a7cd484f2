//! Which epoch is the best: that of the monitored value, in files, at the end, and after a stop.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use crate::fit::{cpu, net};
use enmasse_graph::Tensor;
use enmasse_train::{
    Best, Callback, CallbackResult, Checkpoint, Control, DoneRecord, EpochRecord, Monitor, RunPaths, TrainConfig,
    TrainError, Trainer, TrainingData,
};

/// Rates this high make the loss rise again, while the accuracy stays high.
fn config(out: &Path, monitor: Option<&str>) -> TrainConfig {
    TrainConfig {
        epochs: 5,
        batch: Some(5),
        size: Some(8),
        lr: 0.3,
        monitor: monitor.map(str::to_owned),
        out: Some(out.to_owned()),
        resume: out.exists().into(),
        ..TrainConfig::default()
    }
}

#[derive(Default)]
struct Records(Vec<EpochRecord>);

impl Callback for Records {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.0.push(record.clone());
        Ok(())
    }
}

fn entropy(logits: Tensor, targets: Tensor) -> Tensor {
    (logits.log_softmax() * targets).sum_classes().affine(-1.0, 0.0)
}

fn fit(config: TrainConfig, own: Option<Monitor>) -> Result<(Vec<EpochRecord>, DoneRecord, Option<u64>), TrainError> {
    let data = TrainingData::new(Arc::new(Colours(30)), Arc::new(Colours(11))).with_test(Arc::new(Colours(7)));
    let mut records = Records::default();
    let mut trainer = Trainer::new(config, cpu(1)).metric("entropy", entropy).callback(&mut records);
    if let Some(own) = own {
        trainer = trainer.monitor(own);
    }
    let done = trainer.fit("net", &net, &data)?;
    trainer.test(&data)?;
    drop(trainer);
    let test = std::fs::read_to_string(RunPaths::new(&done.run).test_record()).unwrap();
    let epoch = serde_json::from_str::<serde_json::Value>(&test).unwrap()["epoch"].as_u64();
    Ok((records.0, done, epoch))
}

/// The first epoch with the lowest of some values.
fn lowest(values: impl Iterator<Item = f64>) -> (u64, f64) {
    let all = values.enumerate().map(|(epoch, value)| (epoch as u64, value));
    all.reduce(|best, next| if next.1 < best.1 { next } else { best }).unwrap()
}

#[test]
fn the_monitored_value_decides_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, setting: Option<&str>, own: Option<Monitor>, value: fn(&EpochRecord) -> f64| {
        let out = folder.path().join(format!("{name}-{setting:?}"));
        let (records, done, tested) = fit(config(&out, setting), own).unwrap();
        let (epoch, lowest) = lowest(records.iter().map(value));
        let found = records.iter().rfind(|record| record.best).unwrap();
        assert_eq!((found.epoch, tested), (epoch, Some(epoch)), "{name}");
        let value = if name == "val_accuracy" { -lowest } else { lowest };
        let best = Best { metric: name.into(), value: Some(value) };
        assert_eq!(done.best, best);
        let checkpoint = Checkpoint::load(&RunPaths::new(&out).best_checkpoint()).unwrap().meta;
        assert_eq!((checkpoint.epoch - 1, checkpoint.best), (epoch, best));
        epoch
    };
    let accuracy = |record: &EpochRecord| -record.val_accuracy.unwrap();
    let loss = |record: &EpochRecord| record.val_loss;
    assert_ne!(check("val_accuracy", None, None, accuracy), check("val_loss", Some("val_loss"), None, loss));
    check("train_loss", Some("train_loss"), Some(Monitor::lower("val_entropy")), |record| record.train_loss);
    check("val_entropy", None, Some(Monitor::lower("val_entropy")), |record| record.metrics["val_entropy"]);
}

#[test]
fn a_name_that_no_epoch_has_ends_the_run_before_its_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let error = fit(config(&out, Some("recall")), None).unwrap_err().to_string();
    let names = "train_loss, val_loss, train_accuracy, val_accuracy, balanced_accuracy, val_macro_f1";
    assert_eq!(error, format!("monitor recall: an epoch has no such value: use {names}"));
    assert!(!out.exists());
}

/// The best by one value is none by another one.
#[test]
fn a_resumed_run_that_monitors_another_value_begins_a_new_best() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let (_, done, _) = fit(TrainConfig { epochs: 2, ..config(&out, None) }, None).unwrap();
    assert_eq!(done.best.metric, "val_accuracy");
    let (records, done, tested) = fit(config(&out, Some("val_loss")), None).unwrap();
    let (place, lowest) = lowest(records.iter().map(|record| record.val_loss));
    assert_eq!(done.best, Best { metric: "val_loss".into(), value: Some(lowest) });
    assert_eq!(tested, Some(2 + place));
}
