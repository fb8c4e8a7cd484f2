//! One pass over a data set: a batch begins, its metrics are added to this rank's sums, and the sums of all ranks become the
//! results. The passes by one crop and by several of each image stand on it.

use std::sync::Arc;
use std::time::Instant;

use enmasse_comm::Group;
use enmasse_data::{Batch, Dataset};
use enmasse_device::{DeviceError, Program, StepInputs, StepMetrics, Ticket};
use enmasse_graph::{MAX_METRICS, Mode, Phase, Plan};

use crate::callback::Callbacks;
use crate::loaded::LoadedBatch;
use crate::tally::Tally;
use crate::{Evaluation, Kept, Progress, Scores, Task, TrainError};

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

/// The current pass over a data set.
pub(crate) struct Pass<'a> {
    began: Instant,
    pub total: u64,
    pub group: Option<&'a Group>,
    pub position: EpochPosition,
    kept: Kept,
    /// The task whose figures are measured, and the images.
    measured: Option<(&'a dyn Task, &'a dyn Dataset)>,
}

impl<'a> Pass<'a> {
    /// Begins now.
    pub fn begin(total: u64, group: Option<&'a Group>, position: EpochPosition) -> Self {
        Pass { began: Instant::now(), total, group, position, kept: Kept::default(), measured: None }
    }

    /// Also keeps this of every sample.
    pub fn keeping(self, kept: Kept) -> Self {
        Pass { kept, ..self }
    }

    /// Also measures the figures of a task on these images, of which the pass may see a part.
    pub fn of(self, task: &'a dyn Task, images: &'a dyn Dataset) -> Self {
        Pass { measured: (!task.figures().is_empty()).then_some((task, images)), ..self }
    }

    /// Nothing is counted yet.
    pub fn tally(&self, plan: &Plan) -> Tally {
        let images = self.measured.map_or(self.total, |(_, images)| images.len() as u64);
        Tally::of_plan(plan, Kept { scores: self.kept.scores || self.measured.is_some(), ..self.kept }, images)
    }

    /// The figures of the task, by their names.
    fn measure(&self, scores: &Scores) -> Vec<(String, f64)> {
        self.measured.map_or_else(Vec::new, |(task, images)| scores.figures(task, images))
    }

    /// How far it is after this many samples of this rank, without losses.
    pub fn progress(&self, samples: u64) -> Progress {
        // Other ranks have progressed about as far; only the progress bar needs this number.
        let ranks = self.group.map_or(1, Group::world_size) as u64;
        let done = (samples * ranks).min(self.total);
        Progress {
            epoch: self.position.epoch,
            epochs: self.position.epochs,
            validating: true,
            optimizer_step: self.position.optimizer_step,
            step_loss: 0.0,
            learning_rate: 0.0,
            samples: done,
            total: self.total,
            loss: 0.0,
            images_per_second: done as f64 / self.began.elapsed().as_secs_f64(),
            loss_scale: None,
        }
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
        callbacks.on_validation_batch_end(&Progress {
            step_loss: metrics.loss / samples.max(1) as f64,
            loss: self.loss / self.samples.max(1) as f64,
            ..pass.progress(self.samples)
        })
    }

    /// The results of all ranks, with the means of the measured `names`, and whether any rank has stopped. All ranks must call it.
    pub fn over_ranks(
        mut self,
        mut tally: Tally,
        names: &[String],
        stopped: bool,
        pass: &Pass,
    ) -> Result<(Evaluation, bool), TrainError> {
        let mut totals = [self.loss, self.correct, self.samples as f64, f64::from(u8::from(stopped))];
        if let Some(group) = pass.group {
            group.all_reduce(&mut totals)?;
            group.all_reduce(&mut self.measured)?;
            tally.sum_over(group)?;
        }
        let [loss, correct, samples, stopped] = totals;
        let mean = |sum: f64| sum / samples.max(1.0);
        let means = names.iter().zip(self.measured).map(|(name, sum)| (name.clone(), mean(sum)));
        let metrics = means.chain(tally.scores.iter().flat_map(|scores| pass.measure(scores))).collect();
        let found = Evaluation {
            loss: mean(loss),
            accuracy: tally.counts().then(|| mean(correct)),
            balanced_accuracy: tally.balanced_accuracy(),
            macro_f1: tally.macro_f1(),
            samples: samples as u64,
            unreadable: pass.total.saturating_sub(samples as u64),
            metrics,
            mistakes: tally.mistakes(),
            per_class: tally.per_class,
            confusion: tally.confusion,
            scores: tally.scores.filter(|_| pass.kept.scores),
        };
        Ok((found, stopped > 0.0))
    }
}

/// Begins the evaluation of a batch.
pub(crate) fn submit(program: &mut dyn Program, batch: Batch, epoch: u64) -> Result<Ticket, DeviceError> {
    let batch = Arc::new(LoadedBatch(Arc::new(batch)));
    let inputs = StepInputs { epoch, ..StepInputs::evaluation(batch) };
    program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs)
}
