//! The loop. What happens in a run is in this file, from top to bottom: [`Trainer::fit`] prepares, then alternates epochs of
//! training and validation, and keeps what they found.

mod prepare;

use std::sync::Arc;
use std::time::Instant;

use enmasse_comm::{Group, ShardMap};
use enmasse_data::{Dataset, DecodePool, EvalLoader, EvalTransform, Sharding, TrainLoader};
use enmasse_device::{Device, DeviceError, Program, StepInputs, StepMetrics, Ticket};
use enmasse_graph::{Mode, Phase, Tensor};
use enmasse_tensor::{HostMemory, peak_rss_bytes};
use enmasse_weights::Matching;

use crate::agreement::check_ranks;
use crate::evaluation::{EpochPosition, Evaluation, at, evaluate, evaluate_until, predict};
use crate::loaded::LoadedBatch;
use crate::run_writer::RunWriter;
use crate::weights::take_part;
use crate::{
    Attempt, DoneRecord, EpochRecord, Observer, Position, Preparation, Progress, Quiet, RankKind, Schedule,
    StopRequests, TrainConfig, TrainError, TrainingData, Tuning,
};

/// A model: from pictures and the number of classes to logits.
pub type ModelFn<'a> = dyn Fn(Tensor, usize) -> Tensor + 'a;

/// Trains a model on a device, alone or as one rank of a group.
///
/// ```no_run
/// use enmasse_train::{TrainConfig, Trainer, TrainingData};
/// # fn example(device: &dyn enmasse_device::Device) -> Result<(), enmasse_train::TrainError> {
/// let config = TrainConfig { epochs: 3, ..TrainConfig::default() };
/// let data = TrainingData::open("flower_photos".as_ref(), &config.open_options())?;
/// let done = Trainer::new(config, device).fit(&|x, classes| x.flatten().linear("fc", classes), &data)?;
/// println!("{:.3}", done.best_val_accuracy);
/// # Ok(())
/// # }
/// ```
pub struct Trainer<'a> {
    config: TrainConfig,
    device: &'a dyn Device,
    group: Option<Group>,
    loader_threads: usize,
    observer: Box<dyn Observer + 'a>,
    requests: StopRequests,
    attempt: Attempt,
    /// What the last fit left.
    trained: Option<Trained>,
}

impl<'a> Trainer<'a> {
    /// A trainer without a group, which nobody watches.
    pub fn new(config: TrainConfig, device: &'a dyn Device) -> Self {
        let loader_threads = config.loader_threads.unwrap_or(1);
        Trainer {
            config,
            device,
            group: None,
            loader_threads,
            observer: Box::new(Quiet),
            requests: StopRequests::default(),
            attempt: Attempt::default(),
            trained: None,
        }
    }

    /// Makes this trainer one rank of a group. Every rank must call the same methods.
    pub fn group(self, group: Group) -> Self {
        Trainer { group: Some(group).filter(|group| group.world_size() > 1), ..self }
    }

    /// Who watches.
    pub fn observer(self, observer: impl Observer + 'a) -> Self {
        Trainer { observer: Box::new(observer), ..self }
    }

    /// Threads that decode pictures for this rank.
    pub fn loader_threads(self, threads: usize) -> Self {
        Trainer { loader_threads: threads.max(1), ..self }
    }

    /// Through what it can be asked to stop.
    pub fn stop_on(self, requests: StopRequests) -> Self {
        Trainer { requests, ..self }
    }

    /// Which start of its job it belongs to: the first of a job without a name, unless set.
    pub fn attempt(self, attempt: Attempt) -> Self {
        Trainer { attempt, ..self }
    }

    /// Trains for the configured epochs, from the start or from where the run folder's last checkpoint is. With a group, an
    /// error on this rank ends the others with the same cause; [`TrainError::Stopped`] is none, and all ranks have it.
    pub fn fit(&mut self, model: &ModelFn, data: &TrainingData) -> Result<DoneRecord, TrainError> {
        let result = self.as_one(|trainer| trainer.try_fit(model, data));
        // A run that stops, for whatever reason, need not be told to.
        self.requests.heed(result.is_err());
        result
    }

