//! Errors that end a run, and their conversion to the cause that other ranks see.

use std::sync::Arc;

use enmasse_comm::{Cause, CauseKind, ShardsError};
use enmasse_data::DataError;
use enmasse_device::DeviceError;
#[cfg(feature = "onnx")]
use enmasse_export::ExportError;
use enmasse_graph::{ChoicesError, GraphError};
use thiserror::Error;

use crate::{CheckpointError, ConfigError, RunError, Stop};

/// Why a run ended.
#[derive(Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A wrong option.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model or the data cannot be fine-tuned.
    #[error("`fine_tune`: {0}")]
    FineTune(String),
    /// The model is wrong.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The model cannot be exported.
    #[cfg(feature = "onnx")]
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The data are wrong.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A sample cannot be read, and the run is not to go on without it.
    #[error("{0}; to go on without such images, use `on_bad_sample = skip`")]
    BadSample(DataError),
    /// No sample of an evaluation could be read.
    #[error("none of the {0} images to evaluate can be read: check the data set")]
    NothingReadable(u64),
    /// The device failed.
    #[error(transparent)]
    Device(DeviceError),
    /// The ranks of a machine need more memory than is free there.
    #[error("{}", too_little_memory(&needy(*ranks), *needed, *free, of_what(*limited), *batch))]
    Memory {
        /// The number of ranks on the machine.
        ranks: usize,
        /// Bytes that they need at their peak.
        needed: u64,
        /// Bytes that they have or could get.
        free: u64,
        /// Whether a control group's limit is the reason, and not the machine's memory.
        limited: bool,
        /// The largest batch that fits.
        batch: Option<usize>,
    },
    /// A program needs more memory than is free on its device.
    #[error("{}", too_little_memory("the run needs", *needed, *free, "on the device", *batch))]
    DeviceMemory {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The largest batch that fits.
        batch: Option<usize>,
    },
    /// There are more ranks than shards.
    #[error(transparent)]
    Shards(#[from] ShardsError),
    /// A checkpoint or weights file is wrong.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run folder cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An image of the data cannot be drawn.
    #[error("cannot draw the images of the run folder: {0}")]
    Chart(#[from] enmasse_charts::ChartError),
    /// Another rank failed, or ranks do not agree.
    #[error("{0}")]
    Cause(Arc<Cause>),
    /// The text that rank 0 sent as its choices of algorithms is malformed.
    #[error("cannot read the algorithms that rank 0 chose: {0}")]
    Choices(#[from] ChoicesError),
    /// A loss is not finite. Every rank stops at the same step.
    #[error(
        "non-finite loss {loss} on rank {rank} at step {step} (epoch {}): {remedy}",
        epoch + 1
    )]
    NonFinite {
        /// The first rank with such a loss.
        rank: usize,
        /// Its loss.
        loss: f64,
        /// The epoch, from 0.
        epoch: u64,
        /// The step of the run, from 1.
        step: u64,
        /// What becomes of the last checkpoint, and how the run can continue.
        remedy: String,
    },
    /// The state, or the validation loss that it gives, is not finite. Nothing was saved.
    #[error("non-finite {found} after step {step} (epoch {}), so nothing was saved: {remedy}", epoch + 1)]
    NonFiniteState {
        /// What is not finite: a tensor, by its name, or the loss.
        found: String,
        /// The epoch, from 0.
        epoch: u64,
        /// The last step of the run, from 1.
        step: u64,
        /// How the run can continue.
        remedy: String,
    },
    /// All ranks stopped at the same step, because one of them was asked to, and a checkpoint of that step is written.
    #[error("stopped as requested in epoch {}, after {samples} of its images: continue with `resume`", epoch + 1)]
    Stopped {
        /// The request.
        stop: Stop,
        /// The current epoch, from 0.
        epoch: u64,
        /// Number of its images that are done, over all ranks.
        samples: u64,
    },
    /// All ranks ended an evaluation early, because one of them was asked to stop.
    #[error("the evaluation stopped as requested, so it has no result")]
    Interrupted,
    /// A callback or a logger failed.
    #[error("a callback failed in {hook}: {reason}")]
    Callback {
        /// The method of [`crate::Callback`], or `Logger::` and that of [`crate::Logger`].
        hook: &'static str,
        /// Its error.
        reason: String,
    },
    /// Weights that do not belong to the model.
    #[error("{0}")]
    Weights(String),
    /// A resumed run does not match its saved state.
    #[error("{0}")]
    Resume(String),
    /// There is no trained model to validate, test or predict with.
    #[error("nothing is trained yet: call fit first")]
    NotFitted,
    /// A test was requested of data without a test part.
    #[error("the data have no test part: add one with TrainingData::with_test")]
    NoTestPart,
    /// A program's own schedule or loop gives a learning rate that is none.
    #[error("the learning rate of step {step} (epoch {}) is {rate}: it must be a finite number, 0 or more", epoch + 1)]
    LearningRate {
        /// The rate.
        rate: f64,
        /// The epoch, from 0.
        epoch: u64,
        /// The step of the run, from 1.
        step: u64,
    },
    /// A loop of a program's own did not end its run.
    #[error("the loop over the steps was left before Steps::end")]
    Left,
    /// Phases of the engine, or steps of a run, were called out of order.
    #[error("{called} was called where {expected} must come next")]
    Order {
        /// The call.
        called: &'static str,
        /// The call that must come next.
        expected: &'static str,
    },
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for TrainError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

fn needy(ranks: usize) -> String {
    if ranks == 1 { "the run needs".to_owned() } else { format!("{ranks} ranks of a machine need") }
}

fn of_what(limited: bool) -> &'static str {
    if limited { "limit of the control group" } else { "memory of the machine" }
}

