//! The steps of a run one by one: [`Trainer::fit`] is a loop over them, and so is a program's own.

use std::sync::Arc;
use std::time::Instant;

use enmasse_data::Batch;
use enmasse_device::StepMetrics;

use super::trained::Trained;
use super::{Epoch, Session, Trainer, is_unfinished};
use crate::run_writer::RunWriter;
use crate::stop::{Request, agree};
use crate::{
    Best, DoneRecord, EarlyStopping, ModelFn, Position, Resumed, SaveReason, Timer, TrainConfig, TrainError,
    TrainingData, Weights,
};

/// The error of a loop that goes on after its end.
const OVER: TrainError = TrainError::Order { called: "Steps", expected: "Trainer::steps" };

/// A run, step by step, with all that [`Trainer::fit`] does: it resumes, validates at the end of each epoch, writes records and
/// checkpoints, tells callbacks, and heeds requests to stop. Where the loop changes nothing, the bits are those of `fit`.
///
/// A step that [`next_step`](Self::next_step) hands out must run before the next one. Only [`end`](Self::end) ends a run: where a loop
/// leaves earlier, by an error of its own for instance, the other ranks end too, with that as the cause.
///
/// ```no_run
/// # use enmasse_train::{ModelFn, TrainError, Trainer, TrainingData};
/// # fn example(trainer: &mut Trainer, model: &ModelFn, data: &TrainingData) -> Result<(), TrainError> {
/// let mut steps = trainer.steps("net", model, data)?;
/// while let Some(mut step) = steps.next_step()? {
///     if step.number() <= 100 {
///         step.learning_rate *= step.number() as f64 / 100.0;
///     }
///     let metrics = steps.run(step)?;
///     println!("{:.4}", metrics.loss);
/// }
/// println!("best {}", steps.end()?.best);
/// # Ok(())
/// # }
/// ```
pub struct Steps<'t, 'a> {
    trainer: &'t mut Trainer<'a>,
    /// `None` once the run is over.
    session: Option<Session>,
    /// The epoch whose steps run, from the first of them to its end.
    epoch: Option<Epoch>,
    /// Whether a step was handed out that has not run.
    awaits_run: bool,
    /// Whether the loop was given the weights since the last step.
    has_lent: bool,
    /// Whether nothing was left to do when the run began.
    was_finished: bool,
    /// Whether a callback has ended training.
    is_over: bool,
    began: Instant,
    /// The trainer's configuration before the run completed it.
    given: TrainConfig,
}

/// A step of training that has not run yet.
pub struct Step {
    pub(super) batch: Arc<Batch>,
    pub(super) epoch: u64,
    pub(super) number: u64,
    /// Samples of the epoch before it.
    pub(super) samples: u64,
    /// Its learning rate, by the schedule. A loop may set another one, the same on all ranks.
    pub learning_rate: f64,
}

impl Step {
    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The step's number in the run, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The samples of this rank.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }
}

impl<'a> Trainer<'a> {
    /// Begins a run, or resumes one, for a loop of the program's own. Arguments are those of [`Trainer::fit`]. All
    /// ranks must run the same steps.
    ///
    /// # Errors
    /// Those of [`Trainer::fit`] before the first step.
    pub fn steps<'t>(
        &'t mut self,
        name: &str,
        model: &ModelFn,
        data: &TrainingData,
    ) -> Result<Steps<'t, 'a>, TrainError> {
        let given = self.config.clone();
        let mut steps = Steps {
            trainer: self,
            session: None,
            epoch: None,
            awaits_run: false,
            has_lent: false,
            was_finished: false,
            is_over: false,
            began: Instant::now(),
            given,
        };
        let session = steps.begin(name, model, data).inspect_err(|error| steps.trainer.fail(error))?;
        steps.session = Some(session);
        Ok(steps)
    }

    /// Ends a run that has failed, on all ranks.
    fn fail(&mut self, error: &TrainError) {
        self.abort(error);
        // The run is stopping anyway.
        self.callbacks.control.requests.heed(true);
        self.callbacks.end_fit(Some(error));
    }
}