    /// Loss and accuracy on the validation part, by the weights that [`Trainer::fit`] ended with. Every sample of it counts
    /// once, at any number of ranks, and every rank has the result.
    pub fn validate(&mut self, data: &TrainingData) -> Result<Evaluation, TrainError> {
        self.as_one(|trainer| trainer.judge(&data.validation))
    }

    /// The same on the test part; where the data have none, that is an error.
    pub fn test(&mut self, data: &TrainingData) -> Result<Evaluation, TrainError> {
        self.as_one(|trainer| trainer.judge(data.test.as_ref().ok_or(TrainError::NoTestPart)?))
    }

    /// The probability of each class for every sample of `pictures`, `[samples][classes]` in the order of the data set, by
    /// the weights that [`Trainer::fit`] ended with. Ranks share the work, and each has the whole result.
    pub fn predict(&mut self, pictures: &Arc<dyn Dataset>) -> Result<Vec<Vec<f64>>, TrainError> {
        self.as_one(|trainer| {
            let (trained, group) = (trainer.trained.as_mut().ok_or(TrainError::NotFitted)?, trainer.group.as_ref());
            predict(trained.program.as_mut(), &trained.evaluation.loader(pictures)?, pictures.len(), group)
        })
    }

    fn judge(&mut self, pictures: &Arc<dyn Dataset>) -> Result<Evaluation, TrainError> {
        let (trained, group) = (self.trained.as_mut().ok_or(TrainError::NotFitted)?, self.group.as_ref());
        let (loader, total) = (trained.evaluation.loader(pictures)?, pictures.len() as u64);
        evaluate(trained.program.as_mut(), &loader, total, group, EpochPosition::default(), self.observer.as_mut())
    }

    /// Does what all ranks do together: an error on this one ends the others, with the same cause.
    fn as_one<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, TrainError>) -> Result<T, TrainError> {
        let result = work(self);
        if let (Err(error), Some(group)) = (&result, &self.group)
            && !matches!(error, TrainError::Stopped { .. })
        {
            group.abort(error.cause(group.rank()));
        }
        result
    }

    fn try_fit(&mut self, model: &ModelFn, data: &TrainingData) -> Result<DoneRecord, TrainError> {
        let began = Instant::now();
        let mut session = Session::prepare(self, model, data)?;
        self.requests.heed(true);
        session.announce(self, data);
        while session.position.epoch < self.config.epochs as u64 && !session.is_out_of_steps(&self.config) {
            let epoch = session.train_epoch(self)?;
            if session.stopping {
                return Err(session.stop(self)?);
            }
            let (validation, stopped) = evaluate_until(
                &self.requests,
                session.program.as_mut(),
                &session.validation,
                data.validation.len() as u64,
                self.group.as_ref(),
                EpochPosition { epoch: session.position.epoch, epochs: self.config.epochs as u64 },
                self.observer.as_mut(),
            )?;
            if stopped {
                return Err(session.stop(self)?);
            }
            let record = EpochRecord {
                epoch: session.position.epoch,
                train_loss: session.position.mean_loss(),
                train_accuracy: session.position.accuracy(),
                val_loss: validation.loss,
                val_accuracy: validation.accuracy,
                learning_rate: epoch.learning_rate,
                images_per_second: epoch.images_per_second,
                seconds: epoch.seconds,
                world_size: session.map.ranks(),
            };
            at(self.group.as_ref(), "writing a checkpoint");
            session.finish_epoch(&record)?;
            self.observer.epoch(&record);
        }
        let done = DoneRecord {
            best_val_accuracy: session.position.best_val_accuracy.unwrap_or(0.0),
            seconds: began.elapsed().as_secs_f64(),
            peak_rss_bytes: self.peak_rss_of_all()?,
            run: session.run_folder().or_else(|| self.config.out.clone()).unwrap_or_default(),
        };
        self.trained = Some(Trained { program: session.program, evaluation: session.evaluation });
        Ok(done)
    }

    /// Over all ranks; threads share one process, which counts once.
    fn peak_rss_of_all(&self) -> Result<u64, TrainError> {
        let mut bytes = [peak_rss_bytes() as i64];
        if let (Some(group), RankKind::Process) = (&self.group, self.config.ranks) {
            group.all_reduce(&mut bytes)?;
        }
        Ok(bytes[0] as u64)
    }
}

/// An epoch of training under way.
struct Epoch {
    began: Instant,
    /// Samples of it that were done before.
    first: u64,
    /// Samples of it in all.
    total: u64,
}

