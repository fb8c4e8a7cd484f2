//! A loop of the program's own over the steps of a run: the bits, records and files of `fit`, resumed anywhere, and nothing of it
//! can be left out unnoticed.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use crate::fit::{config, cpu, net};
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, DoneRecord, EpochRecord, NamedTensor, RunPaths, Steps, Stop,
    StopRequests, TrainConfig, TrainError, Trainer, TrainingData,
};

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

/// Runs this many steps, or all, each at once or one step later.
fn run(mut steps: Steps, most: u64, waits: bool) -> Result<DoneRecord, TrainError> {
    while let Some(step) = steps.next_step()? {
        if step.number() > most {
            break;
        }
        match waits {
            true => drop(steps.run(step)?),
            false => steps.submit(step)?,
        }
    }
    steps.end()
}

/// The records of a run, without what the clock says.
fn records(out: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(RunPaths::new(out).metrics()).unwrap();
    let timed = ["images_per_second", "seconds", "data_wait", "rank_wait", "straggler", "ranks"];
    let lines = text.lines().map(|line| {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        timed.iter().for_each(|key| drop(record.as_object_mut().unwrap().remove(*key)));
        record
    });
    lines.collect()
}

#[test]
fn a_loop_that_changes_nothing_has_the_bits_of_fit() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2] {
        let fitted = folder.path().join(format!("fit {ranks}"));
        let two = |out: &Path| TrainConfig { epochs: 2, batch: Some(8 / ranks), ..config(out) };
        let on_ranks = |work: &(dyn Fn(Trainer) -> Result<DoneRecord, TrainError> + Sync), config: TrainConfig| {
            let trainer = |group| work(Trainer::new(config.clone(), cpu(1)).group(group));
            enmasse_launch::spawn(ranks, trainer).unwrap().remove(0)
        };
        let done = on_ranks(&|mut trainer| trainer.fit("net", &net, &data()), two(&fitted));
        for waits in [true, false] {
            let out = folder.path().join(format!("{waits} {ranks}"));
            let most = |most| move |mut trainer: Trainer| run(trainer.steps("net", &net, &data())?, most, waits);
            // An epoch has seven steps: the loop ends two steps into the second one.
            on_ranks(&most(9), two(&out));
            assert_eq!((last(&out).meta.epoch, last(&out).meta.samples_consumed), (1, 16));
            assert_eq!(records(&out).len(), 1);
            let rest = on_ranks(&most(u64::MAX), TrainConfig { resume: true.into(), ..two(&out) });
            assert_eq!(last(&out).tensors, last(&fitted).tensors, "{ranks} {waits}");
            assert_eq!(records(&out), records(&fitted));
            assert_eq!(rest.best, done.best);
        }
    }
}

#[test]
fn a_loop_sets_rates_and_reads_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    struct Rates<'a>(&'a mut Vec<f64>);
    impl Callback for Rates<'_> {
        fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
            self.0.push(record.learning_rate);
            Ok(())
        }
    }
    let mut rates = Vec::new();
    let config = TrainConfig { epochs: 2, momentum: 0.0, weight_decay: 0.0, ..config(&out) };
    let mut trainer = Trainer::new(config, cpu(1)).callback(Rates(&mut rates));
    let data = data();
    let mut steps = trainer.steps("net", &net, &data).unwrap();
    let mut weights: Vec<Vec<f32>> = Vec::new();
    while let Some(mut step) = steps.next_step().unwrap() {
        assert!(step.learning_rate > 0.0);
        step.learning_rate = if step.epoch() == 0 { 0.0 } else { 0.125 };
        assert_eq!(step.batch().labels.len(), 8);
        steps.submit(step).unwrap();
        weights.push(steps.weights().unwrap().read("fc.weight").unwrap().values);
    }
    steps.end().unwrap();
    assert!(trainer.validate(&data).unwrap().loss.is_finite());
    drop(trainer);
    let first = &weights[0];
    assert_eq!(weights.iter().filter(|values| *values == first).count(), 7, "an epoch at the rate 0 changes nothing");
    assert_eq!(rates, [0.0, 0.125]);
}

