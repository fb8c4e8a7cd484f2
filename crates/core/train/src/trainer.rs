//! The loop. This file shows the course of a run, from top to bottom: [`Trainer::fit`] prepares, then alternates epochs
//! of training and validation, and saves their results. [`Steps`] has its parts, and `builder` what a program may add.

mod builder;
mod diverged;
mod evaluate;
mod find_batch;
mod find_lr;
mod head;
mod prepare;
mod save;
mod steps;
mod survive;
mod told;
mod trained;
mod used;

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

use enmasse_comm::{Group, ShardMap};
use enmasse_data::{Batches, EpochOrder, EvalLoader, Sharding, TrainLoader};
use enmasse_device::{Device, Program, StepInputs, StepMetrics, Ticket};
use enmasse_graph::{Mode, Phase, TensorParallel};
use enmasse_system::machine::peak_rss_bytes;
use enmasse_weights::Matching;

use crate::agreement::check_ranks;
use crate::all_reduce::ChosenAlgorithm;
use crate::bad_samples::BadSamples;
use crate::callback::Callbacks;
use crate::checkpoint::CallbackStates;
use crate::evaluation::{EpochPosition, Pass, evaluate_until};
use crate::loaded::LoadedBatch;
use crate::lookahead::Lookahead;
use crate::pace::{EpochPace, INTERVAL, Paces, Stopwatch};
use crate::plans::{Objective, training_metrics};
use crate::rank_figures::Usage;
use crate::run_writer::RunWriter;
use crate::schedule::OwnSchedule;
use crate::stop::{Request, agree};
use crate::survivor::Survivor;
use crate::trace::Tracer;
use diverged::LastCheckpoint;
use head::HeadPhase;
use trained::Trained;

pub(crate) use evaluate::EvaluationInput;
pub use steps::{Step, Steps};

use crate::{
    Attempt, DoneRecord, EpochRecord, Evaluation, ModelFn, Monitor, Position, Preparation, ProgramConfig, RankFigures,
    RankKind, RankMemory, RankPlace, Resumed, SaveReason, SettingOrigins, TrainConfig, TrainError, TrainingData,
    Tuning,
};

/// Trains a model on a device, without a group or as one rank of a group.
///
/// ```no_run
/// use enmasse_train::{TrainConfig, Trainer, TrainingData};
/// # fn example(device: std::sync::Arc<dyn enmasse_device::Device>) -> Result<(), enmasse_train::TrainError> {
/// let config = TrainConfig { epochs: 3, ..TrainConfig::default() };
/// let data = TrainingData::open("flower_photos".as_ref(), &config.open_options())?;
/// let done = Trainer::new(config, device).fit("linear", &|x, classes| x.flatten().linear("fc", classes), &data)?;
/// println!("best {}", done.best);
/// # Ok(())
/// # }
/// ```
pub struct Trainer<'a> {
    config: TrainConfig,
    device: Arc<dyn Device>,
    group: Option<Group>,
    /// Threads that decode images, if the caller has decided.
    loader_threads: Option<usize>,
    /// The settings that the program around this trainer obeys.
    program: Option<ProgramConfig>,
    /// Where the settings come from, if the caller knows.
    origins: Option<SettingOrigins>,
    objective: Objective,
    schedule: Option<Arc<OwnSchedule>>,
    sampler: Option<Arc<OwnSampler>>,
    callbacks: Callbacks<'a>,
    attempt: Attempt,
    /// The result of the last fit.
    trained: Option<Trained>,
}

/// The training samples of an epoch, in their order.
type OwnSampler = dyn Fn(u64) -> Vec<usize> + Send + Sync;