/// What an epoch of training measured on the clock.
struct EpochTimes {
    learning_rate: f64,
    images_per_second: f64,
    seconds: f64,
}

/// A program with its weights, and how pictures reach it.
struct Trained {
    program: Box<dyn Program>,
    evaluation: EvaluationInput,
}

/// How this rank reads pictures to evaluate.
struct EvaluationInput {
    pool: DecodePool,
    transform: EvalTransform,
    sharding: Sharding,
    memory: Arc<dyn HostMemory>,
}

impl EvaluationInput {
    fn loader(&self, pictures: &Arc<dyn Dataset>) -> Result<EvalLoader, TrainError> {
        let loader = EvalLoader::new(&self.pool, pictures.clone(), self.transform.clone(), self.sharding.clone())?;
        Ok(loader.in_memory(self.memory.clone()))
    }
}

/// Everything that a run needs between its first and its last step.
struct Session {
    program: Box<dyn Program>,
    train: TrainLoader,
    validation: EvalLoader,
    evaluation: EvaluationInput,
    sharding: Sharding,
    map: ShardMap,
    preparation: Preparation,
    tuning: Option<Tuning>,
    /// What was taken from `--weights`, on rank 0.
    pretrained: Option<Matching>,
    schedule: Schedule,
    position: Position,
    resumed: Option<(u64, u64)>,
    /// Whether a rank was asked to stop before the last step, and all know it.
    stopping: bool,
    /// On the one rank that writes files.
    writer: Option<RunWriter>,
}

impl Session {
    fn run_folder(&self) -> Option<std::path::PathBuf> {
        self.writer.as_ref().map(|writer| writer.folder().to_owned())
    }

    fn is_out_of_steps(&self, config: &TrainConfig) -> bool {
        config.max_steps.is_some_and(|most| self.position.optimizer_step >= most)
    }

