//! Callbacks: code that is notified of a run's events and may steer it. The terminal's reporter and
//! the charts are callbacks, like a user's own. `docs/callbacks.md` has Lightning's names beside ours.
//!
//! A callback on one rank may stop all ranks. An epoch's record is with the loggers before the
//! checkpoint that ends the epoch, and the reporter prints after it.

mod control;
mod early_stopping;
mod events;
mod list;
mod lr_monitor;
mod model_checkpoint;
mod plateau;
mod timer;
mod weights;

use std::error::Error;

use enmasse_data::{BadSample, Batch};

use crate::{EpochRecord, Evaluation, Straggler, TestRecord, Traced, TrainError};

pub(crate) use control::Steering;
pub use control::{Control, LogError};
pub use early_stopping::EarlyStopping;
pub use events::{Progress, SaveReason, Saved, Started, Survival};
pub(crate) use list::Callbacks;
pub use lr_monitor::LrMonitor;
pub use model_checkpoint::ModelCheckpoint;
pub(crate) use plateau::Plateau;
pub use timer::Timer;
pub use weights::Weights;

/// The result of a callback. An error ends the run on all ranks.
pub type CallbackResult = Result<(), Box<dyn Error + Send + Sync>>;

/// Defines [`Callback`] by its events, and what passes each of them on: from a reference to its callback, and to every callback of a
/// list. The list passes on those of the second group itself.
macro_rules! events {
    ({ $($told:tt)+ } { $($told_otherwise:tt)+ }) => {
        events! { @callback $($told)+ $($told_otherwise)+ }
        events! { @list $($told)+ }
    };
    (@callback $($(#[$doc:meta])+ $event:ident($($value:ident: $type:ty),*);)+) => {
        /// Is notified of the events of a run, and may steer it through a [`Control`].
        ///
        /// Every method has a default that does nothing. Methods are called on the trainer's own thread, on every rank whose trainer
        /// has the callback, in the order in which callbacks were added. A callback may differ from rank to rank: requests to stop
        /// or to save reach all ranks at the same step. Names and order of the events are those of Lightning's callbacks.
        ///
        /// This one keeps its state in the checkpoints, so that a resumed run goes on with it.
        ///
        /// ```
        /// use enmasse_train::{Callback, CallbackResult, Control, EpochRecord};
        /// /// Ends training after two epochs with a validation accuracy of 90 %.
        /// struct GoodEnough {
        ///     epochs: u64,
        /// }
        /// impl Callback for GoodEnough {
        ///     fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        ///         self.epochs += u64::from(record.val_accuracy.is_some_and(|accuracy| accuracy >= 0.9));
        ///         if self.epochs >= 2 {
        ///             control.stop_because("two epochs have reached 90 %");
        ///         }
        ///         Ok(())
        ///     }
        ///
        ///     fn state_key(&self) -> Option<String> {
        ///         Some("GoodEnough".to_owned())
        ///     }
        ///
        ///     fn state_dict(&self) -> String {
        ///         self.epochs.to_string()
        ///     }
        ///
        ///     fn load_state_dict(&mut self, state: &str) -> CallbackResult {
        ///         self.epochs = state.parse()?;
        ///         Ok(())
        ///     }
        /// }
        /// ```
        pub trait Callback: Send {
            $(
                $(#[$doc])+
                ///
                /// # Errors
                /// The callback's own, which ends the run on all ranks.
                #[allow(unused_variables)]
                fn $event(&mut self, $($value: $type,)* control: &mut Control) -> CallbackResult {
                    Ok(())
                }
            )+

            /// Before an error of the run is returned, including [`TrainError::Stopped`].
            fn on_exception(&mut self, _error: &TrainError) {}

            /// The name under which checkpoints keep the state of this callback. Without one they keep none.
            fn state_key(&self) -> Option<String> {
                None
            }

            /// The state of this callback, as a text: rank 0's is in every checkpoint. All of them together are at most 1 MiB.
            fn state_dict(&self) -> String {
                String::new()
            }

            /// Takes the state that a resumed run goes on with, before [`Callback::on_fit_start`], on every rank.
            ///
            /// # Errors
            /// The state is none that this callback takes. This does not end the run: the callback begins anew, and
            /// [`Started::lost_states`] says so.
            fn load_state_dict(&mut self, _state: &str) -> CallbackResult {
                Ok(())
            }
        }

        /// Passes events on to the callback that it refers to.
        impl<C: Callback + ?Sized> Callback for &mut C {
            $(fn $event(&mut self, $($value: $type,)* control: &mut Control) -> CallbackResult {
                (**self).$event($($value,)* control)
            })+

            fn on_exception(&mut self, error: &TrainError) {
                (**self).on_exception(error);
            }

            fn state_key(&self) -> Option<String> {
                (**self).state_key()
            }

            fn state_dict(&self) -> String {
                (**self).state_dict()
            }

            fn load_state_dict(&mut self, state: &str) -> CallbackResult {
                (**self).load_state_dict(state)
            }
        }
    };
    (@list $($(#[$doc:meta])+ $event:ident($($value:ident: $type:ty),*);)+) => {
        /// Tells every callback of an event.
        impl Callbacks<'_> {
            $(pub(crate) fn $event(&mut self, $($value: $type),*) -> Result<(), TrainError> {
                self.each(stringify!($event), None, |callback, control| callback.$event($($value,)* control))
            })+
        }
    };
}

events! {
    {
        /// Before the first step.
        on_fit_start(started: &Started);

        /// Before the first batch of an epoch, or of the rest of it in a resumed run.
        on_train_epoch_start(epoch: u64);

        /// After a training batch of this rank is handed to the device, which computes meanwhile.
        on_train_batch_start(batch: &Batch);

        /// After each step of training. The next step may already be in progress.
        on_train_batch_end(progress: &Progress);

        /// After a sample was skipped because it cannot be read, once for each: soon on the rank that met it, on the others at
        /// the end of the epoch.
        on_bad_sample(sample: &BadSample);

        /// After an interval of steps within an epoch in which the ranks waited for one of them. The record of the epoch has the
        /// straggler of the epoch as a whole.
        on_straggler(epoch: u64, straggler: &Straggler);

        /// After the last step of a trace ([`crate::TrainConfig::trace_steps`]), or at the end of a run that had none of its steps.
        on_trace(traced: &Traced);

        /// Before the first batch of a validation.
        on_validation_start(epoch: u64);

        /// After each batch of a validation, and of a test.
        on_validation_batch_end(progress: &Progress);

        /// After an evaluation of the test part ([`crate::Trainer::test`]). Every rank knows its result.
        on_test_end(record: &TestRecord);

        /// After a checkpoint.
        on_checkpoint(saved: &Saved);

        /// After the death of another rank, before [`Callback::on_exception`], where this rank has saved the state after the last
        /// finished step in its place, or could not.
        on_survival(survival: &Survival);
    }
    {
        /// After a complete validation. Every rank knows its result.
        on_validation_end(found: &Evaluation);

        /// After validation and before the checkpoint that ends the epoch. The record has the values logged so far.
        on_train_epoch_end(record: &EpochRecord);

        /// After the last step and the last checkpoint of a fit that ends as a success. [`Control::reason`] says why, if a callback has
        /// ended it. Weights that are set here are saved once more.
        on_fit_end();
    }
}

/// Does nothing.
impl Callback for () {}
