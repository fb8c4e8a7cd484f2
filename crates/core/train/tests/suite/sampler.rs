//! An order of training samples of the program's own: each epoch as the function says, on any number of ranks, resumed anywhere.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::Colours;
use crate::fit::{config, cpu, net};
use enmasse_data::Batch;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, EpochRecord, RunPaths, SamplerKind, TrainConfig, TrainError,
    Trainer, TrainingData,
};

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

/// Epochs of 20, 27 and 34 samples, of which some come twice, and others not at all.
fn order(epoch: u64) -> Vec<usize> {
    (0..20 + 7 * epoch as usize).map(|place| (place * (3 + epoch as usize) + 3) % 50 % 40).collect()
}

/// The samples that a rank was given, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<u64>>>);

impl Callback for Seen {
    fn on_train_batch_start(&mut self, batch: &Batch, _: &mut Control) -> CallbackResult {
        self.0.lock().unwrap().extend(batch.places().map(|place| batch.indices[place]));
        Ok(())
    }
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        assert!(!record.partial || record.epoch == 1, "{record:?}");
        Ok(())
    }
}

/// Trains on some ranks with four shards, and returns what each saw.
fn fit(ranks: usize, config: TrainConfig) -> Vec<Vec<u64>> {
    let config = TrainConfig { batch: Some(2), shards: Some(4), ..config };
    let seen = enmasse_launch::spawn(ranks, |group| {
        let seen = Seen::default();
        let trainer = Trainer::new(config.clone(), cpu(1)).group(group).sampler(order);
        trainer.callback(seen.clone()).fit("net", &net, &data())?;
        let seen = seen.0.lock().unwrap().clone();
        Ok::<_, TrainError>(seen)
    });
    seen.unwrap()
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

#[test]
fn epochs_are_as_the_function_says() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let all: Vec<u64> = (0..3).flat_map(order).map(|sample| sample as u64).collect();
    assert_eq!(fit(1, config(&whole)), std::slice::from_ref(&all));
    assert_eq!(last(&whole).meta.optimizer_step, 3 + 4 + 5);
    assert!(std::fs::read_to_string(whole.join("config.toml")).unwrap().contains("sampler = \"own\""));

    // Two ranks share it, and a run that is stopped after two steps of the second epoch goes on where it was.
    let cut = folder.path().join("cut");
    let mut seen = fit(2, TrainConfig { max_steps: Some(5), ..config(&cut) });
    assert_eq!((last(&cut).meta.epoch, last(&cut).meta.samples_consumed), (1, 16));
    let rest = fit(2, TrainConfig { resume: true.into(), ..config(&cut) });
    seen.iter_mut().zip(rest).for_each(|(seen, rest)| seen.extend(rest));
    let mut both = seen.concat();
    both.sort_unstable();
    let mut sorted = all.clone();
    sorted.sort_unstable();
    assert_eq!(both, sorted);
    assert!(seen.iter().all(|own| own.len() < all.len()));
    assert_eq!(last(&cut).tensors, last(&whole).tensors);
}

#[test]
fn orders_that_cannot_be_followed_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let check =
        |name: &str, config: &dyn Fn(TrainConfig) -> TrainConfig, order: fn(u64) -> Vec<usize>, expected: &str| {
            let given = config(crate::fit::config(&folder.path().join(name)));
            let error = Trainer::new(given, cpu(1)).sampler(order).fit("net", &net, &data()).unwrap_err();
            assert_eq!(error.to_string(), expected, "{name}");
        };
    let same = |config: TrainConfig| config;
    let of = "the program's own order of epoch";
    check("empty", &same, |_| Vec::new(), &format!("{of} 1 has no sample"));
    let second = |epoch| if epoch == 0 { vec![0, 1, 2] } else { vec![0, 50] };
    check("range", &same, second, &format!("{of} 2 has the sample 50, but there are 50, counted from 0"));
    let drops = |config: TrainConfig| TrainConfig { drop_last: true, ..config };
    let few = format!("{of} 1 has 7 samples, fewer than one global batch of 8, and drop_last leaves that out");
    check("few", &drops, |_| (0..7).collect(), &few);
    let without = "has no effect on this program's own sampler: leave it out";
    let balanced = |mut config: TrainConfig| {
        config.set("balance", "classes").unwrap();
        config
    };
    check("balance", &balanced, order, &format!("balance classes: {without}"));
    let distributed = |config: TrainConfig| TrainConfig { sampler: SamplerKind::Distributed, ..config };
    check("sampler", &distributed, order, &format!("sampler distributed: {without}"));

    // A run within an epoch.
    let out = folder.path().join("cut");
    fit(1, TrainConfig { max_steps: Some(5), ..config(&out) });
    let resumed = TrainConfig { resume: true.into(), batch: Some(8), ..config(&out) };
    let error = Trainer::new(resumed.clone(), cpu(1)).sampler(|_| vec![1; 9]).fit("net", &net, &data()).unwrap_err();
    let expected = format!("{of} 2 has 9 samples, but 16 of it are done: resume the run with the same order");
    assert_eq!(error.to_string(), expected);
    let error = Trainer::new(resumed, cpu(1)).fit("net", &net, &data()).unwrap_err().to_string();
    let within = "is within an epoch in the order of `sampler = own`, and takes `seed = 0` only where an epoch begins";
    assert!(error.contains(within), "{error}");
}

#[test]
fn ranks_must_have_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("run"));
    let found = enmasse_launch::spawn(2, |group| {
        let rank = group.rank();
        let own = move |epoch: u64| if epoch == 1 { vec![1, 2 + rank, 3] } else { vec![1, 2, 3] };
        Trainer::new(config.clone(), cpu(1)).group(group).sampler(own).fit("net", &net, &data()).map(drop)
    });
    let error = found.unwrap_err().to_string();
    let expected = "order of epoch 2 differs: line 2 is \"sample 2\" on rank 0 and \"sample 3\" on rank 1";
    assert!(error.contains(expected), "{error}");
}
