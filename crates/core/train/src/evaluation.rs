//! Loss, accuracy and probabilities of a data set, exact at any world size: every sample counts
//! once.
//!
//! The logits of a batch are read once the next batch is ready, just before that one is submitted.
//! So the device computes while the loader reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use enmasse_comm::Group;
use enmasse_data::{Batch, EvalLoader};
use enmasse_device::{DeviceError, Program, StepInputs, StepMetrics, Ticket};
use enmasse_graph::{MAX_METRICS, Mode, Phase};
use serde::Serialize;

use crate::bad_samples::BadSamples;
use crate::callback::{Callbacks, Request};
use crate::crops::evaluate_crops;
use crate::loaded::LoadedBatch;
use crate::stop::agree;
use crate::tally::Tally;
use crate::{Callback, Confusion, Mistake, PerClass, Progress, TrainError};

/// The results of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss over the samples.
    pub loss: f64,
    /// Share of samples whose largest logit is at their label.
    pub accuracy: f64,
    /// The mean of the classes' own accuracies, over those that have samples. NaN if none has.
    pub balanced_accuracy: f64,
    /// Number of samples that were evaluated.
    pub samples: u64,
    /// Number of samples that were left out because they cannot be read.
    pub unreadable: u64,
    /// Means over the samples of the plan's further metrics, by their names.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
    /// The counts of each class.
    #[serde(skip)]
    pub per_class: PerClass,
    /// The samples by their true and predicted classes. None for more than 1024 classes.
    #[serde(skip)]
    pub confusion: Option<Confusion>,
    /// The mistakes, the most certain first. None unless [`evaluate_with_mistakes`] was asked for them.
    #[serde(skip)]
    pub mistakes: Option<Vec<Mistake>>,
}

/// The epoch that an evaluation belongs to, for callbacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct EpochPosition {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Number of epochs.
    pub epochs: u64,
    /// Optimiser steps done.
    pub optimizer_step: u64,
}

/// Runs one pass of `loader`, which is this rank's part, and adds the results of all ranks. Sums are in f64. An image of several
/// [crops](EvalLoader::cropped) is evaluated by the mean of their logits, and the plan's further metrics are left out.
pub fn evaluate(
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: u64,
    group: Option<&Group>,
    position: EpochPosition,
    callback: &mut dyn Callback,
) -> Result<Evaluation, TrainError> {
    let tally = Tally::of_plan(&program.plans().evaluate);
    evaluate_into(program, loader, Pass::begin(total, group, position), group, tally, callback)
}

/// The same, with [`Evaluation::mistakes`]. Ranks exchange 32 bytes for each sample.
pub fn evaluate_with_mistakes(
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: u64,
    group: Option<&Group>,
    position: EpochPosition,
    callback: &mut dyn Callback,
) -> Result<Evaluation, TrainError> {
    let tally = Tally::of_plan(&program.plans().evaluate).list_mistakes(total);
    evaluate_into(program, loader, Pass::begin(total, group, position), group, tally, callback)
}

fn evaluate_into(
    program: &mut dyn Program,
    loader: &EvalLoader,
    pass: Pass,
    group: Option<&Group>,
    tally: Tally,
    callback: &mut dyn Callback,
) -> Result<Evaluation, TrainError> {
    if loader.crops() > 1 {
        return evaluate_crops(program, loader, pass, group, tally, callback);
    }
    // A list with only this callback has no requests to stop, except from the callback, and those do not end validation.
    let (mut callbacks, mut bad) = (Callbacks::one(callback), BadSamples::default());
    evaluate_pass(program, loader, pass, group, tally, &mut callbacks, &mut bad).map(|(found, _)| found)
}

/// The same, but ends early if a rank is asked to stop: all ranks agree before each batch, so that none waits for the
/// rest of another's part. The results are then void. A callback that wants training to finish does not end it early. Samples that are left out are added to `bad`, which
/// ranks exchange at the end.
pub(crate) fn evaluate_until(
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: u64,
    group: Option<&Group>,
    position: EpochPosition,
    callbacks: &mut Callbacks,
    bad: &mut BadSamples,
) -> Result<(Evaluation, bool), TrainError> {
    let tally = Tally::of_plan(&program.plans().evaluate);
    evaluate_pass(program, loader, Pass::begin(total, group, position), group, tally, callbacks, bad)
}

fn evaluate_pass(
    program: &mut dyn Program,
    loader: &EvalLoader,
    pass: Pass,
    group: Option<&Group>,
    mut tally: Tally,
    callbacks: &mut Callbacks,
    bad: &mut BadSamples,
) -> Result<(Evaluation, bool), TrainError> {
    let is_stopped = |request: Option<Request>| matches!(request, Some(Request::Stop(_)));
    let mut sums = Sums::default();
    let mut stopped = false;
    // The batch last submitted: the device continues with it while this thread reads the metrics of the one before.
    let mut in_flight: Option<Submitted> = None;
    at(group, "reading a batch to evaluate");
    for batch in loader.pass() {
        let batch = batch.map_err(TrainError::of_batch)?;
        bad.meet_batch(&batch, callbacks)?;
        at(group, "evaluating a batch");
        // Every rank has the same number of batches.
        stopped = is_stopped(agree(callbacks.request(), group)?);
        if stopped {
            break;
        }
        // Logits are those of the batch last submitted, so they are read before the next one, which is ready by now.
        count_last(program, &mut tally, in_flight.as_ref())?;
        let (labels, samples) = (batch.labels.clone(), batch.valid as u64);
        let indices = batch.indices.clone();
        let ticket = submit(program, batch, pass.position.epoch)?;
        if let Some(earlier) = in_flight.replace(Submitted { ticket, labels, indices, samples }) {
            sums.add(program.metrics(earlier.ticket)?, earlier.samples, &pass, callbacks)?;
        }
        at(group, "reading a batch to evaluate");
    }
    // Requests that arrived while the last batch was submitted count as well.
    stopped |= is_stopped(callbacks.request());
    count_last(program, &mut tally, in_flight.as_ref())?;
    if let Some(last) = in_flight {
        sums.add(program.metrics(last.ticket)?, last.samples, &pass, callbacks)?;
    }
    let names: Vec<String> = program.plans().evaluate.measured.iter().map(|metric| metric.name.clone()).collect();
    let found = sums.over_ranks(tally, &names, stopped, pass.total, group)?;
    callbacks.on_bad_samples(&bad.exchange(group)?)?;
    match found {
        (Evaluation { samples: 0, .. }, false) if pass.total > 0 => Err(TrainError::NothingReadable(pass.total)),
        found => Ok(found),
    }
}

