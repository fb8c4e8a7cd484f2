//! The callbacks of a trainer, called in order.

use enmasse_data::{BadSample, Batch};

use super::{Callback, CallbackResult, Control, Progress, Saved, Started};
use crate::stop::Request;
use crate::{EpochRecord, Evaluation, StopRequests, Straggler, TestRecord, Traced, TrainError};

/// The callbacks of a trainer: first the user's, then those that write the files of a run on rank 0. Therefore the
/// files hold the values that users logged.
#[derive(Default)]
pub(crate) struct Callbacks<'a> {
    own: Vec<Box<dyn Callback + 'a>>,
    files: Vec<Box<dyn Callback>>,
    control: Control,
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

    /// Sets the source of requests to stop that do not come from a callback.
    pub fn set_requests(&mut self, requests: StopRequests) {
        self.control.set_requests(requests);
    }

    /// The source of requests to stop that do not come from a callback.
    pub fn requests(&self) -> &StopRequests {
        self.control.requests()
    }

    /// This rank's request to end training.
    pub fn request(&self) -> Option<Request> {
        self.control.request()
    }

    /// Whether a callback of this rank requested a checkpoint since the last call.
    pub fn take_checkpoint(&mut self) -> bool {
        self.control.take_checkpoint()
    }

    pub fn on_fit_start(&mut self, started: &Started) -> Result<(), TrainError> {
        self.each("on_fit_start", |callback, control| callback.on_fit_start(started, control))
    }

    pub fn on_batch(&mut self, batch: &Batch) -> Result<(), TrainError> {
        self.each("on_batch", |callback, control| callback.on_batch(batch, control))
    }

    pub fn on_bad_samples(&mut self, samples: &[BadSample]) -> Result<(), TrainError> {
        samples.iter().try_for_each(|sample| {
            self.each("on_bad_sample", |callback, control| callback.on_bad_sample(sample, control))
        })
    }

    pub fn on_step(&mut self, progress: &Progress) -> Result<(), TrainError> {
        self.each("on_step", |callback, control| callback.on_step(progress, control))
    }

    pub fn on_straggler(&mut self, epoch: u64, straggler: &Straggler) -> Result<(), TrainError> {
        self.each("on_straggler", |callback, control| callback.on_straggler(epoch, straggler, control))
    }

    pub fn on_trace(&mut self, traced: &Traced) -> Result<(), TrainError> {
        self.each("on_trace", |callback, control| callback.on_trace(traced, control))
    }

    pub fn on_validation_end(&mut self, found: &Evaluation) -> Result<(), TrainError> {
        self.each("on_validation_end", |callback, control| callback.on_validation_end(found, control))
    }

    /// Each callback sees the values logged by those before it. Afterwards the record has all of them.
    pub fn on_epoch_end(&mut self, record: &mut EpochRecord) -> Result<(), TrainError> {
        self.each("on_epoch_end", |callback, control| {
            record.metrics.extend(control.logged());
            callback.on_epoch_end(record, control)
        })?;
        self.control.end_epoch();
        Ok(())
    }

    pub fn on_test_end(&mut self, record: &TestRecord) -> Result<(), TrainError> {
        self.each("on_test_end", |callback, control| callback.on_test_end(record, control))
    }

    pub fn on_checkpoint(&mut self, saved: &Saved) -> Result<(), TrainError> {
        self.each("on_checkpoint", |callback, control| callback.on_checkpoint(saved, control))
    }

    pub fn on_exception(&mut self, error: &TrainError) {
        self.own.iter_mut().for_each(|callback| callback.on_exception(error));
        self.files.iter_mut().for_each(|callback| callback.on_exception(error));
    }

    /// Calls every callback, up to the first error.
    fn each(
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
