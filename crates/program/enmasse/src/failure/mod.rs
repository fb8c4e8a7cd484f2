//! How a command that does not succeed ends: with an exit code, and one line on standard error.

pub mod flight;
pub mod record;

use std::fmt;

use enmasse_train::{ConfigError, Stop, TrainError};
use enmasse_wording::one_line;

use crate::command_line::flag_names::with_flags;

/// Exit code of a run that was saved and is to be restarted: `EX_TEMPFAIL` of sysexits.h.
pub const REQUEUED: u8 = 75;

/// Exit code after SIGTERM, the one a shell reports.
pub const TERMINATED: u8 = 143;

/// Exit code after SIGINT (Ctrl-C), as a shell would put it.
pub const INTERRUPTED: u8 = 130;

/// The reason why a command did not succeed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The command line, the configuration or the environment is invalid.
    Usage(String),
    /// Any other error.
    Error(String),
    /// The user asked to stop.
    Interrupted,
    /// The system or the scheduler asked to stop.
    Terminated,
    /// The run stopped as requested, and is saved; this has been printed.
    Stopped(Stop),
    /// Another process (a rank's launcher) prints or has printed the error; only the exit code remains.
    Told(u8),
}

/// A failure of usage, with a formatted text.
macro_rules! usage {
    ($($text:tt)*) => { $crate::failure::Failure::Usage(format!($($text)*)) };
}
/// A failure of any other kind, with a formatted text.
macro_rules! failed {
    ($($text:tt)*) => { $crate::failure::Failure::Error(format!($($text)*)) };
}
pub(crate) use {failed, usage};

impl Failure {
    /// A failure of usage with the text of `error`.
    pub fn usage(error: impl fmt::Display) -> Self {
        Failure::Usage(error.to_string())
    }

    /// An error with the text of `error`.
    pub fn error(error: impl fmt::Display) -> Self {
        Failure::Error(with_flags(&error.to_string()))
    }

    /// The end of a command that has said how it ended, by its exit code.
    pub fn told(code: u8) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Failure::Told(code)) }
    }

    /// The error's text, as far as this process is to print it.
    pub fn message(&self) -> &str {
        match self {
            Failure::Usage(message) | Failure::Error(message) => message,
            Failure::Interrupted => "interrupted",
            Failure::Terminated => "terminated",
            Failure::Stopped(_) => "stopped",
            Failure::Told(_) => "failed",
        }
    }

    /// 1 error, 2 usage, 75 saved and requeued, 130 interrupted, 143 terminated, saved or not.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Error(_) => 1,
            Failure::Interrupted | Failure::Stopped(Stop::Interrupt) => INTERRUPTED,
            Failure::Terminated | Failure::Stopped(Stop::End) => TERMINATED,
            Failure::Stopped(Stop::Requeue) => REQUEUED,
            Failure::Told(code) => *code,
        }
    }

    /// The line for standard error.
    pub fn line(&self) -> Option<String> {
        match self {
            Failure::Usage(message) | Failure::Error(message) => Some(format!("error: {}", one_line(message))),
            Failure::Interrupted | Failure::Terminated => Some(self.message().to_owned()),
            Failure::Stopped(_) | Failure::Told(_) => None,
        }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Config(error) => error.into(),
            other => Failure::error(other),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage(with_flags(&error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_lines() {
        let check = |failure: Failure, code: u8, line: Option<&str>| {
            assert_eq!((failure.code(), failure.line().as_deref()), (code, line));
        };
        check(Failure::error("a\nb\x1b[2J"), 1, Some("error: a b [2J"));
        check(usage!("no"), 2, Some("error: no"));
        check(Failure::error("use a smaller `batch`"), 1, Some("error: use a smaller --batch"));
        check(Failure::Interrupted, 130, Some("interrupted"));
        check(Failure::Terminated, 143, Some("terminated"));
        check(Failure::Stopped(Stop::End), 143, None);
        check(Failure::Stopped(Stop::Interrupt), 130, None);
        check(Failure::Stopped(Stop::Requeue), 75, None);
        check(Failure::Told(1), 1, None);
    }
}
