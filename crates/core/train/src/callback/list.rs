//! The callbacks of a trainer, called in order.

use enmasse_data::BadSample;

use super::{Callback, CallbackResult, Control};
use crate::{EpochRecord, Evaluation, TrainError};

/// The callbacks of a trainer: first the user's, then those that write the files of a run on rank 0. Therefore the
/// files hold the values that users logged.
#[derive(Default)]
pub(crate) struct Callbacks<'a> {
    own: Vec<Box<dyn Callback + 'a>>,
    files: Vec<Box<dyn Callback>>,
    pub control: Control,
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

    /// Sets the callbacks that write the files of this fit.
    pub fn keep_files(&mut self, files: Vec<Box<dyn Callback>>) {
        self.files = files;
    }

    /// Ends a fit: closes its files and discards its requests.
    pub fn end_fit(&mut self) {
        self.files.clear();
        self.control.end_fit();
    }

    pub fn on_bad_samples(&mut self, samples: &[BadSample]) -> Result<(), TrainError> {
        samples.iter().try_for_each(|sample| self.on_bad_sample(sample))
    }

    /// Each callback sees the values logged by those before it. Afterwards the record has all of them.
    pub fn on_train_epoch_end(&mut self, record: &mut EpochRecord) -> Result<(), TrainError> {
        self.each("on_train_epoch_end", |callback, control| {
            record.metrics.extend(control.logged());
            callback.on_train_epoch_end(record, control)
        })?;
        self.control.end_epoch();
        Ok(())
    }

    pub fn on_exception(&mut self, error: &TrainError) {
        self.own.iter_mut().for_each(|callback| callback.on_exception(error));
        self.files.iter_mut().for_each(|callback| callback.on_exception(error));
    }

    pub fn on_validation_end(&mut self, found: &Evaluation) -> Result<(), TrainError> {
        self.each("on_validation_end", |callback, control| callback.on_validation_end(found, control))
    }

    /// Calls every callback, up to the first error.
    pub(super) fn each(
        &mut self,
        hook: &'static str,
        mut call: impl FnMut(&mut dyn Callback, &mut Control) -> CallbackResult,
    ) -> Result<(), TrainError> {
        let Callbacks { own, files, control } = self;
        let own = own.iter_mut().map(|callback| callback.as_mut() as &mut dyn Callback);
        for callback in own.chain(files.iter_mut().map(|callback| callback.as_mut() as &mut dyn Callback)) {
            call(callback, control).map_err(|error| match error.downcast::<TrainError>() {
                Ok(error) => *error,
                Err(error) => TrainError::Callback { hook, reason: error.to_string() },
            })?;
        }
        Ok(())
    }
}
