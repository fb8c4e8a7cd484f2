//! Ranks as processes: spawning, supervision, and the environment variables of torchrun.
//!
//! [`launch`] starts a [`Job`] as several ranks on one machine and watches them from a single thread that sleeps in
//! `poll`. The end of a rank, a signal to the launcher and a line of output are all events; nothing is polled
//! periodically. In every case the launch ends with all processes of the job gone, and with the first cause named
//! ([`Outcome`]).
//!
//! - [`plan()`]: the [`Assignment`] and the ranks that one attempt would start on this node.
//! - [`LaunchedRank`]: how a rank learns its place.
//! - [`STORE_FD`], [`TOKEN_FD`], [`report_cause`]: what a rank inherits, and how it reports a cause.
//! - [`spawn`], [`run_threads`]: ranks as threads of one process; [`spawn_processes`]: as processes of the same
//!   program.
//!
//! Job control: Ctrl-Z stops the ranks with the launcher, and `fg` continues them. Launcher and ranks ignore SIGTTOU, so
//! `stty tostop` does not keep a launched job from writing.
//!
//! Limits: a process that leaves its rank's process group (`setsid`) is out of reach. If the launcher itself is killed
//! (SIGKILL), the kernel ends the ranks, and a shell that waits next to the launcher kills the processes they have
//! started.
//!
//! Use it to run a program of any language as ranks that torchrun's users know, or a function as ranks of this process.
//!
//! ```
//! use enmasse_launch::{Job, launch};
//! let job = Job::new("sh", 2).args(["-c", "test $WORLD_SIZE = 2"]);
//! assert_eq!(launch(&job)?.exit_code(), 0);
//! # Ok::<(), enmasse_launch::LaunchError>(())
//! ```

mod assignment;
mod binding;
mod elastic;
mod environment;
mod error;
mod error_file;
mod first_failure;
#[cfg(fuzzing)]
pub mod fuzzing;
mod groups;
mod guard;
mod inherited;
mod job;
mod logs;
mod memory;
mod outcome;
mod output;
mod plan;
mod processes;
mod reap;
mod restarts;
mod routes;
mod signal_names;
mod signals;
mod supervise;
mod tail;
mod threads;
mod traceback;
mod workers;

pub use assignment::Assignment;
pub use binding::{Binding, CpuShare};
pub use elastic::{DrainError, Elastic, ElasticError, Ending, Timing, drain, launch_elastic};
pub use environment::{
    EnvironmentError, GROUP_RANK, GROUP_WORLD_SIZE, Interpretation, LOCAL_RANK, LOCAL_WORLD_SIZE, LaunchedRank,
    Launcher, MASTER_ADDR, MASTER_PORT, NodeListError, RANK, RESTART_COUNT, RUN_ID, WORLD_SIZE, launcher_without,
    process_variable,
};
pub use error::LaunchError;
pub use error_file::write_error_file;
pub use inherited::{STORE_FD, TOKEN_FD, report_cause};
pub use job::{Job, Nodes, Output, Store};
pub use logs::{Logs, Selection, Streams};
pub use outcome::{Failure, Outcome, Overdue, Status};
pub use plan::{RankPlan, plan};
pub use processes::{SpawnError, spawn_processes};
pub use restarts::{launch, launch_telling, new_run_id};
pub use threads::{run_threads, spawn};
pub use traceback::python_exception;
