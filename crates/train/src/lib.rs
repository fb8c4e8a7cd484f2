//! The trainer: configuration, schedules, the loop, metrics, loggers and checkpoints.

mod checkpoint;
mod config;
mod file;
mod run_folder;
mod run_log;
mod schedule;
mod tensorboard;

pub use checkpoint::{Checkpoint, CheckpointError, CheckpointMeta, EpochSums, NamedTensor, load_weights};
pub use config::{
    ConfigError, DEFAULT_GLOBAL_BATCH, Devices, INTERNAL_VARIABLES, Kind, LayeredConfig, LrScaling, OptimizerKind,
    Precision, Range, RankKind, SETTINGS, ScheduleKind, Scope, Setting, Source, TrainConfig, UnusedParameters,
};
pub use file::FileError;
pub use run_folder::{RunError, RunFolder, RunPaths, locate_run};
pub use run_log::{DoneRecord, EpochRecord, Event, RunLog};
pub use schedule::Schedule;
pub use tensorboard::TensorBoard;
