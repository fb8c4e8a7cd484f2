//! Ranks as processes of the same program.

use std::fmt::Display;
use std::panic::Location;

use enmasse_comm::{Cause, CauseKind, Rendezvous};
use thiserror::Error;

use crate::environment::{EnvironmentError, LaunchedRank};
use crate::error::LaunchError;
use crate::inherited::report_cause;
use crate::job::{Job, Store};
use crate::outcome::{Failure, Outcome};
use crate::restarts::launch;
use crate::threads::{cause_of_error, run_rank};

/// Tells a process which call started it.
const SPAWNED: &str = "ENMASSE_SPAWNED";

/// Reasons why not all ranks succeeded.
#[derive(Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The ranks could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// This process is a rank of somebody's job already.
    #[error(
        "this process is rank {rank} of {world_size} already (RANK and WORLD_SIZE are set), and each of them would start \
         ranks of its own: start the program without a launcher, or join that job by Rendezvous::from_environment"
    )]
    Launched {
        /// Its rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// The environment of a launcher makes no sense.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A rank failed, and the others were stopped.
    #[error("{}", .0.to_string().lines().next().unwrap_or_default())]
    Failed(Box<Failure>),
    /// A signal with this number asked this process to stop, and all ranks were stopped.
    #[error("stopped by signal {0}: all ranks are stopped")]
    Interrupted(i32),
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for SpawnError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Runs `body` as the ranks of a group, each a separate process; returns when all have ended. [`spawn`](crate::spawn)
/// does the same with threads, which can return values.
///
/// Every process is this program, started again with the same arguments: it runs `main` up to this call, and ends with
/// `body`. So code before the call should be quick and without side effects, as with PyTorch's `mp.spawn`. Other calls
/// of this function do nothing in such a process, so a rank cannot have ranks of its own.
///
/// # Errors
/// The processes cannot be started, one of them fails, or a signal ends them. In one of several ranks that a launcher
/// has started, every call is an error.
///
/// ```no_run
/// enmasse_launch::spawn_processes(2, |group| {
///     let mut sum = [group.rank() as f32];
///     group.all_reduce(&mut sum)
/// })?;
/// # Ok::<(), enmasse_launch::SpawnError>(())
/// ```
#[track_caller]
pub fn spawn_processes<E: Display>(
    n: usize,
    body: impl FnOnce(enmasse_comm::Group) -> Result<(), E>,
) -> Result<(), SpawnError> {
    let call = Location::caller().to_string();
    match std::env::var(SPAWNED) {
        Ok(spawned) if spawned == call => std::process::exit(become_rank(body)),
        Ok(_) => return Ok(()),
        Err(_) => {}
    }
    // A job of one rank is a machine to start ranks on.
    if let Some(LaunchedRank { rank, world_size: world_size @ 2.., .. }) = LaunchedRank::from_environment()? {
        return Err(SpawnError::Launched { rank, world_size });
    }
    let program = std::env::current_exe().map_err(LaunchError::kernel("find this program's own file"))?;
    let mut job = Job::new(program, n).args(std::env::args_os().skip(1)).variable(SPAWNED, call);
    job.store = Store::Inherited;
    match launch(&job)? {
        Outcome::Done | Outcome::Recalled => Ok(()),
        Outcome::Failed(failure) => Err(SpawnError::Failed(failure)),
        Outcome::Interrupted { signal, .. } => Err(SpawnError::Interrupted(signal)),
    }
}

/// Runs one rank to its end, and returns its exit code.
fn become_rank<E: Display>(body: impl FnOnce(enmasse_comm::Group) -> Result<(), E>) -> i32 {
    let result = match Rendezvous::from_environment().and_then(Rendezvous::join) {
        Ok(group) => run_rank(&group, |own| cause_of_error(own, body)),
        Err(error) => Err(Cause::new(CauseKind::Error, error.to_string()).into()),
    };
    let Err(cause) = result else { return 0 };
    if !report_cause(&cause) {
        eprintln!("error: {cause}");
    }
    1
}