impl Trainer<'_> {
    /// The number of threads that decode images for this rank.
    fn decoders(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (rank, ranks) = self.group.as_ref().map_or((0, 1), |group| (group.rank(), group.world_size()));
        self.loader_threads.unwrap_or_else(|| self.config.loader_threads_of_rank(cores, rank, ranks))
    }

    /// Checks the configuration as the command line does, and against the model, the device, the group and the data. The run records
    /// what is used, and the model under this name.
    ///
    /// Trains for the configured epochs, from the start or from the run folder's last checkpoint.
    ///
    /// # Errors
    /// The configuration, the model or the data are wrong or do not go together, such as the name of a model of the zoo
    /// for one that has other tensors. Or the run folder, a callback, the device or the group fails, or the loss is not
    /// finite. With a group, an error on this rank ends the others with the same cause. [`TrainError::Stopped`] does
    /// not count as one, and is returned on all ranks, after a checkpoint.
    pub fn fit(&mut self, name: &str, model: &ModelFn, data: &TrainingData) -> Result<DoneRecord, TrainError> {
        let mut steps = self.steps(name, model, data)?;
        while let Some(step) = steps.next_step()? {
            steps.submit(step)?;
        }
        steps.end()
    }

    /// Runs `work`, which all ranks do together: an error on this rank ends the others, with the same cause.
    fn as_one<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, TrainError>) -> Result<T, TrainError> {
        work(self).inspect_err(|error| self.abort(error))
    }

    /// Ends the other ranks with the cause of this rank's error, unless they have it too.
    fn abort(&self, error: &TrainError) {
        if let Some(group) = &self.group
            && !matches!(error, TrainError::Stopped { .. } | TrainError::Interrupted)
        {
            group.abort(error.cause(group.rank()));
        }
    }

    /// Peak memory over all ranks, in bytes. Threads share one process, which counts once.
    fn peak_rss_of_all(&self) -> Result<u64, TrainError> {
        let mut bytes = [peak_rss_bytes() as i64];
        if let (Some(group), RankKind::Process) = (&self.group, self.config.rank_kind()) {
            group.all_reduce(&mut bytes)?;
        }
        Ok(bytes[0] as u64)
    }
}

/// Whether epochs and steps remain to be trained, or the validation after the last of them.
fn is_unfinished(config: &TrainConfig, position: &Position) -> bool {
    let is_over = config.max_steps.is_some_and(|most| match position.optimizer_step.cmp(&most) {
        Ordering::Less => false,
        Ordering::Equal => position.is_validated(),
        Ordering::Greater => true,
    });
    position.epoch < config.epochs as u64 && !is_over
}

/// The current epoch of training.
struct Epoch {
    batches: Batches,
    began: Instant,
    /// Samples of the epoch that were done before.
    first: u64,
    /// Total number of samples of the epoch.
    total: u64,
    /// Where its time goes.
    stopwatch: Stopwatch,
    /// Whether no batch has been read yet.
    is_first: bool,
    /// The step after which ranks last compared their paces.
    compared: u64,
    /// The rate of the last step.
    learning_rate: f64,
    in_flight: Option<SubmittedStep>,
    /// The step whose metrics are awaited.
    finishing: Option<SubmittedStep>,
}

/// A step of training that the device computes.
#[derive(Clone, Copy)]
struct SubmittedStep {
    ticket: Ticket,
    learning_rate: f64,
    /// Samples of its global batch.
    samples: u64,
}

/// The learning rate and timings of an epoch of training.
struct EpochTimes {
    learning_rate: f64,
    images_per_second: f64,
    pace: EpochPace,
    ranks: RankFigures,
    seconds: f64,
}

