//! Callbacks: code that is notified of a run's events and may steer it. The terminal's reporter,
//! `metrics.jsonl`, TensorBoard and the charts are callbacks, like a user's own.
//!
//! A callback on one rank may stop all ranks. An epoch's record is on disk before the checkpoint
//! that ends the epoch, and the reporter prints after it.

mod control;
mod events;
mod list;

use std::error::Error;

use enmasse_data::{BadSample, Batch};

use crate::{EpochRecord, Evaluation, Straggler, TestRecord, Traced, TrainError};

pub use control::{Control, LogError};
pub use events::{Progress, SaveReason, Saved, Started};
pub(crate) use list::Callbacks;

/// The result of a callback. An error ends the run on all ranks.
pub type CallbackResult = Result<(), Box<dyn Error + Send + Sync>>;

/// Is notified of the events of a run, and may steer it through a [`Control`].
///
/// Every method has a default that does nothing. Methods are called on the trainer's own thread, on every rank whose trainer
/// has the callback, in the order in which callbacks were added. A callback may differ from rank to rank: requests to stop
/// or to save reach all ranks at the same step. Names and order of the events are those of Lightning's callbacks.
///
/// ```
/// use enmasse_train::{Callback, CallbackResult, Control, EpochRecord};
/// /// Ends training at a validation accuracy of 90 %.
/// struct GoodEnough;
/// impl Callback for GoodEnough {
///     fn on_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
///         if record.val_accuracy >= 0.9 {
///             control.stop();
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Callback: Send {
    /// Before the first step.
    fn on_fit_start(&mut self, _started: &Started, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After a training batch of this rank is handed to the device.
    fn on_batch(&mut self, _batch: &Batch, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After a sample was skipped because it cannot be read, once for each: soon on the rank that met it, on the others at
    /// the end of the epoch.
    fn on_bad_sample(&mut self, _sample: &BadSample, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After each step of training and of validation. The next step may already be in progress.
    fn on_step(&mut self, _progress: &Progress, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After an interval of steps within an epoch in which the ranks waited for one of them. The record of the epoch has the
    /// straggler of the epoch as a whole.
    fn on_straggler(&mut self, _epoch: u64, _straggler: &Straggler, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After the last step of a trace ([`crate::TrainConfig::trace_steps`]), or at the end of a run that had none of its steps.
    fn on_trace(&mut self, _traced: &Traced, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After a complete validation. Every rank knows its result.
    fn on_validation_end(&mut self, _found: &Evaluation, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After validation and before the checkpoint that ends the epoch. The record has the values logged so far.
    fn on_epoch_end(&mut self, _record: &EpochRecord, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After an evaluation of the test part ([`crate::Trainer::test`]). Every rank knows its result.
    fn on_test_end(&mut self, _record: &TestRecord, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// After a checkpoint.
    fn on_checkpoint(&mut self, _saved: &Saved, _control: &mut Control) -> CallbackResult {
        Ok(())
    }

    /// Before an error of the run is returned, including [`TrainError::Stopped`].
    fn on_exception(&mut self, _error: &TrainError) {}
}

/// Does nothing.
impl Callback for () {}

/// Passes events on to the callback that it refers to.
macro_rules! pass_on {
    ($($event:ident($($value:ident: $type:ty),+);)*) => {
        impl<C: Callback + ?Sized> Callback for &mut C {
            $(fn $event(&mut self, $($value: $type,)+ control: &mut Control) -> CallbackResult {
                (**self).$event($($value,)+ control)
            })*

            fn on_exception(&mut self, error: &TrainError) {
                (**self).on_exception(error);
            }
        }
    };
}

pass_on! {
    on_fit_start(started: &Started);
    on_batch(batch: &Batch);
    on_bad_sample(sample: &BadSample);
    on_step(progress: &Progress);
    on_straggler(epoch: u64, straggler: &Straggler);
    on_trace(traced: &Traced);
    on_validation_end(found: &Evaluation);
    on_epoch_end(record: &EpochRecord);
    on_test_end(record: &TestRecord);
    on_checkpoint(saved: &Saved);
}
