//! The callbacks of a trainer, called in order.

use enmasse_data::BadSample;

use super::{Callback, CallbackResult, Control, Steering};
use crate::logger::Loggers;
use crate::run_writer::RunFiles;
use crate::{EpochRecord, Evaluation, TrainError};

/// The callbacks of a trainer: first the user's, then those that draw the charts of a run on rank 0, and the loggers. Therefore the
/// files hold the values that users logged.
#[derive(Default)]
pub(crate) struct Callbacks<'a> {
    own: Vec<Box<dyn Callback + 'a>>,
    charts: Vec<Box<dyn Callback>>,
    pub loggers: Loggers<'a>,
    pub control: Steering,
}

impl<'a> Callbacks<'a> {
    /// A list of one callback.
    pub fn one(callback: impl Callback + 'a) -> Self {
        let mut list = Callbacks::default();
        list.push(callback);
        list
    }

    /// Adds a callback of the user's.
    pub fn push(&mut self, callback: impl Callback + 'a) {
        self.own.push(Box::new(callback));
    }

    /// Sets what writes the files of this fit, and whether this rank records it.
    pub fn begin_fit(&mut self, files: RunFiles, is_main: bool) {
        self.charts = files.charts;
        self.loggers.begin(files.loggers, is_main);
    }

    /// Ends a fit, by this error if it has one: closes its files and discards its requests.
    pub fn end_fit(&mut self, error: Option<&TrainError>) {
        if let Some(error) = error {
            self.on_exception(error);
            // That error is the one to report.
            let _ = self.loggers.finish(Some(error));
        }
        self.charts.clear();
        self.control.end_fit();
    }

    pub fn on_bad_samples(&mut self, samples: &[BadSample]) -> Result<(), TrainError> {
        samples.iter().try_for_each(|sample| self.on_bad_sample(sample))
    }

    /// Each callback sees the values logged by those before it. Afterwards the record has all of them.
    pub fn on_train_epoch_end(&mut self, record: &mut EpochRecord) -> Result<(), TrainError> {
        self.each("on_train_epoch_end", |callback, control| {
            record.metrics.extend(control.steering.logged());
            callback.on_train_epoch_end(record, control)
        })?;
        self.control.end_epoch();
        self.loggers.epoch(record)
    }

    pub fn on_exception(&mut self, error: &TrainError) {
        self.own.iter_mut().for_each(|callback| callback.on_exception(error));
        self.charts.iter_mut().for_each(|callback| callback.on_exception(error));
    }

    pub fn on_validation_end(&mut self, found: &Evaluation) -> Result<(), TrainError> {
        self.each("on_validation_end", |callback, control| callback.on_validation_end(found, control))
    }

    /// Calls every callback, up to the first error, and gives the loggers what they have logged.
    pub(super) fn each(
        &mut self,
        hook: &'static str,
        mut call: impl FnMut(&mut dyn Callback, &mut Control) -> CallbackResult,
    ) -> Result<(), TrainError> {
        let mut control = Control::new(&mut self.control);
        let own = self.own.iter_mut().map(|callback| callback.as_mut() as &mut dyn Callback);
        for callback in own.chain(self.charts.iter_mut().map(|callback| callback.as_mut() as &mut dyn Callback)) {
            call(callback, &mut control).map_err(|error| TrainError::of_callback(hook, error))?;
        }
        let Callbacks { loggers, control: Steering { steps, artifacts, .. }, .. } = self;
        steps.drain(..).try_for_each(|(step, name, value)| loggers.step(step, &name, value))?;
        artifacts.drain(..).try_for_each(|(kind, path)| loggers.artifact(kind, &path))
    }
}
