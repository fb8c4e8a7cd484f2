//! How a command ends when it does not succeed: an exit code, and one line on standard error.

use std::fmt;
use std::io::{self, Write};

use enmasse_train::{ConfigError, Stop, TrainError};
use enmasse_wording::one_line;

/// Exit code of a run that was saved and is to be started again: `EX_TEMPFAIL` of sysexits.h.
pub const REQUEUED: u8 = 75;

/// Exit code after SIGTERM, as a shell would put it.
pub const TERMINATED: u8 = 143;

/// Why a command did not succeed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The command line, the configuration or the environment asks for something that cannot be.
    Usage(String),
    /// Anything else that went wrong.
    Error(String),
    /// The user asked to stop.
    Interrupted,
    /// The system or the scheduler asked to stop.
    Terminated,
    /// The run stopped as it was asked to, and is saved; it has said so.
    Stopped(Stop),
    /// Somebody else tells the story (a rank's launcher), or has told it: only the exit code is left.
    Told(u8),
}

impl Failure {
    /// An error in the words of `error`.
    pub fn error(error: impl fmt::Display) -> Self {
        Failure::Error(error.to_string())
    }

    /// What is wrong, as far as it is for this process to say.
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
    fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Error(_) => 1,
            Failure::Interrupted => 130,
            Failure::Terminated | Failure::Stopped(Stop::End) => TERMINATED,
            Failure::Stopped(Stop::Requeue) => REQUEUED,
            Failure::Told(code) => *code,
        }
    }

    /// The line for standard error.
    fn line(&self) -> Option<String> {
        match self {
            Failure::Usage(message) | Failure::Error(message) => Some(format!("error: {}", one_line(message))),
            Failure::Interrupted | Failure::Terminated => Some(self.message().to_owned()),
            Failure::Stopped(_) | Failure::Told(_) => None,
        }
    }

    /// Prints the line and gives the exit code.
    pub fn say(&self) -> u8 {
        if let Some(line) = self.line() {
            // Where standard error is gone, the code still tells. In one piece: another thread may end the process.
            let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
        }
        self.code()
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
        Failure::Usage(error.to_string())
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
        check(Failure::Usage("no".into()), 2, Some("error: no"));
        check(Failure::Interrupted, 130, Some("interrupted"));
        check(Failure::Terminated, 143, Some("terminated"));
        check(Failure::Stopped(Stop::End), 143, None);
        check(Failure::Stopped(Stop::Requeue), 75, None);
        check(Failure::Told(1), 1, None);
    }
}
