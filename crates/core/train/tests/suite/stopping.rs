//! A run in which one rank is asked to stop: all ranks stop at the same place, and continue from it with the bits of an
//! uninterrupted run.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, EpochRecord, Progress, RunPaths, Stop, StopRequests, TrainConfig,
    TrainError, Trainer, TrainingData,
};

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().dropout("drop", 0.2).linear("fc", classes)
}

fn config(out: &Path, resume: bool) -> TrainConfig {
    TrainConfig {
        epochs: 3,
        batch: Some(2),
        size: Some(8),
        drop_last: true,
        out: Some(out.to_owned()),
        resume: resume.into(),
        ..TrainConfig::default()
    }
}

/// Makes a request once a number of samples of an epoch, or of its validation, are done.
struct Asks {
    requests: StopRequests,
    at: Option<(u64, bool, u64)>,
    records: Vec<EpochRecord>,
    /// Batches validated.
    validated: usize,
}

impl Callback for Asks {
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        if self.at == Some((progress.epoch, progress.validating, progress.samples)) {
            self.requests.ask(Stop::Requeue);
        }
        Ok(())
    }

    fn on_validation_batch_end(&mut self, progress: &Progress, control: &mut Control) -> CallbackResult {
        self.validated += 1;
        self.on_train_batch_end(progress, control)
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.records.push(record.clone());
        Ok(())
    }
}

type Stopped = Option<(Stop, u64, u64)>;

/// Where each of 3 ranks stopped, after a request to rank 1, and its records.
fn run(config: TrainConfig, at: Option<(u64, bool, u64)>) -> Vec<(Stopped, Vec<EpochRecord>)> {
    let ended = run_on(17, config, at);
    ended.into_iter().map(|(stopped, records, _)| (stopped, records)).collect()
}

/// The same with this many samples to validate on, and the number of batches that the rank validated.
fn run_on(
    validation: usize,
    config: TrainConfig,
    at: Option<(u64, bool, u64)>,
) -> Vec<(Stopped, Vec<EpochRecord>, usize)> {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(validation)));
    let ranks = enmasse_launch::spawn(3, |group| {
        let requests = StopRequests::default();
        let at = at.filter(|_| group.rank() == 1);
        let mut asks = Asks { requests: requests.clone(), at, records: Vec::new(), validated: 0 };
        let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let trainer = Trainer::new(config.clone(), device).group(group).stop_on(requests);
        let stopped = match trainer.callback(&mut asks).fit("net", &net, &data) {
            Ok(_) => None,
            Err(TrainError::Stopped { stop, epoch, samples }) => Some((stop, epoch, samples)),
            Err(error) => return Err(error),
        };
        Ok((stopped, asks.records, asks.validated))
    });
    ranks.unwrap()
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

/// What a record tells of its epoch's arithmetic, digit by digit.
fn figures(records: &[EpochRecord]) -> Vec<(u64, [u64; 4])> {
    let bits = |r: &EpochRecord| [r.train_loss, r.val_loss, r.val_accuracy.unwrap(), r.learning_rate].map(f64::to_bits);
    records.iter().map(|record| (record.epoch, bits(record))).collect()
}

#[test]
fn all_ranks_stop_where_one_is_asked_to() {
    // An epoch has 8 steps of 6 samples.
    stop_and_go_on(config, 48);
}

/// Regression test: the record had the rate of a place within the last full step.
#[test]
fn an_epoch_resumed_after_a_last_batch_that_is_not_full_records_its_rate() {
    // A ninth step has 2 samples.
    let uneven = |out: &Path, resume| TrainConfig { drop_last: false, warmup_epochs: 3.0, ..config(out, resume) };
    stop_and_go_on(uneven, 50);
}

/// Asks runs to stop in many places. An epoch has `end` samples.
#[track_caller]
fn stop_and_go_on(config: fn(&Path, bool) -> TrainConfig, end: u64) {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let records = run(config(&whole, false), None).remove(0).1;
    let check = |at: (u64, bool, u64), epoch: u64, samples: u64| {
        let out = folder.path().join(format!("{at:?}"));
        let stopped = run(config(&out, false), Some(at));
        for (rank, (place, _)) in stopped.iter().enumerate() {
            assert_eq!(*place, Some((Stop::Requeue, epoch, samples)), "rank {rank}, asked at {at:?}");
        }
        let meta = last(&out).meta;
        assert_eq!((meta.epoch, meta.samples_consumed), (epoch, samples), "asked at {at:?}");
        let resumed = run(config(&out, true), None).remove(0);
        assert_eq!(resumed.0, None);
        let all = [&stopped[0].1[..], &resumed.1].concat();
        assert_eq!(figures(&all), figures(&records), "asked at {at:?}");
        assert_eq!(last(&out).tensors, last(&whole).tensors, "asked at {at:?}");
    };
    // The next step is already in flight. The step after it carries the request, and another step is in flight when the
    // request is read.
    check((0, false, 6), 0, 24);
    check((1, false, 24), 1, 42);
    // After the last step there is validation, which is repeated.
    check((1, false, 36), 1, end);
    check((1, false, 42), 1, end);
    check((1, false, 48), 1, end);
    check((0, true, 6), 0, end);
    check((2, true, 6), 2, end);
    check((2, true, 12), 2, end);
}

