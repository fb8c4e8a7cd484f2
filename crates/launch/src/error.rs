//! Why a launch can fail.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

use crate::signal_names::HANDLED;

/// What to do where the kernel has no more of something.
const LIMITS: &str = "check the limits on processes and open files (ulimit -a)";

/// What to do about a program that does not start: it is at fault only sometimes.
fn mend_of_spawn(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM) => LIMITS,
        Some(Errno::TOOBIG) => "its arguments and variables are too long; put some into a file",
        Some(Errno::NOENT) => "check that it exists, and so the interpreter that a script's first line names",
        _ => "check that it exists and may be executed",
    }
}

/// Why nothing could be launched or watched.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// No ranks.
    #[error("cannot launch 0 processes: ask for at least 1")]
    NoRanks,
    /// A node beyond the last.
    #[error("node rank {rank} of {count} nodes cannot be: nodes are counted from 0")]
    NodeRank {
        /// The node rank that was given.
        rank: usize,
        /// The number of nodes.
        count: usize,
    },
    /// A signal that cannot be handled.
    #[error("{name:?} is no signal that a launcher can pass on: name some of {}", HANDLED.map(|(name, _)| name).join(", "))]
    Signal {
        /// The name that was given.
        name: String,
    },
    /// The address of the store is not to be had.
    #[error("cannot listen on {host} port {port}, where rank 0 opens the store: {source}: name another port, or none")]
    Address {
        /// The host.
        host: String,
        /// The port; 0 is any.
        port: u16,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The machine does not reach itself.
    #[error("cannot reach {host}, where the ranks meet: {source}: bring the loopback interface up (ip link set lo up)")]
    Loopback {
        /// The host.
        host: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program does not start.
    #[error("cannot start {program:?} as rank {rank}: {source}: {}", mend_of_spawn(source))]
    Spawn {
        /// The program.
        program: OsString,
        /// The first rank that did not start; those before it were stopped.
        rank: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Fewer devices than ranks.
    #[error("CUDA_VISIBLE_DEVICES is {list:?}, which has no device for local rank {local_rank}: launch fewer ranks")]
    VisibleDevices {
        /// The variable's value.
        list: String,
        /// The first rank without one.
        local_rank: usize,
    },
    /// No place for log files.
    #[error("cannot make {}: {source}: name another folder for log files", path.display())]
    Logs {
        /// The folder or file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused something a launcher needs.
    #[error("cannot {what}: {source}: {LIMITS}")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_start_is_blamed_only_where_it_is_at_fault() {
        let check = |errno: Errno, mend: &str| {
            let error = LaunchError::Spawn { program: "p".into(), rank: 3, source: errno.into() };
            assert_eq!(error.to_string(), format!("cannot start \"p\" as rank 3: {}: {mend}", io::Error::from(errno)));
        };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM] {
            check(errno, "check the limits on processes and open files (ulimit -a)");
        }
        check(Errno::NOENT, "check that it exists, and so the interpreter that a script's first line names");
        check(Errno::ACCESS, "check that it exists and may be executed");
        check(Errno::TOOBIG, "its arguments and variables are too long; put some into a file");
    }
}
