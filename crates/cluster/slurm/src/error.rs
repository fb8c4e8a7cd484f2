//! Reasons why a script cannot be written. Each names the option of `enmasse slurm` and says what to give instead.

use thiserror::Error;

use crate::value::{MAX_ELEMENTS, SignalAhead, TimeLimit};

/// Reasons why a script cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// No line of a script can hold the text.
    #[error(
        "{option} {value:?}: quotes, backslashes, dollar signs and control characters mean nothing to Slurm; leave them out"
    )]
    Text {
        /// The option.
        option: String,
        /// The given value.
        value: String,
    },
    /// No line can hold this word of the command.
    #[error("the argument {0:?} has a control character; leave it out")]
    Argument(String),
    /// A required value is empty.
    #[error("{0} is empty; give a value, or leave the option out")]
    Empty(String),
    /// Not a valid `--time`.
    #[error(
        "--time {0}: must be MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS:MINUTES:SECONDS, ...; for instance 12:00:00"
    )]
    Time(String),
    /// Not a valid `--signal`.
    #[error("--signal {0}: must be USR1, USR2 or TERM, then @ and seconds before the time limit, for instance USR1@90")]
    Signal(String),
    /// The signal would arrive before the job begins.
    #[error(
        "--signal {signal} with --time {time}: the signal would come at once; ask for more time, or for fewer seconds"
    )]
    SignalAtOnce {
        /// The signal and its seconds.
        signal: SignalAhead,
        /// The time limit.
        time: TimeLimit,
    },
    /// Not a valid `--mem`.
    #[error("--mem {0}: must be a number with K, M, G or T, for instance 64G")]
    Memory(String),
    /// Not a setting with values.
    #[error("--array {0}: must be NAME=VALUE,VALUE,... with the name of a setting")]
    Axis(String),
    /// The same setting is used for two axes.
    #[error("--array {0}: is given twice; list all its values once")]
    AxisTwice(String),
    /// There are more elements than Slurm accepts.
    #[error("--array: more than {MAX_ELEMENTS} combinations, which is Slurm's limit; use fewer values")]
    TooManyElements,
    /// An extra option is malformed.
    #[error("--sbatch {0}: must be one long option of sbatch, --NAME or --NAME=VALUE")]
    Extra(String),
    /// The extra option has a flag of its own.
    #[error("--sbatch {0}: has a flag of its own; use that")]
    ExtraTwice(String),
}
