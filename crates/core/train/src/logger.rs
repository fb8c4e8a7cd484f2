//! Loggers: where a run records its figures. `metrics.jsonl` and TensorBoard are loggers, like a user's own.

use std::path::Path;

use crate::{CallbackResult, EpochRecord, Evaluation, Media, RunConfig, Started, TrainError};

/// The point of a run that values belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogPoint {
    /// A step of the run, from 1.
    Step(u64),
    /// An epoch, from 0.
    Epoch(u64),
}

/// A kind of file that a run writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Artifact {
    /// A checkpoint.
    Checkpoint,
    /// A chart, as SVG.
    Chart,
    /// Any other file, of a callback.
    File,
}

/// Records a run, as Lightning's `Logger`. Added by [`crate::Trainer::logger`].
///
/// Methods are called on the trainer's own thread, on rank 0 alone. An error ends the run on all ranks: a logger that the run can do
/// without keeps its errors to itself.
///
/// # Resumed runs
/// What is recorded when [`Logger::epoch`] returns is recorded before the checkpoint that ends the epoch. If the process dies in
/// between, the epoch runs again. So a resumed run begins with the epoch [`Started::first_epoch`], and a logger that goes on with
/// its earlier file drops what it has of that epoch and of later ones; of steps, what comes after [`Started::optimizer_step`].
///
/// ```
/// use enmasse_train::{CallbackResult, LogPoint, Logger};
/// /// Prints every value.
/// struct Print;
/// impl Logger for Print {
///     fn scalars(&mut self, at: LogPoint, scalars: &[(&str, f64)]) -> CallbackResult {
///         println!("{at:?}: {scalars:?}");
///         Ok(())
///     }
/// }
/// ```
pub trait Logger: Send {
    /// Before the first step: what is known of the run by then, and its settings.
    ///
    /// # Errors
    /// The logger's own, which ends the run on all ranks.
    fn start(&mut self, _started: &Started, _settings: &RunConfig) -> CallbackResult {
        Ok(())
    }

    /// Values by name: those of an epoch or of the test after it, and those that a callback logs of a step
    /// ([`crate::Control::log_step`]).
    ///
    /// # Errors
    /// The logger's own, which ends the run on all ranks.
    fn scalars(&mut self, at: LogPoint, scalars: &[(&str, f64)]) -> CallbackResult;

    /// An image or a histogram, which a callback logs of a step or an epoch ([`crate::Control::log_media`]).
    ///
    /// # Errors
    /// The logger's own, which ends the run on all ranks.
    fn media(&mut self, _at: LogPoint, _name: &str, _media: &Media) -> CallbackResult {
        Ok(())
    }

    /// The record of an epoch. By default its [`EpochRecord::scalars`].
    ///
    /// # Errors
    /// The logger's own, which ends the run on all ranks.
    fn epoch(&mut self, record: &EpochRecord) -> CallbackResult {
        self.scalars(LogPoint::Epoch(record.epoch), &record.scalars())
    }

    /// A file has been written, whole. The run may replace it later.
    ///
    /// # Errors
    /// The logger's own, which ends the run on all ranks.
    fn artifact(&mut self, _kind: Artifact, _path: &Path) -> CallbackResult {
        Ok(())
    }

    /// The fit has ended, as a success or by this error; so has a test after it.
    ///
    /// # Errors
    /// The logger's own, with which a fit that was a success fails.
    fn finish(&mut self, _error: Option<&TrainError>) -> CallbackResult {
        Ok(())
    }
}

/// The loggers of a trainer: those of the files of a fit, then the user's.
#[derive(Default)]
pub(crate) struct Loggers<'a> {
    files: Vec<Box<dyn Logger>>,
    own: Vec<Box<dyn Logger + 'a>>,
    /// Whether something is being recorded, on this rank.
    is_on: bool,
}

impl<'a> Loggers<'a> {
    /// Adds a logger of the user's.
    pub fn push(&mut self, logger: impl Logger + 'a) {
        self.own.push(Box::new(logger));
    }

    /// Sets the loggers of this fit's files, and whether this rank records.
    pub fn begin(&mut self, files: Vec<Box<dyn Logger>>, is_main: bool) {
        (self.files, self.is_on) = (files, is_main);
    }

    pub fn start(&mut self, started: &Started, settings: &RunConfig) -> Result<(), TrainError> {
        self.each("Logger::start", |logger| logger.start(started, settings))
    }

    pub fn step(&mut self, step: u64, name: &str, value: f64) -> Result<(), TrainError> {
        self.each("Logger::scalars", |logger| logger.scalars(LogPoint::Step(step), &[(name, value)]))
    }

    pub fn epoch(&mut self, record: &EpochRecord) -> Result<(), TrainError> {
        self.each("Logger::epoch", |logger| logger.epoch(record))
    }

    pub fn media(&mut self, at: LogPoint, name: &str, media: &Media) -> Result<(), TrainError> {
        self.each("Logger::media", |logger| logger.media(at, name, media))
    }

    pub fn artifact(&mut self, kind: Artifact, path: &Path) -> Result<(), TrainError> {
        self.each("Logger::artifact", |logger| logger.artifact(kind, path))
    }

    /// Records a test of the weights of `epoch`: its results, each with `test_` before its name.
    pub fn test(&mut self, epoch: u64, found: &Evaluation, is_main: bool) -> Result<(), TrainError> {
        self.is_on = is_main;
        let further: Vec<_> = found.metrics.iter().map(|(name, value)| (format!("test_{name}"), *value)).collect();
        let own = [
            ("test_loss", Some(found.loss)),
            ("test_accuracy", found.accuracy),
            ("test_balanced_accuracy", found.balanced_accuracy),
            ("test_macro_f1", found.macro_f1),
        ];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let scalars: Vec<_> = own.chain(further.iter().map(|(name, value)| (name.as_str(), *value))).collect();
        self.each("Logger::scalars", |logger| logger.scalars(LogPoint::Epoch(epoch), &scalars))?;
        self.finish(None)
    }

    /// Ends what is being recorded, if anything is, and closes the files.
    pub fn finish(&mut self, error: Option<&TrainError>) -> Result<(), TrainError> {
        let finished = self.each("Logger::finish", |logger| logger.finish(error));
        self.is_on = false;
        self.files.clear();
        finished
    }

    /// Calls every logger, up to the first error.
    fn each(
        &mut self,
        method: &'static str,
        mut call: impl FnMut(&mut dyn Logger) -> CallbackResult,
    ) -> Result<(), TrainError> {
        if !self.is_on {
            return Ok(());
        }
        let files = self.files.iter_mut().try_for_each(|logger| call(logger.as_mut()));
        let all = files.and_then(|()| self.own.iter_mut().try_for_each(|logger| call(logger.as_mut())));
        all.map_err(|error| TrainError::of_callback(method, error))
    }
}
