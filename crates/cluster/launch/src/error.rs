//! Reasons why a launch can fail.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

use crate::signal_names::HANDLED;

/// The advice when the kernel runs out of a resource.
const LIMITS: &str = "check the limits on processes and open files (ulimit -a)";

/// The advice when a program does not start. The program is at fault only for some errors.
fn mend_of_spawn(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM) => LIMITS,
        Some(Errno::TOOBIG) => "its arguments and variables are too long; put some into a file",
        Some(Errno::NOENT) => "check that it exists, as well as the interpreter in a script's first line",
        _ => "check that it exists and may be executed",
    }
}

/// Reasons why the ranks could not be launched or watched.
#[derive(Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Zero ranks were requested.
    #[error("cannot launch 0 processes: ask for at least 1")]
    NoRanks,
    /// The node rank is not below the number of nodes.
    #[error("node rank {rank} of {count} nodes is impossible: node ranks start at 0")]
    NodeRank {
        /// The given node rank.
        rank: usize,
        /// The number of nodes.
        count: usize,
    },
    /// The signal of this name cannot be handled.
    #[error("{:?} is not a signal that can be passed on; choose from {}", .0, HANDLED.map(|(name, _)| name).join(", "))]
    Signal(String),
    /// The address of the store is not available.
    #[error("cannot listen on {host} port {port}, where rank 0 opens the store: {source}: name another port, or none")]
    Address {
        /// The host.
        host: String,
        /// The port; 0 is any.
        port: u16,
        /// The kernel's error.
        source: io::Error,
    },
    /// The machine cannot reach itself.
    #[error("cannot reach {host}, where the ranks meet: {source}: bring the loopback interface up (ip link set lo up)")]
    Loopback {
        /// The host.
        host: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The program did not start.
    #[error("cannot start {program:?} as rank {rank}: {source}: {}", mend_of_spawn(source))]
    Spawn {
        /// The program.
        program: OsString,
        /// The first rank that did not start; the ones before it were stopped.
        rank: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// There are fewer devices than ranks.
    #[error("CUDA_VISIBLE_DEVICES is {list:?}, which has no device for local rank {local_rank}: launch fewer ranks")]
    VisibleDevices {
        /// The variable's value.
        list: String,
        /// The first rank without a device.
        local_rank: usize,
    },
    /// A log folder or file cannot be created.
    #[error("cannot make {}: {source}: name another folder for log files", path.display())]
    Logs {
        /// The folder or file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused something that the launcher needs.
    #[error("cannot {what}: {source}: {LIMITS}")]
    Kernel {
        /// The attempted action.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
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
    fn a_program_that_does_not_start_is_blamed_only_if_it_is_at_fault() {
        let check = |errno: Errno, mend: &str| {
            let error = LaunchError::Spawn { program: "p".into(), rank: 3, source: errno.into() };
            assert_eq!(error.to_string(), format!("cannot start \"p\" as rank 3: {}: {mend}", io::Error::from(errno)));
        };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM] {
            check(errno, "check the limits on processes and open files (ulimit -a)");
        }
        check(Errno::NOENT, "check that it exists, as well as the interpreter in a script's first line");
        check(Errno::ACCESS, "check that it exists and may be executed");
        check(Errno::TOOBIG, "its arguments and variables are too long; put some into a file");
    }
}