/// Everything that a run needs between its first and its last step.
struct Session {
    program: Box<dyn Program>,
    train: TrainLoader,
    validation: EvalLoader,
    /// The stated memory of this rank.
    memory: RankMemory,
    evaluation: EvaluationInput,
    sharding: Sharding,
    map: ShardMap,
    /// The part of the model that this rank has.
    place: RankPlace,
    /// The layers of which it has a part.
    cut: Option<TensorParallel>,
    /// The ranks with the same one, of a model that is cut.
    replicas: Option<Group>,
    /// The algorithm of sums over ranks, if the model of costs has chosen it.
    all_reduce: Option<ChosenAlgorithm>,
    preparation: Preparation,
    tuning: Option<Tuning>,
    /// The tensors that were loaded from `--weights`, on rank 0.
    pretrained: Option<Matching>,
    schedule: Arc<OwnSchedule>,
    sampler: Option<Arc<OwnSampler>>,
    position: Position,
    /// What trains the head in the first epoch of fine-tuning, until then.
    head: Option<HeadPhase>,
    /// What decides which epoch is the best.
    monitor: Monitor,
    /// The states of callbacks in the checkpoint of a resumed run, until they have them.
    states: CallbackStates,
    resumed: Option<Resumed>,
    /// What a resumed run has dropped of what compressing gradients had lost, until that is told.
    lost_residuals: Option<String>,
    bad_samples: BadSamples,
    paces: Paces,
    tracer: Tracer,
    /// Whether a rank was asked to stop before the last step, and all ranks know it.
    stopping: bool,
    /// Whether a callback requested a checkpoint before the last step, and all ranks know it. By then the next step is
    /// in progress, so the checkpoint follows that step.
    saving: bool,
    last_checkpoint: LastCheckpoint,
    /// The position after the last step of an epoch, with the states of callbacks, while what follows that step is in progress.
    epoch_end: Option<(Position, CallbackStates)>,
    /// Whether callbacks have set weights since the last step.
    has_set_weights: bool,
    /// Where this rank can write the last checkpoint in rank 0's place.
    survivor: Option<Survivor>,
    /// Only on the rank that writes files.
    writer: Option<RunWriter>,
}

impl Session {
    fn run_folder(&self) -> Option<std::path::PathBuf> {
        self.writer.as_ref().map(|writer| writer.paths().root().to_owned())
    }

    /// Ends an epoch of training: validates, and saves the results. Returns any rank's request to end training;
    /// all ranks have then saved a checkpoint to continue from.
    fn end_epoch(&mut self, trainer: &mut Trainer, epoch: Epoch) -> Result<Option<Request>, TrainError> {
        let total = epoch.total;
        let times = self.end_steps(trainer, epoch)?;
        self.epoch_end = Some((self.position, trainer.callbacks.state_dicts()?));
        if self.stopping {
            return self.stop(trainer);
        }
        self.record_epoch(trainer, total, times)
    }

    /// Validates after the training of an epoch of `total` samples if it is due, and saves the results, as [`Session::end_epoch`].
    fn record_epoch(
        &mut self,
        trainer: &mut Trainer,
        total: u64,
        times: EpochTimes,
    ) -> Result<Option<Request>, TrainError> {
        // Callbacks on rank 0 read the whole of it.
        self.program.gather_state(false)?;
        let validation = match self.awaits_validation(&trainer.config) {
            true => match self.validate(trainer)? {
                Some(found) => Some(found),
                None => return self.stop(trainer),
            },
            false => {
                trainer.callbacks.on_bad_samples(&self.bad_samples.exchange(trainer.group.as_ref())?)?;
                None
            }
        };
        let Trainer { config, group, callbacks, .. } = trainer;
        self.bad_samples.check()?;
        self.list_bad_samples()?;
        if let Some(found) = &validation {
            callbacks.on_validation_end(found, self.program.as_mut())?;
        }
        let epoch = self.position.epoch;
        let is_of_classes = self.program.plans().evaluate.correct.is_some();
        let loss_scale = self.loss_scale()?;
        let training = self.position.means(training_metrics(self.program.plans()));
        let training = training.map(|(name, mean)| (format!("train_{name}"), mean));
        let validated = validation.iter().flat_map(|found| &found.metrics);
        let validated = validated.map(|(name, mean)| (format!("val_{name}"), *mean));
        let mut record = EpochRecord {
            epoch,
            train_loss: self.position.mean_loss(),
            train_accuracy: is_of_classes.then(|| self.position.accuracy()),
            val_loss: validation.as_ref().map_or(f64::NAN, |found| found.loss),
            val_accuracy: validation.as_ref().and_then(|found| found.accuracy),
            balanced_accuracy: validation.as_ref().and_then(|found| found.balanced_accuracy),
            val_macro_f1: validation.as_ref().and_then(|found| found.macro_f1),
            learning_rate: times.learning_rate,
            images_per_second: times.images_per_second,
            // Every step waits for the slowest rank, so a mean would hide one slow disk among many ranks.
            data_wait: times.pace.data_wait,
            rank_wait: times.pace.rank_wait,
            seconds: times.seconds,
            world_size: self.place.parts() * self.place.replicas(),
            partial: self.position.samples < total,
            unvalidated: validation.is_none(),
            unreadable: self.bad_samples.known().len() as u64,
            converted: self.bad_samples.take_converted(),
            straggler: times.pace.straggler,
            ranks: times.ranks,
            loss_scale,
            skipped_steps: self.position.skipped_steps,
            metrics: training.chain(validated).collect(),
            best: false,
        };
        let value = record.value(&self.monitor.name).unwrap_or(f64::NAN);
        record.best = !record.partial && !record.unvalidated && self.monitor.improves(value, self.position.best);
        callbacks.on_train_epoch_end(&mut record, self.program.as_mut())?;
        self.compare_written(group.as_ref(), callbacks)?;
        self.saving = false;
        self.tracer.at(group.as_ref(), "writing a checkpoint");
        self.finish_epoch(&record, config, group.as_ref(), callbacks)?;
        // A request that arrives at the end of the run has nothing left to end.
        Ok(agree(callbacks.control.request(), group.as_ref())?.filter(|_| is_unfinished(config, &self.position)))
    }