fn too_little_memory(who: &str, needed: u64, free: u64, limit: &str, batch: Option<usize>) -> String {
    let gibibytes = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let remedy = match batch {
        Some(batch) => format!("use `batch = {batch}`"),
        None => "even `batch = 1` needs more; use a smaller `size` or `model`".to_owned(),
    };
    format!("{who} {}, {} are free ({limit}): {remedy}", gibibytes(needed), gibibytes(free))
}

impl From<DeviceError> for TrainError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Cause(cause) => TrainError::Cause(cause),
            other => TrainError::Device(other),
        }
    }
}

impl From<Arc<Cause>> for TrainError {
    fn from(cause: Arc<Cause>) -> Self {
        TrainError::Cause(cause)
    }
}

impl TrainError {
    /// The error of images that cannot be loaded, with the remedy if a sample cannot be read.
    pub fn of_batch(error: DataError) -> Self {
        if error.is_unreadable() { TrainError::BadSample(error) } else { TrainError::Data(error) }
    }

    /// The error of a method of a callback or a logger. One that the trainer knows is that error itself.
    pub(crate) fn of_callback(hook: &'static str, error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        match error.downcast::<TrainError>() {
            Ok(error) => *error,
            Err(error) => TrainError::Callback { hook, reason: error.to_string() },
        }
    }

    /// The failure record of this error on `rank`, for the other ranks and the launcher.
    pub fn cause(&self, rank: usize) -> Cause {
        match self {
            TrainError::Cause(cause) => (**cause).clone(),
            TrainError::NonFinite { rank, .. } => Cause::new(CauseKind::NonFinite, self.to_string()).of_rank(*rank),
            // All ranks have the same state.
            TrainError::NonFiniteState { .. } => Cause::new(CauseKind::NonFinite, self.to_string()).of_rank(0),
            // Rank 0 has planned for all.
            TrainError::Memory { .. } => Cause::new(CauseKind::Error, self.to_string()).of_rank(0),
            other => Cause::new(CauseKind::Error, other.to_string()).of_rank(rank),
        }
    }
}
