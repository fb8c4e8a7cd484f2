//! The last batch of an epoch, which is not full: every sample counts as much as any other, on any number of ranks, and after a stop.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::{Conv, Tensor};
use enmasse_train::{
    Augmentation, Callback, CallbackResult, Checkpoint, Control, EpochRecord, Flip, Progress, RunPaths, ScheduleKind,
    TrainConfig, TrainError, Trainer, TrainingData,
};

fn net(x: Tensor, classes: usize) -> Tensor {
    x.conv2d("conv", Conv::new(4, 3)).relu().flatten().linear("fc", classes)
}

/// Fifty samples in batches of twelve: two are left, for four shards.
fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        batch: Some(3),
        shards: Some(4),
        size: Some(8),
        augment: Some(Augmentation::None),
        flip: Some(Flip::Chance(0.0)),
        schedule: ScheduleKind::Constant,
        warmup_epochs: 0.0,
        out: Some(out.to_owned()),
        resume: out.exists().into(),
        ..TrainConfig::default()
    }
}

#[derive(Default)]
struct Watch {
    records: Vec<EpochRecord>,
    /// The samples done after each step of training.
    steps: Vec<u64>,
}

impl Callback for Watch {
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        self.steps.push(progress.samples);
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.records.push(record.clone());
        Ok(())
    }
}

/// What rank 0 has seen, and the weights.
fn fit(config: &TrainConfig, ranks: usize) -> (Watch, Checkpoint) {
    fit_on(50, config, ranks).unwrap()
}

/// The same on another number of samples.
fn fit_on(samples: usize, config: &TrainConfig, ranks: usize) -> Result<(Watch, Checkpoint), String> {
    let data = TrainingData::new(Arc::new(Colours(samples)), Arc::new(Colours(samples)));
    let watched = enmasse_launch::spawn(ranks, |group| {
        let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let mut watch = Watch::default();
        let done: Result<_, TrainError> =
            Trainer::new(config.clone(), device).group(group).callback(&mut watch).fit("net", &net, &data);
        done.map(|_| watch)
    });
    let paths = RunPaths::new(config.out.as_ref().unwrap());
    let watch = watched.map_err(|error| error.to_string())?.remove(0);
    Ok((watch, Checkpoint::load(&paths.last_checkpoint()).unwrap()))
}

/// Hardly anything is learnt here, so training sees the loss that validation sees, on the same images.
#[test]
fn the_loss_of_an_epoch_is_the_mean_over_all_samples() {
    let folder = tempfile::tempdir().unwrap();
    let run = |drop_last: bool| {
        let out = folder.path().join(drop_last.to_string());
        fit(&TrainConfig { lr: 1e-9, epochs: 1, drop_last, ..config(&out) }, 2).0
    };
    let watch = run(false);
    assert_eq!(watch.steps, [12, 24, 36, 48, 50]);
    let record = &watch.records[0];
    assert!((record.train_loss - record.val_loss).abs() < 1e-6, "{record:?}");
    assert_eq!((record.train_accuracy, record.partial), (record.val_accuracy, false));
    let watch = run(true);
    assert_eq!(watch.steps, [12, 24, 36, 48]);
    let record = &watch.records[0];
    assert!((record.train_loss - record.val_loss).abs() > 1e-4, "{record:?}");
}

/// Three and five samples in batches of twelve places: the only batch of an epoch is its last one. A shard may have no sample.
#[test]
fn data_smaller_than_a_global_batch_were_refused() {
    let folder = tempfile::tempdir().unwrap();
    for samples in [3, 5] {
        let out = |name: &str| folder.path().join(format!("{samples}-{name}"));
        let (watch, expected) = fit_on(samples, &TrainConfig { lr: 1e-9, ..config(&out("alone")) }, 1).unwrap();
        assert_eq!(watch.steps, [samples as u64; 2]);
        for record in &watch.records {
            assert!((record.train_loss - record.val_loss).abs() < 1e-6, "{record:?}");
            assert_eq!((record.train_accuracy, record.partial), (record.val_accuracy, false));
        }
        for ranks in [2, 4] {
            let config = TrainConfig { lr: 1e-9, ..config(&out(&ranks.to_string())) };
            assert_eq!(fit_on(samples, &config, ranks).unwrap().1.tensors, expected.tensors, "{ranks}");
        }
        let config = TrainConfig { drop_last: true, ..config(&out("dropped")) };
        let refused = fit_on(samples, &config, 2).err().unwrap();
        let expected = format!(
            "hold {samples} samples, fewer than one global batch of 12 (4 shards of 3), and drop_last leaves out"
        );
        assert!(refused.contains(&expected), "{refused}");
    }
}

#[test]
fn ranks_and_stops_do_not_change_it() {
    let folder = tempfile::tempdir().unwrap();
    let (watch, expected) = fit(&config(&folder.path().join("alone")), 1);
    let losses = |watch: &Watch| watch.records.iter().map(|record| record.train_loss).collect::<Vec<_>>();
    for ranks in [2, 4] {
        let (other, weights) = fit(&config(&folder.path().join(ranks.to_string())), ranks);
        assert_eq!((losses(&other), weights.tensors), (losses(&watch), expected.tensors.clone()), "{ranks}");
    }
    // Before and after the last step of an epoch, with other ranks each time.
    let out = folder.path().join("stopped");
    for (ranks, most) in [(4, 4), (1, 5), (2, 9)] {
        assert_ne!(fit(&TrainConfig { max_steps: Some(most), ..config(&out) }, ranks).1.tensors, expected.tensors);
    }
    let (last, weights) = fit(&config(&out), 4);
    assert_eq!((losses(&last), weights.tensors), (losses(&watch)[1..].to_vec(), expected.tensors.clone()));
    // Without that step the weights are others.
    let dropped = fit(&TrainConfig { drop_last: true, ..config(&folder.path().join("dropped")) }, 1).1;
    assert_ne!(dropped.tensors, expected.tensors);
}