    /// Whether the model is validated after this epoch: every `val_every` epochs, and where training ends.
    fn awaits_validation(&self, config: &TrainConfig) -> bool {
        let Position { epoch, optimizer_step, .. } = self.position;
        let is_last = epoch + 1 >= config.epochs as u64 || config.max_steps.is_some_and(|most| optimizer_step >= most);
        is_last || (epoch + 1).is_multiple_of(config.val_every)
    }

    /// Validates; `None` if a rank was asked to stop meanwhile.
    fn validate(&mut self, trainer: &mut Trainer) -> Result<Option<Evaluation>, TrainError> {
        let Trainer { config, group, callbacks, .. } = trainer;
        self.tracer.at(group.as_ref(), "validating");
        let Position { epoch, optimizer_step, .. } = self.position;
        callbacks.on_validation_start(epoch)?;
        let position = EpochPosition { epoch, epochs: config.epochs as u64, optimizer_step };
        let EvaluationInput { task, images, .. } = &self.evaluation;
        let pass =
            Pass::begin(self.validation.samples() as u64, group.as_ref(), position).of(task.as_ref(), images.as_ref());
        let program = self.program.as_mut();
        let bad = &mut self.bad_samples;
        let (found, stopped) = evaluate_until(program, &self.validation, &pass, callbacks, bad)?;
        if !stopped && !found.loss.is_finite() {
            return Err(self.non_finite_validation(config, found.loss)?);
        }
        Ok((!stopped).then_some(found))
    }

    /// Begins an epoch of training, or the rest of one, at the current position.
    fn begin_epoch(&mut self, trainer: &mut Trainer) -> Result<Epoch, TrainError> {
        let group = trainer.group.as_ref();
        trainer.callbacks.on_train_epoch_start(self.position.epoch)?;
        let began = Instant::now();
        let global_batch = self.sharding.global_batch() as u64;
        let first = self.position.samples;
        // A run resumed with another global batch continues after the last sample that it saw.
        let mut order = self.order(group)?;
        if let Some(limit) = trainer.config.limit_train_batches {
            let done = first.div_ceil(global_batch) as usize;
            let most = limit.of(done + order.batches());
            order = order.first_batches(most.saturating_sub(done));
        }
        let total = first + order.remaining() as u64;
        self.compare_rates(trainer, first, total)?;
        let batches = self.train.epoch_in(self.position.epoch, order);
        let stopwatch = Stopwatch::start(batches.waited(), group);
        // The progress at the last step, for an epoch that is resumed after it. That step may have had less than a global batch.
        let last = first.saturating_sub(1) / global_batch * global_batch;
        let learning_rate = (self.schedule)(self.progress(last, total.max(1)));
        let compared = self.position.optimizer_step;
        self.tracer.at(group, "reading a batch");
        Ok(Epoch {
            batches,
            began,
            first,
            total,
            stopwatch,
            is_first: true,
            compared,
            learning_rate,
            in_flight: None,
            finishing: None,
        })
    }