    /// Trains from the current position to the end of the epoch. One step is in flight while the next is submitted, so that a
    /// device that works by itself never waits for this thread.
    fn train_epoch(&mut self, trainer: &mut Trainer) -> Result<EpochTimes, TrainError> {
        let (config, group) = (&trainer.config, trainer.group.as_ref());
        let began = Instant::now();
        let global_batch = self.sharding.global_batch() as u64;
        let first = self.position.samples;
        let batches = self.train.epoch(self.position.epoch, first as usize);
        // A run resumed with another global batch goes on after the last sample it saw.
        let epoch = Epoch { began, first, total: first + self.rest_of_epoch() * global_batch };
        // That of the last step, where an epoch is resumed after it.
        let last = first.saturating_sub(global_batch) as f64 / epoch.total.max(1) as f64;
        let mut learning_rate = self.schedule.learning_rate(self.position.epoch as f64 + last);
        let mut in_flight: Option<Ticket> = None;
        at(group, "reading a batch");
        for batch in batches {
            let batch = Arc::new(batch?);
            at(group, "computing a step");
            if let Some(ticket) = in_flight.take_if(|_| self.must_drain(config, 1)) {
                self.finish_step(trainer.observer.as_mut(), config, group, &epoch, ticket)?;
            }
            let submitted = self.position.optimizer_step + u64::from(in_flight.is_some());
            if self.stopping || config.max_steps.is_some_and(|most| submitted >= most) {
                break;
            }
            let samples = self.position.samples + if in_flight.is_some() { global_batch } else { 0 };
            learning_rate =
                self.schedule.learning_rate(self.position.epoch as f64 + samples as f64 / epoch.total as f64);
            let inputs = StepInputs {
                batch: Arc::new(LoadedBatch(batch.clone())),
                epoch: self.position.epoch,
                learning_rate: learning_rate as f32,
                optimizer_step: submitted + 1,
                stop: trainer.requests.asked().is_some(),
                save: false,
            };
            let ticket = self.program.submit(Mode::Train, &Phase::ALL, &inputs)?;
            if let Some(writer) = &mut self.writer {
                writer.see(&batch)?;
            }
            if let Some(earlier) = in_flight.replace(ticket) {
                self.finish_step(trainer.observer.as_mut(), config, group, &epoch, earlier)?;
            }
            at(group, "reading a batch");
        }
        if let Some(ticket) = in_flight {
            self.finish_step(trainer.observer.as_mut(), config, group, &epoch, ticket)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let images_per_second = (self.position.samples - first) as f64 / seconds;
        Ok(EpochTimes { learning_rate, images_per_second, seconds })
    }

    /// Whether something looks at the state that the `ahead`-th step from here leaves, so that no later one may have begun.
    fn must_drain(&self, config: &TrainConfig, ahead: u64) -> bool {
        let step = self.position.optimizer_step + ahead;
        config.check_ranks || (config.save_every > 0 && step.is_multiple_of(config.save_every))
    }

    /// Waits for a step, adds its metrics to the epoch's, and does what is to be done after it.
    fn finish_step(
        &mut self,
        observer: &mut dyn Observer,
        config: &TrainConfig,
        group: Option<&Group>,
        epoch: &Epoch,
        ticket: Ticket,
    ) -> Result<(), TrainError> {
        let metrics = self.program.metrics(ticket);
        self.count(metrics, self.sharding.global_batch() as u64)?;
        let step = self.position.optimizer_step;
        if let (true, Some(group)) = (config.check_ranks, group) {
            check_ranks(group, self.program.as_mut(), step)?;
        }
        if config.save_every > 0 && step.is_multiple_of(config.save_every) {
            at(group, "writing a checkpoint");
            self.save()?;
        }
        observer.progress(&Progress {
            epoch: self.position.epoch,
            epochs: config.epochs as u64,
            validating: false,
            samples: self.position.samples,
            total: epoch.total,
            loss: self.position.mean_loss(),
            images_per_second: (self.position.samples - epoch.first) as f64 / epoch.began.elapsed().as_secs_f64(),
        });
        Ok(())
    }

    /// Adds a step's metrics to the epoch's.
    fn count(&mut self, metrics: Result<StepMetrics, DeviceError>, samples: u64) -> Result<(), TrainError> {
        let step = self.position.optimizer_step + 1;
        let metrics = metrics.map_err(|error| match error {
            DeviceError::NonFinite { shard, loss } => {
                let rank = (0..self.map.ranks()).find(|&rank| self.map.hosted(rank).contains(&shard)).unwrap_or(0);
                TrainError::NonFinite { rank, loss, epoch: self.position.epoch, step }
            }
            other => other.into(),
        })?;
        self.position.optimizer_step = step;
        self.position.samples += samples;
        self.position.loss_sum += metrics.loss * samples as f64;
        self.position.correct += metrics.correct;
        self.stopping = metrics.stop;
        Ok(())
    }

    /// Keeps the epoch's record and weights, and moves on to the next epoch unless this one is unfinished.
    fn finish_epoch(&mut self, record: &EpochRecord) -> Result<(), TrainError> {
        let best = self.position.best_val_accuracy.is_none_or(|best| record.val_accuracy > best);
        if best {
            self.position.best_val_accuracy = Some(record.val_accuracy);
        }
        if let Some(writer) = &mut self.writer {
            writer.record(record)?;
        }
        if self.rest_of_epoch() == 0 {
            self.position.next_epoch();
        }
        match &mut self.writer {
            Some(writer) => writer.save_epoch(self.program.as_mut(), &self.position, record.epoch, best),
            None => Ok(take_part(self.program.as_mut())?),
        }
    }

    /// Saves where the run is, and says so once all ranks have come here: nobody leaves before the checkpoint is written.
    fn stop(&mut self, trainer: &Trainer) -> Result<TrainError, TrainError> {
        at(trainer.group.as_ref(), "writing a checkpoint");
        match &mut self.writer {
            Some(writer) => writer.stop(self.program.as_mut(), &self.position)?,
            None => take_part(self.program.as_mut())?,
        }
        let stop = trainer.requests.agree(trainer.group.as_ref())?;
        Ok(TrainError::Stopped { stop, epoch: self.position.epoch, samples: self.position.samples })
    }

    /// Complete global batches that the epoch has left.
    fn rest_of_epoch(&self) -> u64 {
        self.train.batches_behind(self.position.samples as usize) as u64
    }

    fn save(&mut self) -> Result<(), TrainError> {
        match &mut self.writer {
            Some(writer) => writer.save(self.program.as_mut(), &self.position),
            None => Ok(take_part(self.program.as_mut())?),
        }
    }
}
