//! What to launch, and why a launch can fail.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use thiserror::Error;

/// Who opens the store at `MASTER_ADDR:MASTER_PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The launcher listens, and rank 0 inherits the listening socket ([`crate::STORE_FD`]): the port cannot be lost to
    /// another program. For our own ranks.
    Inherited,
    /// Rank 0 binds the port, as PyTorch and other programs do. The launcher picks a free one and releases it just
    /// before the workers start, so that in between, in theory, another program may take it.
    BoundByRankZero,
}

/// Where the workers' output goes. Standard input is `/dev/null`: several readers of one terminal make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Rank 0 inherits both streams, so that a progress bar finds its terminal. Of the others, standard output is
    /// discarded, and the last lines of standard error are kept for the failure they may explain.
    RankZero,
    /// As with `RankZero`, but the standard error of the others passes through the launcher to its own.
    RankZeroAndErrors,
    /// Every worker's output passes through, unmarked, as under torchrun. Standard error goes through the launcher,
    /// which keeps the last lines for the failure report.
    All,
}

/// A program to run as several ranks on this machine.
///
/// ```
/// use enmasse_launch::{Job, launch};
/// let outcome = launch(&Job::new("sh", 2).args(["-c", "test \"$RANK\" -lt \"$WORLD_SIZE\""])).unwrap();
/// assert_eq!(outcome.exit_code(), 0);
/// ```
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) variables: Vec<(OsString, OsString)>,
    pub(crate) world_size: usize,
    pub(crate) store: Store,
    pub(crate) output: Output,
    pub(crate) grace: Duration,
}

impl Job {
    /// `world_size` processes of `program`, which opens the store itself and whose output passes through.
    pub fn new(program: impl Into<OsString>, world_size: usize) -> Self {
        Job {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            world_size,
            store: Store::BoundByRankZero,
            output: Output::All,
            grace: Duration::from_millis(500),
        }
    }

    /// Appends arguments.
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable in every worker, beside those it inherits. The launcher's own variables win.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Who opens the store.
    pub fn store(mut self, store: Store) -> Self {
        self.store = store;
        self
    }

    /// Where output goes.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Time between asking workers to stop (SIGTERM) and killing them (SIGKILL); half a second unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}

/// Why nothing could be launched or watched.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// No ranks.
    #[error("cannot launch 0 processes: ask for at least 1")]
    NoRanks,
    /// The program does not start.
    #[error("cannot start {program:?} as rank {rank}: {source}: check that it exists and may be executed")]
    Spawn {
        /// The program.
        program: OsString,
        /// The first rank that did not start; those before it were stopped.
        rank: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused something a launcher needs.
    #[error("cannot {what}: {source}: check the limits on processes and open files (ulimit -a)")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl LaunchError {
    pub(crate) fn kernel<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| LaunchError::Kernel { what, source: source.into() }
    }
}
