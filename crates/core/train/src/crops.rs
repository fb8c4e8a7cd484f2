//! Evaluation and prediction by several crops of each image: the mean of their logits, as in the example of torchvision's FiveCrop.

use enmasse_data::{BadSample, Batch, Batches, EvalLoader};
use enmasse_device::{Program, StepMetrics};

use crate::bad_samples::BadSamples;
use crate::callback::Callbacks;
use crate::confusion::largest;
use crate::evaluation::{Pass, Sums, submit, targets_of_a_sample};
use crate::tally::Tally;
use crate::trace::at;
use crate::{Evaluation, TrainError};

/// A batch of which all crops have been evaluated.
pub(crate) struct EvaluatedBatch {
    /// Below 0 where there is no sample of which all crops can be read.
    pub labels: Vec<i32>,
    pub indices: Vec<u64>,
    /// Those with a crop that cannot be read: damage may lie in one crop and not in another.
    pub unreadable: Vec<BadSample>,
    /// The means `[batch, classes]`.
    pub logits: Vec<f64>,
}

impl EvaluatedBatch {
    fn begin(batch: &Batch) -> Self {
        EvaluatedBatch {
            labels: batch.labels.clone(),
            indices: batch.indices.clone(),
            unreadable: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Notes what can be read of one more crop.
    fn meet(&mut self, batch: &Batch) {
        self.labels.iter_mut().zip(&batch.labels).for_each(|(label, of_crop)| *label = (*label).min(*of_crop));
        let is_new = |sample: &&BadSample| self.unreadable.iter().all(|known| known.name != sample.name);
        let more: Vec<BadSample> = batch.unreadable.iter().filter(is_new).cloned().collect();
        self.unreadable.extend(more);
    }

    /// The places that have a sample, in order.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.labels.iter().enumerate().filter(|(_, label)| **label >= 0).map(|(place, _)| place)
    }
}

/// The batches of a pass, by all crops of their images.
pub(crate) struct Crops {
    pass: Batches,
    /// The part of each crop in the mean, relative to the others.
    weights: Vec<f64>,
}

impl Crops {
    /// Begins a pass.
    pub fn begin(loader: &EvalLoader) -> Self {
        Crops { pass: loader.pass(), weights: loader.weights() }
    }

    /// The next batch; `None` at the end.
    pub fn next(&mut self, program: &mut dyn Program) -> Result<Option<EvaluatedBatch>, TrainError> {
        let mut evaluated: Option<EvaluatedBatch> = None;
        let whole: f64 = self.weights.iter().sum();
        let values = targets_of_a_sample(program);
        for (weight, batch) in self.weights.iter().zip(&mut self.pass) {
            let mut batch = batch.map_err(TrainError::of_batch)?;
            // Logits are all that counts.
            batch.targets = vec![0.0; batch.labels.len() * values];
            let evaluated = evaluated.get_or_insert_with(|| EvaluatedBatch::begin(&batch));
            evaluated.meet(&batch);
            let ticket = submit(program, batch, 0)?;
            program.metrics(ticket)?;
            let logits = program.store("logits")?;
            evaluated.logits.resize(logits.len(), 0.0);
            evaluated.logits.iter_mut().zip(logits).for_each(|(mean, logit)| *mean += weight * logit / whole);
        }
        Ok(evaluated)
    }
}

/// Evaluates by the mean of the logits of each image's crops. The plan's further metrics are of single crops, so there are none.
pub(crate) fn evaluate_crops(
    program: &mut dyn Program,
    loader: &EvalLoader,
    pass: &Pass,
    mut tally: Tally,
    callbacks: &mut Callbacks,
    bad: &mut BadSamples,
) -> Result<Evaluation, TrainError> {
    let mut sums = Sums::default();
    let mut batches = Crops::begin(loader);
    at(pass.group, "reading a batch to evaluate");
    // Every rank has the same number of batches.
    while let Some(evaluated) = batches.next(program)? {
        callbacks.on_bad_samples(&bad.meet(&evaluated.unreadable))?;
        let classes = evaluated.logits.len() / evaluated.labels.len();
        let mut metrics = StepMetrics::default();
        let mut samples = 0;
        for place in evaluated.places() {
            samples += 1;
            let logits = &evaluated.logits[place * classes..][..classes];
            let label = evaluated.labels[place] as usize;
            metrics.loss += cross_entropy(logits, label);
            metrics.correct += u64::from(largest(logits) == Some(label));
        }
        tally.add(&evaluated.labels, &evaluated.indices, &evaluated.logits);
        sums.add(metrics, samples, pass, callbacks)?;
    }
    let (found, _) = sums.over_ranks(tally, &[], false, pass)?;
    callbacks.on_bad_samples(&bad.exchange(pass.group)?)?;
    if found.samples == 0 && pass.total > 0 { Err(TrainError::NothingReadable(pass.total)) } else { Ok(found) }
}

fn cross_entropy(logits: &[f64], label: usize) -> f64 {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    sum.ln() + largest - logits[label]
}