    /// Compares the rates of the program's own schedule, if it has one, between ranks: at each step after `first` samples of the epoch.
    fn compare_rates(&self, trainer: &Trainer, first: u64, total: u64) -> Result<(), TrainError> {
        let (Some(own), Some(group)) = (&trainer.schedule, &trainer.group) else { return Ok(()) };
        let epoch = self.position.epoch;
        let steps = (first..total).step_by(self.sharding.global_batch());
        let rate = |samples: u64| format!("{} after {samples} samples\n", own(self.progress(samples, total)));
        let lines: String = steps.map(rate).collect();
        group.compare(&[(&format!("learning rate of epoch {}", epoch + 1), &lines)])?;
        Ok(())
    }

    /// The epochs that are done after `samples` of the current one's `total`.
    fn progress(&self, samples: u64, total: u64) -> f64 {
        self.position.epoch as f64 + samples as f64 / total as f64
    }

    /// The rest of the current epoch, in the configured order or in the program's own.
    fn order(&self, group: Option<&Group>) -> Result<EpochOrder, TrainError> {
        let Position { epoch, samples, .. } = self.position;
        let Some(sampler) = &self.sampler else {
            return Ok(self.train.order().rest_of_epoch(epoch, samples as usize));
        };
        let own = sampler(epoch);
        if let Some(group) = group {
            let lines: String = own.iter().map(|sample| format!("sample {sample}\n")).collect();
            group.compare(&[(&format!("order of epoch {}", epoch + 1), &lines)])?;
        }
        Ok(self.train.order().own(epoch, own, samples as usize)?)
    }

    /// Reads the batch of the next step; `None` at the end of the epoch, or of training.
    fn next_step(&mut self, trainer: &mut Trainer, epoch: &mut Epoch) -> Result<Option<Step>, TrainError> {
        let Some(batch) = epoch.batches.next() else { return Ok(None) };
        if std::mem::take(&mut epoch.is_first) {
            // No step could have hidden the wait for this batch.
            epoch.stopwatch = Stopwatch::start(epoch.batches.waited(), trainer.group.as_ref());
        }
        let batch = Arc::new(batch.map_err(TrainError::of_batch)?);
        if self.must_drain(&trainer.config, 1) {
            self.drain(trainer, epoch)?;
        }
        let submitted = self.position.optimizer_step + u64::from(epoch.in_flight.is_some());
        if self.stopping || trainer.config.max_steps.is_some_and(|most| submitted >= most) {
            return Ok(None);
        }
        let samples = self.position.samples + epoch.in_flight.as_ref().map_or(0, |step| step.samples);
        let learning_rate = (self.schedule)(self.progress(samples, epoch.total));
        Ok(Some(Step { batch, epoch: self.position.epoch, number: submitted + 1, samples, learning_rate }))
    }

    /// Hands a step to the device, and only then finishes the one before: a device that works asynchronously never waits for
    /// this thread.
    fn submit(&mut self, trainer: &mut Trainer, epoch: &mut Epoch, step: Step) -> Result<(), TrainError> {
        let Trainer { config, device, group, callbacks, .. } = trainer;
        let group = group.as_ref();
        let Step { batch, number, samples, learning_rate, .. } = step;
        if !(learning_rate.is_finite() && learning_rate >= 0.0) {
            return Err(TrainError::LearningRate { rate: learning_rate, epoch: self.position.epoch, step: number });
        }
        let global_batch = self.sharding.global_batch() as u64;
        let done = (samples + global_batch).min(epoch.total);
        let alpha =
            Lookahead::new(config).and_then(|lookahead| lookahead.alpha(number, self.progress(done, epoch.total)));
        let inputs = StepInputs {
            batch: Arc::new(LoadedBatch(batch.clone())),
            epoch: self.position.epoch,
            learning_rate: learning_rate as f32,
            optimizer_step: number,
            lookahead: alpha.map(|alpha| alpha as f32),
            stop: callbacks.control.request().is_some(),
            save: callbacks.control.take_checkpoint(),
        };
        self.tracer.at(group, "computing a step");
        self.tracer.begin_step(number, self.program.as_mut(), group)?;
        let submit = || self.program.submit(Mode::Train, &Phase::ALL, &inputs);
        let ticket = epoch.stopwatch.device(group, submit)?;
        self.tracer.end_step();
        self.tracer.at(group, "calling callbacks");
        callbacks.on_train_batch_start(&batch)?;
        self.bad_samples.meet_batch(&batch, callbacks)?;
        epoch.learning_rate = learning_rate;
        let samples = done.saturating_sub(samples);
        if let Some(earlier) = epoch.in_flight.replace(SubmittedStep { ticket, learning_rate, samples }) {
            self.finish_step(callbacks, config, group, epoch, earlier)?;
        }
        self.write_trace(device.as_ref(), group, callbacks, false)?;
        let steps = self.position.optimizer_step - epoch.compared;
        if steps >= INTERVAL {
            epoch.compared = self.position.optimizer_step;
            let paces = epoch.stopwatch.lap(epoch.batches.waited(), group).of_all(group)?;
            if let Some(straggler) = self.paces.interval(&paces, steps) {
                callbacks.on_straggler(self.position.epoch, &straggler)?;
            }
        }
        self.tracer.at(group, "reading a batch");
        Ok(())
    }

