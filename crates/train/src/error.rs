//! What can end a run, and how it becomes the cause that other ranks see.

use std::sync::Arc;

use enmasse_comm::{Cause, CauseKind, ShardsError};
use enmasse_data::DataError;
use enmasse_device::DeviceError;
use enmasse_graph::{ChoicesError, GraphError};
use thiserror::Error;

use crate::{CheckpointError, ConfigError, RunError, Stop};

/// Why a run ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// An option is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model does not fit.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The data are wrong.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The device failed.
    #[error(transparent)]
    Device(DeviceError),
    /// There are more ranks than shards.
    #[error(transparent)]
    Shards(#[from] ShardsError),
    /// A checkpoint or weights file is wrong.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run folder cannot be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A picture of the data cannot be drawn.
    #[error("cannot draw the pictures of the run folder: {0}")]
    Chart(#[from] enmasse_charts::ChartError),
    /// Another rank failed, or ranks do not agree.
    #[error("{0}")]
    Cause(Arc<Cause>),
    /// What rank 0 sent as its choices of algorithms is something else.
    #[error("the algorithms that rank 0 chose: {0}")]
    Choices(#[from] ChoicesError),
    /// A loss is not finite. Every rank stops at the same step.
    #[error(
        "non-finite loss {loss} on rank {rank} at step {step} (epoch {epoch}); the parameters are as before that step: \
         lower --lr, or add --warmup-epochs"
    )]
    NonFinite {
        /// The first rank whose loss it was.
        rank: usize,
        /// Its loss.
        loss: f64,
        /// The epoch, from 0.
        epoch: u64,
        /// The step of the run, from 1.
        step: u64,
    },
    /// All ranks stopped as one of them was asked to, at the same step, and a checkpoint of it is written.
    #[error("stopped as asked in epoch {}, after {samples} pictures of it: go on by --resume", epoch + 1)]
    Stopped {
        /// What was asked for.
        stop: Stop,
        /// The epoch under way, from 0.
        epoch: u64,
        /// Pictures of it that are done, over all ranks.
        samples: u64,
    },
    /// A callback failed.
    #[error("a callback failed in {hook}: {reason}")]
    Callback {
        /// The method of [`crate::Callback`].
        hook: &'static str,
        /// Its error.
        reason: String,
    },
    /// Weights that do not belong to the model.
    #[error("{0}")]
    Weights(String),
    /// A resumed run does not fit what it was.
    #[error("{0}")]
    Resume(String),
    /// There is nothing to validate, test or predict with.
    #[error("nothing is trained yet: call fit first")]
    NotFitted,
    /// A test was asked of data without a test part.
    #[error("the data have no test part: give them one by TrainingData::with_test")]
    NoTestPart,
    /// The engine's phases were called out of order.
    #[error("{called} was called where {expected} must come next")]
    Order {
        /// What was called.
        called: &'static str,
        /// What should have been.
        expected: &'static str,
    },
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
    /// The failure record of this error on `rank`, for the other ranks and the launcher.
    pub fn cause(&self, rank: usize) -> Cause {
        match self {
            TrainError::Cause(cause) => (**cause).clone(),
            TrainError::NonFinite { rank, .. } => Cause::new(CauseKind::NonFinite, self.to_string()).of_rank(*rank),
            other => Cause::new(CauseKind::Error, other.to_string()).of_rank(rank),
        }
    }
}
