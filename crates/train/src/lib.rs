//! The trainer: configuration, schedules, the loop, metrics, loggers and checkpoints.

mod config;

pub use config::{
    ConfigError, DEFAULT_GLOBAL_BATCH, Devices, INTERNAL_VARIABLES, Kind, LayeredConfig, LrScaling, OptimizerKind,
    Precision, Range, RankKind, SETTINGS, ScheduleKind, Scope, Setting, Source, TrainConfig, UnusedParameters,
};
