//! Loss and accuracy of a data set, exact at any world size: every sample counts once.

use std::time::Instant;

use enmasse_comm::Group;
use enmasse_data::EvalLoader;
use enmasse_device::{Program, StepInputs};
use enmasse_graph::{Mode, Phase};
use serde::Serialize;

use crate::{Observer, Progress, TrainError};

/// What an evaluation found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss over the samples.
    pub loss: f64,
    /// Share of samples whose largest logit is at their label.
    pub accuracy: f64,
    /// Number of samples.
    pub samples: u64,
}

/// Which epoch an evaluation belongs to, for those who watch.
#[derive(Clone, Copy, Debug, Default)]
pub struct EpochPosition {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Number of epochs.
    pub epochs: u64,
}

/// Runs one pass of `loader`, this rank's shard, and adds the results of all ranks. Sums are in f64.
pub fn evaluate(
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: u64,
    group: Option<&Group>,
    position: EpochPosition,
    observer: &mut dyn Observer,
) -> Result<Evaluation, TrainError> {
    let began = Instant::now();
    let shards = group.map_or(1, Group::world_size) as u64;
    let (mut loss, mut correct, mut samples) = (0.0, 0.0, 0u64);
    for batch in loader.pass() {
        let batch = batch?;
        let inputs = StepInputs {
            images: &batch.images,
            labels: &batch.labels,
            sample_indices: &batch.indices,
            epoch: position.epoch,
            learning_rate: 0.0,
            optimizer_step: 1,
        };
        let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs)?;
        let metrics = program.metrics(ticket)?;
        loss += metrics.loss;
        correct += metrics.correct as f64;
        samples += batch.valid as u64;
        // Other ranks are about as far; only the bar needs to know.
        let done = (samples * shards).min(total);
        observer.progress(&Progress {
            epoch: position.epoch,
            epochs: position.epochs,
            validating: true,
            samples: done,
            total,
            loss: loss / samples.max(1) as f64,
            images_per_second: done as f64 / began.elapsed().as_secs_f64(),
        });
        if let Some(group) = group {
            group.check()?;
        }
    }
    let mut sums = [loss, correct, samples as f64];
    if let Some(group) = group {
        group.all_reduce(&mut sums)?;
    }
    let [loss, correct, samples] = sums;
    Ok(Evaluation { loss: loss / samples.max(1.0), accuracy: correct / samples.max(1.0), samples: samples as u64 })
}