/// Regression test: nothing was left to do then, so the run had no record and no best checkpoint.
#[test]
fn a_run_of_few_steps_that_stops_in_its_validation_is_validated_when_it_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let check = |most: u64| {
        let few = |out: &Path, resume| TrainConfig { max_steps: Some(most), ..config(out, resume) };
        let [whole, out] = ["whole", "stopped"].map(|name| folder.path().join(format!("{name} {most}")));
        let records = run(few(&whole, false), None).remove(0).1;
        let (stopped, none) = run(few(&out, false), Some((0, true, 6))).remove(0);
        assert_eq!((stopped, none.len()), (Some((Stop::Requeue, 0, 6 * most)), 0), "{most} steps");
        let (stopped, resumed) = run(few(&out, true), None).remove(0);
        assert_eq!((stopped, figures(&resumed)), (None, figures(&records)), "{most} steps");
        assert_eq!((resumed[0].partial, records[0].partial), (most < 8, most < 8), "{most} steps");
        assert_eq!(last(&out).meta.best, last(&whole).meta.best, "{most} steps");
        // Once is enough.
        assert_eq!(run(few(&out, true), None).remove(0), (None, Vec::new()), "{most} steps");
    };
    check(8);
    check(5);
}

/// Regression test: the figures were those of no image, or of some.
#[test]
fn an_evaluation_that_is_asked_to_stop_has_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    for ranks in [1, 2] {
        let config = TrainConfig { epochs: 1, ..config(&folder.path().join(ranks.to_string()), false) };
        let errors = enmasse_launch::spawn(ranks, |group| {
            let requests = StopRequests::default();
            let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
            let rank = group.rank();
            let mut trainer = Trainer::new(config.clone(), device).group(group).stop_on(requests.clone());
            trainer.fit("net", &net, &data)?;
            assert_eq!(trainer.validate(&data)?.samples, 17);
            if rank == ranks - 1 {
                assert!(!requests.ask(Stop::End), "there is nothing to save");
            }
            Ok::<_, TrainError>(trainer.validate(&data).map(|found| found.samples).map_err(|error| error.to_string()))
        });
        let expected = "the evaluation stopped as requested, so it has no result".to_owned();
        assert_eq!(errors.unwrap(), vec![Err(expected); ranks]);
    }
}

/// No rank goes through the rest of its part, for which the others would wait.
#[test]
fn a_validation_ends_on_all_ranks_at_the_same_batch() {
    let folder = tempfile::tempdir().unwrap();
    // A hundred batches on each rank.
    let ended = run_on(600, config(folder.path(), false), Some((0, true, 6)));
    for (rank, (stopped, records, validated)) in ended.iter().enumerate() {
        assert_eq!((*stopped, records.len()), (Some((Stop::Requeue, 0, 48)), 0), "rank {rank}");
        // The request was made after the first batch, and another one was in flight.
        assert_eq!(*validated, 2, "rank {rank}");
    }
}

#[test]
fn a_request_to_end_outweighs_one_to_requeue() {
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let check = |asked: [Option<Stop>; 2], expected: Stop| {
        let out = folder.path().join(format!("{asked:?}"));
        let ranks = enmasse_launch::spawn(2, |group| {
            let requests = StopRequests::default();
            if let Some(stop) = asked[group.rank()] {
                assert!(!requests.ask(stop), "nothing has begun");
            }
            let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
            let mut trainer = Trainer::new(config(&out, false), device).group(group).stop_on(requests.clone());
            match trainer.fit("net", &net, &data) {
                Err(TrainError::Stopped { stop, epoch, samples }) => {
                    assert!(requests.ask(Stop::End), "it is stopping anyway");
                    Ok((stop, epoch, samples))
                }
                Err(error) => Err(error.to_string()),
                Ok(_) => Err("it went on".to_owned()),
            }
        });
        assert_eq!(ranks.unwrap(), [(expected, 0, 8); 2]);
    };
    check([None, Some(Stop::Requeue)], Stop::Requeue);
    check([Some(Stop::Requeue), Some(Stop::End)], Stop::End);
    check([Some(Stop::Interrupt), Some(Stop::Requeue)], Stop::Interrupt);
    check([Some(Stop::End), Some(Stop::Interrupt)], Stop::End);
    check([Some(Stop::End), None], Stop::End);
}
