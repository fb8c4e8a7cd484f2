//! Loss, accuracy and probabilities of a data set, exact at any world size: every sample counts once.

use std::time::Instant;

use enmasse_comm::Group;
use enmasse_data::{Batch, EvalLoader};
use enmasse_device::{DeviceError, Program, StepInputs, StepMetrics};
use enmasse_graph::{Mode, Phase};
use serde::Serialize;

use crate::{Observer, Progress, StopRequests, TrainError};

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
    // Nobody else knows these requests.
    evaluate_until(&StopRequests::default(), program, loader, total, group, position, observer).map(|(found, _)| found)
}

/// The same, cut short where a rank is asked to stop: then all ranks are told so, and what was found is void.
pub(crate) fn evaluate_until(
    requests: &StopRequests,
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: u64,
    group: Option<&Group>,
    position: EpochPosition,
    observer: &mut dyn Observer,
) -> Result<(Evaluation, bool), TrainError> {
    let began = Instant::now();
    let shards = group.map_or(1, Group::world_size) as u64;
    let (mut loss, mut correct, mut samples) = (0.0, 0.0, 0u64);
    let mut stopped = 0.0;
    at(group, "reading a batch to evaluate");
    for batch in loader.pass() {
        let batch = batch?;
        at(group, "evaluating a batch");
        if requests.asked().is_some() {
            stopped = 1.0;
            break;
        }
        let metrics = run_batch(program, &batch, position.epoch)?;
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
        at(group, "reading a batch to evaluate");
    }
    let mut sums = [loss, correct, samples as f64, stopped];
    if let Some(group) = group {
        group.all_reduce(&mut sums)?;
    }
    let [loss, correct, samples, stopped] = sums;
    let (loss, accuracy) = (loss / samples.max(1.0), correct / samples.max(1.0));
    Ok((Evaluation { loss, accuracy, samples: samples as u64 }, stopped > 0.0))
}

/// Says what this rank is at, for those that may have to wait for it.
pub(crate) fn at(group: Option<&Group>, activity: &'static str) {
    if let Some(group) = group {
        group.flight_recorder().at(activity);
    }
}

fn run_batch(program: &mut dyn Program, batch: &Batch, epoch: u64) -> Result<StepMetrics, DeviceError> {
    let inputs = StepInputs {
        images: &batch.images,
        labels: &batch.labels,
        sample_indices: &batch.indices,
        epoch,
        learning_rate: 0.0,
        optimizer_step: 1,
        stop: false,
    };
    let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs)?;
    program.metrics(ticket)
}

/// Runs one pass of `loader`, this rank's shard, and gives every rank the class probabilities of all `total` samples, in
/// the order of the data set.
pub fn predict(
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: usize,
    group: Option<&Group>,
) -> Result<Vec<Vec<f64>>, TrainError> {
    let mut rows: Vec<Vec<f64>> = vec![Vec::new(); total];
    let mut classes = 0;
    for batch in loader.pass() {
        let batch = batch?;
        run_batch(program, &batch, 0)?;
        let logits = program.store("logits")?;
        classes = logits.len() / batch.indices.len();
        for (index, logits) in batch.indices[..batch.valid].iter().zip(logits.chunks_exact(classes)) {
            rows[*index as usize] = softmax(logits);
        }
    }
    if let Some(group) = group {
        for row in &mut rows {
            row.resize(classes, 0.0);
        }
        // Each row comes from one rank; adding the others' zeros changes no bit.
        let mut all = rows.concat();
        group.all_reduce(&mut all)?;
        rows = all.chunks_exact(classes.max(1)).map(<[f64]>::to_vec).collect();
    }
    Ok(rows)
}

/// Logits to probabilities.
pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}