impl Steps<'_, '_> {
    fn begin(&mut self, name: &str, model: &ModelFn, data: &TrainingData) -> Result<Session, TrainError> {
        let trainer = &mut *self.trainer;
        let used = trainer.used(name, model, data)?;
        trainer.config = used.train.clone();
        let (mut session, mut files) = Session::prepare(trainer, &used, model, data)?;
        if let Some(chosen) = session.all_reduce {
            trainer.group = trainer.group.take().map(|group| group.summing_by(chosen.algorithm));
        }
        if let Some(patience) = trainer.config.patience {
            files.callbacks.push(Box::new(EarlyStopping::new(session.monitor.clone()).patience(patience)));
        }
        if let (Some(limit), Some(_)) = (trainer.config.max_time, &session.writer) {
            // One clock for all ranks.
            files.callbacks.push(Box::new(Timer::new(limit)));
        }
        trainer.callbacks.begin_fit(files, session.writer.is_some());
        session.announce(trainer, &used, data)?;
        self.was_finished = !is_unfinished(&trainer.config, &session.position);
        // A callback may know from its state that nothing is left to do. Other requests are for the first step.
        self.is_over = agree(trainer.callbacks.control.request(), trainer.group.as_ref())? == Some(Request::Finish);
        Ok(session)
    }

    /// The next step, which [`run`](Self::run) or [`submit`](Self::submit) takes. After the last step of an epoch it first
    /// validates, and saves the results. `None` at the end of training: then call [`end`](Self::end).
    ///
    /// # Errors
    /// Those of [`Trainer::fit`]. A request to stop is [`TrainError::Stopped`] on all ranks, after a checkpoint.
    /// [`TrainError::Order`] if the last step has not run. After any error the run is over.
    pub fn next_step(&mut self) -> Result<Option<Step>, TrainError> {
        self.part(|steps, session| {
            if steps.awaits_run {
                return Err(TrainError::Order { called: "Steps::next_step", expected: "Steps::run" });
            }
            steps.compare_written(session)?;
            while !steps.is_over && (steps.epoch.is_some() || is_unfinished(&steps.trainer.config, &session.position)) {
                if let Some(head) = session.head.take() {
                    let request = session.train_head(steps.trainer, head)?;
                    steps.ended_epoch(session, request)?;
                    continue;
                }
                let epoch = match &mut steps.epoch {
                    Some(epoch) => epoch,
                    none => none.insert(session.begin_epoch(steps.trainer)?),
                };
                if let Some(step) = session.next_step(steps.trainer, epoch)? {
                    steps.awaits_run = true;
                    return Ok(Some(step));
                }
                steps.end_epoch(session)?;
            }
            Ok(None)
        })
    }

    /// Runs a step, waits for it, and returns its metrics.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit), or the loss of this step is not finite.
    pub fn run(&mut self, step: Step) -> Result<StepMetrics, TrainError> {
        self.submit(step)?;
        self.part(|Steps { trainer, epoch, .. }, session| {
            let metrics = epoch.as_mut().map_or(Ok(None), |epoch| session.drain(trainer, epoch))?;
            metrics.ok_or(OVER)
        })
    }

    /// Runs a step without waiting for it, as [`Trainer::fit`] does: the device computes while the loop reads the next batch, and
    /// callbacks are told of its metrics one step later.
    ///
    /// # Errors
    /// The learning rate is not a finite number, 0 or more; the loss of the step before is not finite; ranks have set
    /// different weights; or a callback, the device or the group fails.
    pub fn submit(&mut self, step: Step) -> Result<(), TrainError> {
        self.part(|steps, session| {
            steps.compare_written(session)?;
            steps.awaits_run = false;
            session.submit(steps.trainer, steps.epoch.as_mut().ok_or(OVER)?, step)
        })
    }

