//! Loss, accuracy and probabilities of a data set, exact at any world size: every sample counts
//! once.
//!
//! The logits of a batch are read once the next batch is ready, just before that one is submitted.
//! So the device computes while the loader reads.

mod pass;

use enmasse_comm::Group;
use enmasse_data::{DataError, EvalLoader};
use enmasse_device::{DeviceError, Program, StepMetrics, Ticket};

use crate::bad_samples::BadSamples;
use crate::callback::Callbacks;
use crate::crops::evaluate_crops;
use crate::stop::{Request, agree};
use crate::tally::Tally;
use crate::trace::at;
use crate::{Callback, Evaluation, Kept, Task, TrainError};
pub use pass::EpochPosition;
pub(crate) use pass::{Pass, Sums, submit};

/// Runs one pass of `loader`, which is this rank's part, and adds the results of all ranks. Sums are in f64. An image of several
/// [crops](EvalLoader::cropped) is evaluated by the mean of their logits, and the plan's further metrics are left out.
///
/// # Errors
/// An image cannot be read and is not to be skipped, or none can be read. Or a callback, the device or the group fails.
/// Or there are several crops, and the task does not predict a class.
pub fn evaluate(
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: u64,
    group: Option<&Group>,
    position: EpochPosition,
    callback: &mut dyn Callback,
) -> Result<Evaluation, TrainError> {
    evaluate_keeping(program, loader, total, group, position, Kept::default(), callback)
}

/// The same, which also keeps something of every sample.
///
/// # Errors
/// Those of [`evaluate`].
pub fn evaluate_keeping(
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: u64,
    group: Option<&Group>,
    position: EpochPosition,
    kept: Kept,
    callback: &mut dyn Callback,
) -> Result<Evaluation, TrainError> {
    let pass = Pass::begin(total, group, position).keeping(kept);
    // A list with only this callback has no requests to stop, except from the callback, and those do not end validation.
    let mut callbacks = Callbacks::one(callback);
    let mut bad = BadSamples::default();
    if loader.crops() == 1 {
        return evaluate_until(program, loader, &pass, &mut callbacks, &mut bad).map(|(found, _)| found);
    }
    let tally = pass.tally(&program.plans().evaluate);
    if !tally.counts() {
        let reason = "several crops of an image are evaluated by its class, which this task does not predict";
        return Err(DataError::Setting(reason.to_owned()).into());
    }
    evaluate_crops(program, loader, &pass, tally, &mut callbacks, &mut bad)
}

/// The same, but ends early if a rank is asked to stop: all ranks agree before each batch, so that none waits for the
/// rest of another's part. The results are then void. A callback that wants training to finish does not end it early. Samples that
/// are left out are added to `bad`, which ranks exchange at the end.
pub(crate) fn evaluate_until(
    program: &mut dyn Program,
    loader: &EvalLoader,
    pass: &Pass,
    callbacks: &mut Callbacks,
    bad: &mut BadSamples,
) -> Result<(Evaluation, bool), TrainError> {
    let mut tally = pass.tally(&program.plans().evaluate);
    let group = pass.group;
    let counts = program.gives_outputs();
    // Other ranks may compute the same samples.
    let of_step = |metrics: StepMetrics| if counts { metrics } else { StepMetrics::default() };
    let is_stopped = |request: Option<Request>| matches!(request, Some(Request::Stop(_)));
    let mut sums = Sums::default();
    let mut stopped = false;
    // The batch last submitted: the device continues with it while this thread reads the metrics of the one before.
    let mut in_flight: Option<SubmittedBatch> = None;
    at(group, "reading a batch to evaluate");
    for batch in loader.pass() {
        let batch = batch.map_err(TrainError::of_batch)?;
        bad.meet_batch(&batch, callbacks)?;
        at(group, "evaluating a batch");
        // Every rank has the same number of batches.
        stopped = is_stopped(agree(callbacks.control.request(), group)?);
        if stopped {
            break;
        }
        // Logits are those of the batch last submitted, so they are read before the next one, which is ready by now.
        count_last(program, &mut tally, in_flight.as_ref())?;
        let labels = batch.labels.clone();
        let samples = if counts { batch.valid as u64 } else { 0 };
        let indices = batch.indices.clone();
        let ticket = submit(program, batch, pass.position.epoch)?;
        if let Some(earlier) = in_flight.replace(SubmittedBatch { ticket, labels, indices, samples }) {
            sums.add(of_step(program.metrics(earlier.ticket)?), earlier.samples, pass, callbacks)?;
        }
        at(group, "reading a batch to evaluate");
    }
    // Requests that arrived while the last batch was submitted count as well.
    stopped |= is_stopped(callbacks.control.request());
    count_last(program, &mut tally, in_flight.as_ref())?;
    if let Some(last) = in_flight {
        sums.add(of_step(program.metrics(last.ticket)?), last.samples, pass, callbacks)?;
    }
    let names: Vec<String> = program.plans().evaluate.measured.iter().map(|metric| metric.name.clone()).collect();
    let (found, stopped) = sums.over_ranks(tally, &names, stopped, pass)?;
    callbacks.on_bad_samples(&bad.exchange(group)?)?;
    if found.samples == 0 && !stopped && pass.total > 0 {
        return Err(TrainError::NothingReadable(pass.total));
    }
    Ok((found, stopped))
}

/// A batch that the device evaluates.
struct SubmittedBatch {
    ticket: Ticket,
    labels: Vec<i32>,
    indices: Vec<u64>,
    samples: u64,
}

/// Counts the predictions of the batch last submitted, and waits for it; nothing where no logits are needed.
fn count_last(program: &mut dyn Program, tally: &mut Tally, last: Option<&SubmittedBatch>) -> Result<(), DeviceError> {
    if let Some(last) = last.filter(|_| tally.reads() && program.gives_outputs()) {
        tally.add(&last.labels, &last.indices, &program.store("logits")?);
    }
    Ok(())
}

/// The numbers of a sample that come with each batch.
pub(crate) fn targets_of_a_sample(program: &dyn Program) -> usize {
    let plan = &program.plans().evaluate;
    plan.targets.map_or(0, |targets| plan.shape(targets).last())
}

/// Runs one pass of `loader`, which is this rank's part, and gives every rank what the task makes of the outputs for all `total`
/// samples, in the order of the data set. Targets do not matter.
pub fn predict(
    program: &mut dyn Program,
    loader: &EvalLoader,
    total: usize,
    group: Option<&Group>,
    task: &dyn Task,
) -> Result<Vec<Vec<f64>>, TrainError> {
    let mut rows: Vec<Vec<f64>> = vec![Vec::new(); total];
    let outputs = program.plans().evaluate.classes;
    let values = targets_of_a_sample(program);
    let width = task.decode(&vec![0.0; outputs]).len();
    for batch in loader.pass() {
        let mut batch = batch?;
        batch.targets = vec![0.0; batch.labels.len() * values];
        let places: Vec<(usize, u64)> = batch.places().map(|place| (place, batch.indices[place])).collect();
        submit(program, batch, 0)?;
        let logits = program.store("logits")?;
        for (place, index) in places.into_iter().filter(|_| program.gives_outputs()) {
            rows[index as usize] = task.decode(&logits[place * outputs..(place + 1) * outputs]);
        }
    }
    if let Some(group) = group {
        for row in &mut rows {
            row.resize(width, 0.0);
        }
        // Each row comes from one rank; adding the zeros of the others changes no bit.
        let mut all = rows.concat();
        group.all_reduce(&mut all)?;
        rows = all.chunks_exact(width.max(1)).map(<[f64]>::to_vec).collect();
    }
    Ok(rows)
}