#[test]
fn weights_that_a_loop_sets_are_kept_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    // Sets the bias on two ranks after this many steps of seven.
    let run = |name: &str, after: u64, differs: bool| {
        let out = folder.path().join(name);
        let config = TrainConfig { epochs: 1, batch: Some(4), lr: 1e-30, warmup_epochs: 0.0, ..config(&out) };
        let found = enmasse_launch::spawn(2, |group| {
            let value = if differs { group.rank() as f32 } else { 0.5 };
            let mut trainer = Trainer::new(config.clone(), cpu(1)).group(group);
            let mut steps = trainer.steps("net", &net, &data())?;
            while let Some(step) = steps.next_step()? {
                let number = step.number();
                steps.submit(step)?;
                if number == after {
                    steps.weights()?.set("fc.bias", &[value; 3])?;
                }
            }
            if after == 0 {
                steps.weights()?.set("fc.bias", &[value; 3])?;
            }
            steps.end().map(drop)
        });
        let bias = |tensors: Vec<NamedTensor>| tensors.into_iter().find(|tensor| tensor.name == "fc.bias").unwrap();
        found.map(|_| bias(last(&out).tensors).values).map_err(|error| error.to_string())
    };
    assert_eq!(run("within", 3, false).unwrap(), [0.5; 3]);
    assert_eq!(run("last", 7, false).unwrap(), [0.5; 3]);
    assert_eq!(run("after", 0, false).unwrap(), [0.5; 3]);
    for after in [3, 7, 0] {
        let error = run(&format!("differs {after}"), after, true).unwrap_err();
        assert!(error.contains("the tensor fc.bias was set otherwise on rank 1 than on rank 0"), "{error}");
    }
}

#[test]
fn what_a_loop_leaves_out_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, work: &dyn Fn(&mut Steps) -> Result<(), TrainError>, expected: &str| {
        let data = data();
        let mut trainer = Trainer::new(config(&folder.path().join(name)), cpu(1));
        let mut steps = trainer.steps("net", &net, &data).unwrap();
        assert_eq!(work(&mut steps).unwrap_err().to_string(), expected, "{name}");
        // An error ends the run.
        let over = "Steps was called where Trainer::steps must come next";
        assert_eq!(steps.next_step().err().map(|error| error.to_string()).as_deref(), Some(over));
        assert_eq!(steps.end().unwrap_err().to_string(), over);
    };
    let skips = |steps: &mut Steps| {
        steps.next_step()?;
        steps.next_step().map(drop)
    };
    refused("skipped", &skips, "Steps::next_step was called where Steps::run must come next");
    let rate = |rate: f64| {
        move |steps: &mut Steps| {
            let mut step = steps.next_step()?.unwrap();
            step.learning_rate = rate;
            steps.run(step).map(drop)
        }
    };
    let range = "it must be a finite number, 0 or more";
    refused("nan", &rate(f64::NAN), &format!("the learning rate of step 1 (epoch 1) is NaN: {range}"));
    refused("below", &rate(-0.5), &format!("the learning rate of step 1 (epoch 1) is -0.5: {range}"));

    // A rank that leaves its loop ends the others.
    let out = folder.path().join("left");
    let found = enmasse_launch::spawn(2, |group| {
        let rank = group.rank();
        let data = data();
        let mut trainer = Trainer::new(config(&out), cpu(1)).group(group);
        let mut steps = trainer.steps("net", &net, &data)?;
        while let Some(step) = steps.next_step()? {
            if rank == 1 && step.number() == 3 {
                return Ok(());
            }
            steps.run(step)?;
        }
        steps.end().map(drop)
    });
    let error = found.unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("left before Steps::end"), "{error}");
}

#[test]
fn requests_to_stop_end_a_loop_after_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let [stopped, fitted] = ["stopped", "fitted"].map(|name| folder.path().join(name));
    let requests = StopRequests::default();
    let data = data();
    Trainer::new(config(&fitted), cpu(1)).fit("net", &net, &data).unwrap();
    let mut trainer = Trainer::new(config(&stopped), cpu(1)).stop_on(requests.clone());
    let mut steps = trainer.steps("net", &net, &data).unwrap();
    let error = loop {
        match steps.next_step() {
            Ok(step) => {
                let step = step.unwrap();
                if step.number() == 10 {
                    assert!(requests.ask(Stop::Requeue));
                }
                steps.run(step).unwrap();
            }
            Err(error) => break error,
        }
    };
    drop(steps);
    // All ranks know it by the sums of the step that carried it.
    assert!(matches!(error, TrainError::Stopped { stop: Stop::Requeue, epoch: 1, samples: 24 }), "{error}");
    drop(trainer);
    Trainer::new(TrainConfig { resume: true.into(), ..config(&stopped) }, cpu(1)).fit("net", &net, &data).unwrap();
    assert_eq!(last(&stopped).tensors, last(&fitted).tensors);
}