    /// Finishes the last step of an epoch, and says how fast its steps were.
    fn end_steps(&mut self, trainer: &mut Trainer, mut epoch: Epoch) -> Result<EpochTimes, TrainError> {
        self.drain(trainer, &mut epoch)?;
        let group = trainer.group.as_ref();
        let seconds = epoch.began.elapsed().as_secs_f64();
        let images_per_second = (self.position.samples - epoch.first) as f64 / seconds;
        let pace = epoch.stopwatch.lap(epoch.batches.waited(), group);
        let (paces, usages) = Usage::of(trainer.device.as_ref()).of_all(pace, group)?;
        let pace = self.paces.epoch(&paces, self.position.optimizer_step - epoch.compared);
        let ranks = RankFigures::new(&pace.ranks, &usages, images_per_second);
        Ok(EpochTimes { learning_rate: epoch.learning_rate, images_per_second, pace, ranks, seconds })
    }

    /// Waits for the step in flight, and returns its metrics.
    fn drain(&mut self, trainer: &mut Trainer, epoch: &mut Epoch) -> Result<Option<StepMetrics>, TrainError> {
        let Some(step) = epoch.in_flight.take() else { return Ok(None) };
        let Trainer { config, group, callbacks, .. } = trainer;
        self.finish_step(callbacks, config, group.as_ref(), epoch, step).map(Some)
    }

    /// Whether some code reads the state after the `ahead`-th step from here, so that no later step may have begun.
    fn must_drain(&self, config: &TrainConfig, ahead: u64) -> bool {
        let step = self.position.optimizer_step + ahead;
        self.saving || config.check_ranks || (config.save_every > 0 && step.is_multiple_of(config.save_every))
    }

    /// Waits for a step, adds its metrics to the epoch's, and does the work that follows a step.
    fn finish_step(
        &mut self,
        callbacks: &mut Callbacks,
        config: &TrainConfig,
        group: Option<&Group>,
        epoch: &mut Epoch,
        submitted: SubmittedStep,
    ) -> Result<StepMetrics, TrainError> {
        let asked = self.saving;
        self.tracer.at(group, "waiting for the metrics of a step");
        epoch.finishing = Some(submitted);
        let metrics = epoch.stopwatch.device(group, || self.program.metrics(submitted.ticket));
        let metrics = self.count(metrics, submitted.samples, config)?;
        epoch.finishing = None;
        let step = self.position.optimizer_step;
        if let (true, Some(group)) = (config.check_ranks, group) {
            let peers = self.replicas.as_ref().unwrap_or(group);
            match self.program.parts() {
                Some(parts) => {
                    check_ranks(peers, parts, step)?;
                    check_ranks(group, self.program.as_mut(), step)?;
                }
                None => check_ranks(peers, self.program.as_mut(), step)?,
            }
        }
        if asked || (config.save_every > 0 && step.is_multiple_of(config.save_every)) {
            self.tracer.at(group, "writing a checkpoint");
            self.save(SaveReason::Step, config, group, callbacks)?;
        }
        self.tracer.at(group, "calling callbacks");
        callbacks.on_train_batch_end(&self.progress_after(config, epoch, submitted, &metrics))?;
        Ok(metrics)
    }
}
