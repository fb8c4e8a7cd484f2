//! Searches for a rate and for a batch, which leave a run as if they had not happened.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use crate::fit::{config, cpu, net};
use enmasse_train::{
    BatchBound, Checkpoint, LrScaling, LrSearch, RunPaths, Stop, StopRequests, TrainConfig, TrainError, Trainer,
    TrainingData,
};

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

fn tensors(out: &Path) -> Vec<enmasse_train::NamedTensor> {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap().tensors
}

/// On each of some ranks.
fn search_lr(ranks: usize, config: &TrainConfig) -> Vec<LrSearch> {
    let found = enmasse_launch::spawn(ranks, |group| {
        Trainer::new(config.clone(), cpu(1)).group(group).find_lr("net", &net, &data())
    });
    found.unwrap()
}

#[test]
fn all_ranks_find_the_same_rate() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { shards: Some(2), batch: Some(4), ..config(&folder.path().join("run")) };
    let one = search_lr(1, &config).remove(0);
    assert!(one.points.len() > 50 && one.suggestion == one.steepest() && one.suggestion.is_some(), "{one:?}");
    assert_eq!(search_lr(2, &config), [one.clone(), one.clone()]);
    // What is suggested is the setting, before it is scaled.
    let scaled = search_lr(1, &TrainConfig { scale_lr: LrScaling::Linear, ..config }).remove(0);
    assert_eq!((scaled.points, scaled.suggestion), (one.points, one.suggestion.map(|rate| rate / 2.0)));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_fit_is_not_changed_by_a_search_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, searched] = ["plain", "searched"].map(|name| folder.path().join(name));
    Trainer::new(config(&plain), cpu(1)).fit("net", &net, &data()).unwrap();
    let mut trainer = Trainer::new(config(&searched), cpu(1));
    trainer.find_lr("net", &net, &data()).unwrap();
    let found = trainer.find_batch("net", &net, &data()).unwrap();
    assert!(!searched.exists());
    trainer.fit("net", &net, &data()).unwrap();
    assert!(tensors(&plain) == tensors(&searched));
    assert_eq!((found.largest, found.limit, found.shards), (50, BatchBound::Data, 1));
    assert!(found.points.iter().zip([1, 2, 4, 8, 16, 32]).all(|(point, batch)| point.batch == batch), "{found:?}");
    assert!(found.points.iter().all(|point| point.memory_bytes > 0 && point.images_per_second > 0.0));
}

/// A loss that is not finite at once is no error, and suggests nothing.
#[test]
fn a_search_that_diverges_ends() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("run"));
    let infinite = |logits: enmasse_graph::Tensor, targets: enmasse_graph::Tensor| {
        (logits.affine(1e30, 1e38) * targets).sum_classes().affine(1e30, 0.0)
    };
    for ranks in [1, 2] {
        let found = enmasse_launch::spawn(ranks, |group| {
            Trainer::new(config.clone(), cpu(1)).group(group).loss(infinite).find_lr("net", &net, &data())
        });
        for found in found.unwrap() {
            assert_eq!((found.diverged, found.points.len(), found.suggestion), (true, 0, None));
        }
    }
}

#[test]
fn a_search_is_stopped_as_a_run_is() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("run"));
    let stopped = enmasse_launch::spawn(2, |group| {
        let requests = StopRequests::default();
        if group.rank() == 1 {
            requests.ask(Stop::Interrupt);
        }
        let mut trainer = Trainer::new(config.clone(), cpu(1)).group(group).stop_on(requests);
        match trainer.find_lr("net", &net, &data()) {
            Err(TrainError::Stopped { stop, .. }) => Ok(stop),
            Err(error) => Err(error.to_string()),
            Ok(found) => Err(format!("{found:?}")),
        }
    });
    assert_eq!(stopped.unwrap(), [Stop::Interrupt; 2]);
}
