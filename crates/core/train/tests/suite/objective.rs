//! A trainer with its own loss and metrics: functions on the builder, with the same bits for any number of ranks.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, EpochRecord, RunPaths, TrainConfig, TrainError, Trainer,
    TrainingData,
};

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc", classes)
}

fn cross_entropy(logits: Tensor, targets: Tensor) -> Tensor {
    (logits.log_softmax() * targets).sum_classes().affine(-1.0, 0.0)
}

/// A loss whose derivative is infinite where the targets are all 0, as in the padding of a batch.
fn root(logits: Tensor, targets: Tensor) -> Tensor {
    (logits.log_softmax().exp() * targets).sum_classes().power(0.5).affine(-1.0, 1.0)
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        batch: Some(3),
        shards: Some(3),
        size: Some(8),
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

struct Records(Vec<EpochRecord>);

impl Callback for Records {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.0.push(record.clone());
        Ok(())
    }
}

type PerSample = fn(Tensor, Tensor) -> Tensor;

/// The records of rank 0, and the checkpoint.
fn fit(config: &TrainConfig, ranks: usize, loss: Option<PerSample>) -> Result<(Vec<EpochRecord>, Checkpoint), String> {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let records = enmasse_launch::spawn(ranks, |group| {
        let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let mut records = Records(Vec::new());
        let mut trainer = Trainer::new(config.clone(), device).group(group).metric("entropy", cross_entropy);
        if let Some(loss) = loss {
            trainer = trainer.loss(loss);
        }
        let result: Result<_, TrainError> = trainer.callback(&mut records).fit("net", &net, &data);
        result.map(|_| records.0)
    });
    let records = records.map_err(|error| error.to_string())?.remove(0);
    let out = config.out.as_ref().unwrap();
    Ok((records, Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()))
}

#[test]
fn cross_entropy_as_a_function_equals_the_built_in_one() {
    compare_cross_entropies(0.0);
    compare_cross_entropies(0.8);
}

#[track_caller]
fn compare_cross_entropies(mixup: f64) {
    let folder = tempfile::tempdir().unwrap();
    let config = |name: &str| TrainConfig { mixup, ..config(&folder.path().join(name)) };
    let (built_in, _) = fit(&config("a"), 1, None).unwrap();
    let (own, _) = fit(&config("b"), 1, Some(cross_entropy)).unwrap();
    for (built_in, own) in built_in.iter().zip(&own) {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-5 * a.abs();
        assert!(close(built_in.train_loss, own.train_loss) && close(built_in.val_loss, own.val_loss), "{own:?}");
        assert_eq!((built_in.train_accuracy, built_in.val_accuracy), (own.train_accuracy, own.val_accuracy));
        // As a metric, it is the mean over the same samples.
        assert!(close(built_in.val_loss, built_in.metrics["val_entropy"]), "{built_in:?}");
        assert!(close(built_in.train_loss, built_in.metrics["train_entropy"]), "{built_in:?}");
    }
}

#[test]
fn an_own_loss_gives_the_same_bits_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let run = |ranks: usize| fit(&config(&folder.path().join(ranks.to_string())), ranks, Some(root)).unwrap();
    let (records, checkpoint) = run(1);
    assert!(records[1].train_loss < records[0].train_loss, "{records:?}");
    for ranks in [2, 3] {
        let (others, other) = run(ranks);
        assert_eq!(other.tensors, checkpoint.tensors, "{ranks} ranks");
        let training = |records: &[EpochRecord]| -> Vec<_> {
            records.iter().map(|record| (record.train_loss, record.metrics["train_entropy"])).collect()
        };
        assert_eq!(training(&others), training(&records), "{ranks} ranks");
    }
}

#[test]
fn label_smoothing_belongs_to_cross_entropy() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { label_smoothing: 0.1, ..config(&folder.path().join("run")) };
    let error = fit(&config, 1, Some(root)).unwrap_err();
    assert!(
        error.contains("`label_smoothing = 0.1` has no effect on this program's own loss: leave it out"),
        "{error}"
    );
    assert!(!folder.path().join("run").exists());
}