    /// The tensors of the model between two steps. All ranks must call it.
    ///
    /// # Errors
    /// The run is over, the loss of the last step is not finite, or a callback, the device or the group fails.
    pub fn weights(&mut self) -> Result<Weights<'_>, TrainError> {
        self.part(|Steps { trainer, epoch, .. }, session| {
            epoch.as_mut().map_or(Ok(None), |epoch| session.drain(trainer, epoch)).map(drop)
        })?;
        self.has_lent = true;
        let program = self.session.as_mut().ok_or(OVER)?.program.as_mut();
        Ok(Weights::new(program, &mut self.trainer.callbacks.control.written))
    }

    /// Compares what ranks have set since the last step.
    fn compare_written(&mut self, session: &mut Session) -> Result<(), TrainError> {
        if std::mem::take(&mut self.has_lent) {
            session.compare_written(self.trainer.group.as_ref(), &mut self.trainer.callbacks)?;
        }
        Ok(())
    }

    /// Ends the run. If steps are left, it saves a checkpoint to resume from, as after [`crate::Control::stop`].
    ///
    /// # Errors
    /// Those of [`Trainer::fit`]. A request to stop is [`TrainError::Stopped`] on all ranks, after a checkpoint.
    pub fn end(mut self) -> Result<DoneRecord, TrainError> {
        let session = self.session.take().ok_or(OVER)?;
        let done = self.try_end(session).inspect_err(|error| self.trainer.fail(error))?;
        self.trainer.callbacks.control.requests.heed(false);
        Ok(done)
    }

    fn try_end(&mut self, mut session: Session) -> Result<DoneRecord, TrainError> {
        let Steps { trainer, epoch, is_over, was_finished, .. } = self;
        if let Some(mut epoch) = epoch.take() {
            session.drain(trainer, &mut epoch)?;
            drop(epoch);
            if let Some(Request::Stop(stop)) = session.stop(trainer)? {
                return Err(session.stopped(trainer, stop)?);
            }
        }
        session.write_trace(trainer.device.as_ref(), trainer.group.as_ref(), &mut trainer.callbacks, true)?;
        trainer.callbacks.control.reason.take_if(|_| !*is_over);
        trainer.callbacks.on_fit_end(session.program.as_mut())?;
        if session.compare_written(trainer.group.as_ref(), &mut trainer.callbacks)? && !*was_finished {
            session.save(SaveReason::Step, &trainer.config, trainer.group.as_ref(), &mut trainer.callbacks)?;
        }
        session.prove_last()?;
        trainer.callbacks.loggers.finish(None)?;
        let run_bytes = session.writer.as_ref().map_or(0, |writer| writer.paths().bytes());
        // The last operation of all ranks comes after the last file, since no rank waits for another after it.
        let peak_rss_bytes = trainer.peak_rss_of_all()?;
        let done = DoneRecord {
            best: Best { metric: session.monitor.name.clone(), value: session.position.best },
            seconds: self.began.elapsed().as_secs_f64(),
            peak_rss_bytes,
            run: session.run_folder().or_else(|| trainer.config.out.clone()).unwrap_or_default(),
            run_bytes,
        };
        let preprocessing = session.writer.as_ref().map(RunWriter::preprocessing).transpose()?;
        trainer.trained = Some(Trained {
            run: session.run_folder(),
            ended: Resumed { epoch: session.position.epoch, samples: session.position.samples },
            has_best: session.position.best.is_some(),
            best: None,
            updates: session.position.optimizer_step,
            preprocessing,
            program: session.program,
            evaluation: session.evaluation,
        });
        Ok(done)
    }

    /// Validates and saves after the last step of an epoch.
    fn end_epoch(&mut self, session: &mut Session) -> Result<(), TrainError> {
        let Some(epoch) = self.epoch.take() else { return Ok(()) };
        let request = session.end_epoch(self.trainer, epoch)?;
        self.ended_epoch(session, request)
    }

    /// Does what a rank requested by the end of an epoch.
    fn ended_epoch(&mut self, session: &mut Session, request: Option<Request>) -> Result<(), TrainError> {
        match request {
            None => Ok(()),
            Some(Request::Finish) => {
                self.is_over = true;
                Ok(())
            }
            Some(Request::Stop(stop)) => Err(session.stopped(self.trainer, stop)?),
        }
    }

    /// Does a part of the run. An error ends it.
    fn part<T>(
        &mut self,
        work: impl FnOnce(&mut Self, &mut Session) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let mut session = self.session.take().ok_or(OVER)?;
        let result = work(self, &mut session);
        match &result {
            Ok(_) => self.session = Some(session),
            Err(error) => {
                session.survive(self.trainer, self.epoch.take(), error);
                self.trainer.fail(error);
            }
        }
        result
    }
}

impl Drop for Steps<'_, '_> {
    fn drop(&mut self) {
        if self.session.take().is_some() {
            self.trainer.fail(&TrainError::Left);
        }
        self.trainer.config = self.given.clone();
        self.trainer.callbacks.end_fit(None);
    }
}

impl Session {
    /// The error of a run that has stopped as requested.
    fn stopped(&mut self, trainer: &mut Trainer, stop: crate::Stop) -> Result<TrainError, TrainError> {
        self.write_trace(trainer.device.as_ref(), trainer.group.as_ref(), &mut trainer.callbacks, true)?;
        let Position { epoch, samples, .. } = self.position;
        Ok(TrainError::Stopped { stop, epoch, samples })
    }
}
