//! The trainer: configuration, schedules, the loop, metrics, loggers and checkpoints.
