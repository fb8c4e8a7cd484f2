//! The callbacks of a trainer, called in order.

use enmasse_data::BadSample;
use enmasse_device::Program;

use super::{Callback, CallbackResult, Control, Steering};
use crate::checkpoint::CallbackStates;
use crate::logger::Loggers;
use crate::run_writer::RunFiles;
use crate::{EpochRecord, Evaluation, TrainError};

/// Limit of the states of all callbacks in a checkpoint, in bytes.
const STATE_LIMIT: usize = 1 << 20;

/// The callbacks of a trainer: first the user's, then those of the settings and of the charts, and the loggers. Therefore the
/// files hold the values that users logged.
#[derive(Default)]
pub(crate) struct Callbacks<'a> {
    own: Vec<Box<dyn Callback + 'a>>,
    /// Those of this fit.
    of_fit: Vec<Box<dyn Callback>>,
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
        self.of_fit = files.callbacks;
        self.loggers.begin(files.loggers, is_main);
    }

    /// Ends a fit, by this error if it has one: closes its files and discards its requests.
    pub fn end_fit(&mut self, error: Option<&TrainError>) {
        if let Some(error) = error {
            self.on_exception(error);
            // That error is the one to report.
            let _ = self.loggers.finish(Some(error));
        }
        self.of_fit.clear();
        self.control.end_fit();
    }

    pub fn on_bad_samples(&mut self, samples: &[BadSample]) -> Result<(), TrainError> {
        samples.iter().try_for_each(|sample| self.on_bad_sample(sample))
    }

    /// Gives each callback its state in the checkpoint of a resumed run. Returns the keys of those that nobody takes, and why.
    pub fn load_states(&mut self, mut states: CallbackStates) -> Result<Vec<(String, String)>, TrainError> {
        // Later than here it would be after the first epoch.
        self.state_dicts()?;
        let mut lost = Vec::new();
        for callback in each_of(&mut self.own, &mut self.of_fit) {
            let Some((key, state)) = callback.state_key().and_then(|key| states.remove_entry(&key)) else { continue };
            if let Err(error) = callback.load_state_dict(&state) {
                lost.push((key, format!("cannot be read ({error}): it begins anew")));
            }
        }
        let unknown = states.into_keys().map(|key| (key, "no callback of this run takes it".to_owned()));
        lost.extend(unknown);
        Ok(lost)
    }

    /// The states of callbacks for a checkpoint.
    pub fn state_dicts(&mut self) -> Result<CallbackStates, TrainError> {
        let mut states = CallbackStates::new();
        let refuse = |reason: String| Err(TrainError::Callback { hook: "state_dict", reason });
        for callback in each_of(&mut self.own, &mut self.of_fit) {
            let Some(key) = callback.state_key() else { continue };
            if states.insert(key.clone(), callback.state_dict()).is_some() {
                return refuse(format!("two callbacks have the state_key {key:?}"));
            }
        }
        match states.iter().map(|(key, state)| key.len() + state.len()).sum() {
            0..=STATE_LIMIT => Ok(states),
            bytes => refuse(format!("the states of callbacks take {bytes} bytes, more than {STATE_LIMIT}")),
        }
    }

    pub fn on_validation_end(&mut self, found: &Evaluation, program: &mut dyn Program) -> Result<(), TrainError> {
        let call = |callback: &mut dyn Callback, control: &mut Control| callback.on_validation_end(found, control);
        self.each("on_validation_end", Some(program), call)
    }

    /// Each callback sees the values logged by those before it. Afterwards the record has all of them.
    pub fn on_train_epoch_end(
        &mut self,
        record: &mut EpochRecord,
        program: &mut dyn Program,
    ) -> Result<(), TrainError> {
        self.each("on_train_epoch_end", Some(program), |callback, control| {
            record.metrics.extend(control.steering.logged());
            callback.on_train_epoch_end(record, control)
        })?;
        self.control.end_epoch();
        self.loggers.epoch(record)
    }

    pub fn on_fit_end(&mut self, program: &mut dyn Program) -> Result<(), TrainError> {
        self.each("on_fit_end", Some(program), |callback, control| callback.on_fit_end(control))
    }

    pub fn on_exception(&mut self, error: &TrainError) {
        each_of(&mut self.own, &mut self.of_fit).for_each(|callback| callback.on_exception(error));
    }

    /// Calls every callback, up to the first error, and gives the loggers what they have logged. Where the device has ended its steps, the
    /// callbacks get the program.
    pub(super) fn each(
        &mut self,
        hook: &'static str,
        program: Option<&mut dyn Program>,
        mut call: impl FnMut(&mut dyn Callback, &mut Control) -> CallbackResult,
    ) -> Result<(), TrainError> {
        // For as long as the borrow of the steering.
        let program = program.map(|program| program as &mut dyn Program);
        let mut control = Control::new(&mut self.control, program);
        for callback in each_of(&mut self.own, &mut self.of_fit) {
            call(callback, &mut control).map_err(|error| TrainError::of_callback(hook, error))?;
        }
        let Callbacks { loggers, control: Steering { steps, media, artifacts, .. }, .. } = self;
        steps.drain(..).try_for_each(|(step, name, value)| loggers.step(step, &name, value))?;
        media.drain(..).try_for_each(|(at, name, media)| loggers.media(at, &name, &media))?;
        artifacts.drain(..).try_for_each(|(kind, path)| loggers.artifact(kind, &path))
    }
}

fn each_of<'l>(
    own: &'l mut [Box<dyn Callback + '_>],
    of_fit: &'l mut [Box<dyn Callback>],
) -> impl Iterator<Item = &'l mut dyn Callback> {
    let own = own.iter_mut().map(|callback| callback.as_mut() as &mut dyn Callback);
    own.chain(of_fit.iter_mut().map(|callback| callback.as_mut() as &mut dyn Callback))
}
