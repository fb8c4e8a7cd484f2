//! What a trained model is worth: loss and accuracy on a part of the data, and the classes of
//! images.
//!
//! # The test part
//!
//! Data may have a third part. `fit` checks its labels and leaves it alone. [`Trainer::test`] loads
//! the best checkpoint into the same program (rank 0 reads it, the others receive it), evaluates,
//! and writes `test.json`. `validate` and `predict` load the last weights again. The command
//! `train` calls `fit` and then `test`. A resumed run removes `test.json` before it trains, so a
//! finished run without the file has its test left to do.

use std::sync::Arc;

use enmasse_comm::Group;
use enmasse_data::{Dataset, DecodePool, EvalLoader, Sharding};
use enmasse_image::EvalTransform;
use enmasse_tensor::HostMemory;

use super::Trainer;
use super::trained::HeldWeights;
use crate::bad_samples::BadSamples;
use crate::evaluation::{EpochPosition, Pass, evaluate_until, predict};
use crate::stop::{Request, agree};
use crate::{Evaluation, Kept, Resumed, RunEvent, RunFolder, RunPaths, Task, TestRecord, TrainError, TrainingData};

/// How this rank reads images for evaluation.
pub struct EvaluationInput {
    pub pool: DecodePool,
    pub transform: EvalTransform,
    pub sharding: Sharding,
    pub memory: Arc<dyn HostMemory>,
    /// Whether samples that cannot be read are left out.
    pub skips: bool,
    pub task: Arc<dyn Task>,
    /// The validation part.
    pub images: Arc<dyn Dataset>,
}

impl EvaluationInput {
    pub fn loader(&self, images: &Arc<dyn Dataset>) -> Result<EvalLoader, TrainError> {
        let loader = EvalLoader::new(&self.pool, images.clone(), self.transform.clone(), self.sharding.clone())?;
        let loader = loader.in_memory(self.memory.clone()).skip_unreadable(self.skips);
        Ok(loader.with_targets(self.task.target().values()))
    }
}

impl Trainer<'_> {
    /// Loss and accuracy on the validation part, with the weights that [`Trainer::fit`] ended with. Every sample counts
    /// once, for any number of ranks, and every rank has the result.
    ///
    /// # Errors
    /// [`TrainError::NotFitted`] before a fit. [`TrainError::Interrupted`] on all ranks after a request to stop. Or an
    /// image cannot be read and is not to be skipped, or a callback, the device or the group fails.
    pub fn validate(&mut self, data: &TrainingData) -> Result<Evaluation, TrainError> {
        self.validate_keeping(data, Kept::default())
    }

    /// The same, which also keeps something of every sample.
    ///
    /// # Errors
    /// Those of [`validate`](Self::validate).
    pub fn validate_keeping(&mut self, data: &TrainingData, kept: Kept) -> Result<Evaluation, TrainError> {
        self.as_one(|trainer| {
            trainer.hold(HeldWeights::Last)?;
            match trainer.evaluate_part("validation", &data.validation, data, kept)? {
                (_, true) => Err(TrainError::Interrupted),
                (found, false) => Ok(found),
            }
        })
    }

    /// Loss and accuracy on the test part, with the weights of the run's best checkpoint, as Lightning's
    /// `trainer.test(ckpt_path="best")`. Every sample counts once, for any number of ranks, and every rank has the result.
    /// Where the run has no best checkpoint (no whole epoch has ended, or the folder is gone), the weights that
    /// [`Trainer::fit`] ended with are evaluated.
    ///
    /// The run folder keeps the result in `test.json` ([`RunPaths::test_record`]), and callbacks are told
    /// ([`crate::Callback::on_test_end`]).
    ///
    /// # Errors
    /// [`TrainError::NotFitted`] before a fit. [`TrainError::NoTestPart`] of data without one. [`TrainError::Stopped`]
    /// on all ranks after a request to stop. Or an image cannot be read and is not to be skipped, the best checkpoint
    /// cannot be read, or a callback, the device or the group fails.
    pub fn test(&mut self, data: &TrainingData) -> Result<Evaluation, TrainError> {
        self.callbacks.control.requests.heed(true);
        let result = self.as_one(|trainer| trainer.try_test(data));
        self.callbacks.control.requests.heed(result.is_err());
        if let Err(error) = &result {
            self.callbacks.on_exception(error);
        }
        result
    }

    fn try_test(&mut self, data: &TrainingData) -> Result<Evaluation, TrainError> {
        let images = data.test.as_ref().ok_or(TrainError::NoTestPart)?;
        self.hold(HeldWeights::Best)?;
        let (evaluation, stopped) = self.evaluate_part("test", images, data, Kept::default())?;
        let trained = self.trained.as_ref().ok_or(TrainError::NotFitted)?;
        if stopped {
            return Err(match agree(self.callbacks.control.request(), self.group.as_ref())? {
                Some(Request::Stop(stop)) => {
                    let Resumed { epoch, samples } = trained.ended;
                    TrainError::Stopped { stop, epoch, samples }
                }
                Some(Request::Finish) | None => TrainError::Interrupted,
            });
        }
        let record = TestRecord { epoch: trained.best, evaluation };
        if let Some(run) = trained.run.as_deref().filter(|run| run.is_dir()) {
            RunFolder::open(RunPaths::new(run), true, &self.attempt)?.write_test(&RunEvent::Test(&record).to_line())?;
        }
        let epoch = record.epoch.unwrap_or(trained.ended.epoch);
        let is_main = self.group.as_ref().is_none_or(Group::is_main);
        self.callbacks.on_test_end(&record)?;
        self.callbacks.loggers.test(epoch, &record.evaluation, is_main)?;
        Ok(record.evaluation)
    }

    /// The probability of each class for every sample of `images`, `[samples][classes]` in the order of the data set,
    /// with the weights that [`Trainer::fit`] ended with; of another task than classification, what its [`Task::decode`] makes of
    /// the outputs. The images need no targets. Ranks share the work, and each has the complete result.
    ///
    /// # Errors
    /// [`TrainError::NotFitted`] before a fit. Or a sample cannot be read, or the device or the group fails.
    pub fn predict(&mut self, images: &Arc<dyn Dataset>) -> Result<Vec<Vec<f64>>, TrainError> {
        self.as_one(|trainer| {
            trainer.hold(HeldWeights::Last)?;
            let trained = trainer.trained.as_mut().ok_or(TrainError::NotFitted)?;
            let group = trainer.group.as_ref();
            let loader = trained.evaluation.loader(images)?.skip_unreadable(false).with_targets(0);
            predict(trained.program.as_mut(), &loader, images.len(), group, trained.evaluation.task.as_ref())
        })
    }

    /// The results on a part, and whether a rank was asked to stop before its end.
    fn evaluate_part(
        &mut self,
        part: &str,
        images: &Arc<dyn Dataset>,
        data: &TrainingData,
        kept: Kept,
    ) -> Result<(Evaluation, bool), TrainError> {
        let trained = self.trained.as_mut().ok_or(TrainError::NotFitted)?;
        let group = self.group.as_ref();
        let task = trained.evaluation.task.clone();
        data.check_labels(task.as_ref(), part, images.as_ref())?;
        let loader = trained.evaluation.loader(images)?;
        let pass = Pass::begin(images.len() as u64, group, EpochPosition::default())
            .keeping(kept)
            .of(task.as_ref(), images.as_ref());
        evaluate_until(trained.program.as_mut(), &loader, &pass, &mut self.callbacks, &mut BadSamples::default())
    }
}