/// A batch that the device evaluates.
struct Submitted {
    ticket: Ticket,
    labels: Vec<i32>,
    indices: Vec<u64>,
    samples: u64,
}

/// The current pass over a data set, for callbacks.
pub(crate) struct Pass {
    began: Instant,
    ranks: u64,
    pub total: u64,
    position: EpochPosition,
}

impl Pass {
    /// Begins now.
    pub fn begin(total: u64, group: Option<&Group>, position: EpochPosition) -> Self {
        Pass { began: Instant::now(), ranks: group.map_or(1, Group::world_size) as u64, total, position }
    }
}

/// This rank's sums so far.
#[derive(Default)]
pub(crate) struct Sums {
    loss: f64,
    correct: f64,
    samples: u64,
    measured: [f64; MAX_METRICS],
}

impl Sums {
    pub fn add(
        &mut self,
        metrics: StepMetrics,
        samples: u64,
        pass: &Pass,
        callbacks: &mut Callbacks,
    ) -> Result<(), TrainError> {
        self.loss += metrics.loss;
        self.correct += metrics.correct as f64;
        self.samples += samples;
        self.measured.iter_mut().zip(metrics.measured).for_each(|(sum, value)| *sum += value);
        // Other ranks have progressed about as far; only the progress bar needs this number.
        let done = (self.samples * pass.ranks).min(pass.total);
        callbacks.on_step(&Progress {
            epoch: pass.position.epoch,
            epochs: pass.position.epochs,
            validating: true,
            optimizer_step: pass.position.optimizer_step,
            step_loss: metrics.loss / samples.max(1) as f64,
            learning_rate: 0.0,
            samples: done,
            total: pass.total,
            loss: self.loss / self.samples.max(1) as f64,
            images_per_second: done as f64 / pass.began.elapsed().as_secs_f64(),
            loss_scale: None,
        })
    }

    /// The results of all ranks, with the means of the measured `names`, and whether any rank has stopped. All ranks must call it.
    pub fn over_ranks(
        mut self,
        mut tally: Tally,
        names: &[String],
        stopped: bool,
        total: u64,
        group: Option<&Group>,
    ) -> Result<(Evaluation, bool), TrainError> {
        let mut totals = [self.loss, self.correct, self.samples as f64, f64::from(u8::from(stopped))];
        if let Some(group) = group {
            group.all_reduce(&mut totals)?;
            group.all_reduce(&mut self.measured)?;
            tally.sum_over(group)?;
        }
        let [loss, correct, samples, stopped] = totals;
        let mean = |sum: f64| sum / samples.max(1.0);
        let metrics = names.iter().zip(self.measured).map(|(name, sum)| (name.clone(), mean(sum))).collect();
        let found = Evaluation {
            loss: mean(loss),
            accuracy: mean(correct),
            balanced_accuracy: tally.per_class.balanced_accuracy(),
            samples: samples as u64,
            unreadable: total.saturating_sub(samples as u64),
            metrics,
            mistakes: tally.mistakes(),
            per_class: tally.per_class,
            confusion: tally.confusion,
        };
        Ok((found, stopped > 0.0))
    }
}

/// Records the current activity of this rank, for ranks that may have to wait for it.
pub(crate) fn at(group: Option<&Group>, activity: &'static str) {
    if let Some(group) = group {
        group.flight_recorder().at(activity);
    }
}

/// Counts the predictions of the batch last submitted, and waits for it.
fn count_last(program: &mut dyn Program, tally: &mut Tally, last: Option<&Submitted>) -> Result<(), DeviceError> {
    if let Some(last) = last {
        tally.add(&last.labels, &last.indices, &program.store("logits")?);
    }
    Ok(())
}

/// Begins the evaluation of a batch.
pub(crate) fn submit(program: &mut dyn Program, batch: Batch, epoch: u64) -> Result<Ticket, DeviceError> {
    let batch = Arc::new(LoadedBatch(Arc::new(batch)));
    let inputs = StepInputs { epoch, ..StepInputs::evaluation(batch) };
    program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs)
}

/// Runs one pass of `loader`, which is this rank's part, and gives every rank the class probabilities of all `total`
/// samples, in the order of the data set.
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
        let places: Vec<(usize, u64)> = batch.places().map(|place| (place, batch.indices[place])).collect();
        let samples = batch.indices.len();
        submit(program, batch, 0)?;
        let logits = program.store("logits")?;
        classes = logits.len() / samples;
        for (place, index) in places {
            rows[index as usize] = softmax(&logits[place * classes..(place + 1) * classes]);
        }
    }
    if let Some(group) = group {
        for row in &mut rows {
            row.resize(classes, 0.0);
        }
        // Each row comes from one rank; adding the zeros of the others changes no bit.
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
