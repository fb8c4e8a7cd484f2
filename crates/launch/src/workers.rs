//! Starting the ranks of a job.

use std::io::{self, PipeReader};
use std::marker::PhantomData;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};

use enmasse_comm::Token;
use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::environment::LaunchedRank;
use crate::inherited::{CAUSE_FD, STORE_FD, TOKEN_FD, report_pipe, token_file};
use crate::job::{Job, LaunchError, Output, Store};
use crate::outcome::Status;
use crate::signals::SignalStream;
use crate::tail::Tail;

/// One rank's process. It is not reaped before the job is over, so its process number stays its own all the while.
pub(crate) struct Worker {
    pub(crate) child: Child,
    pub(crate) pid: Pid,
    /// Readable once the process has ended.
    pub(crate) pidfd: OwnedFd,
    /// Non-blocking; `None` where it is inherited, or at its end.
    pub(crate) stderr: Option<ChildStderr>,
    pub(crate) tail: Tail,
    pub(crate) report: PipeReader,
    pub(crate) status: Option<Status>,
}

/// The running ranks of a job. Dropping them kills them.
///
/// They die with the *thread* that started them, as the kernel has it, so this value cannot leave its thread.
pub struct Workers {
    pub(crate) list: Vec<Worker>,
    pub(crate) signals: Vec<SignalStream>,
    pub(crate) job: Job,
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Workers {
    /// Starts every rank of the job; on an error those already started are gone again.
    ///
    /// From here on SIGINT and SIGTERM are requests to [`Workers::supervise`].
    pub fn spawn(job: &Job) -> Result<Self, LaunchError> {
        if job.world_size == 0 {
            return Err(LaunchError::NoRanks);
        }
        let signals = SignalStream::stop_requests().map_err(LaunchError::kernel("handle signals"))?;
        let token = Token::generate().map_err(LaunchError::kernel("draw random numbers"))?;
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(LaunchError::kernel("listen on 127.0.0.1"))?;
        let port = listener.local_addr().map_err(LaunchError::kernel("listen on 127.0.0.1"))?.port();
        let mut store = match job.store {
            Store::Inherited => Some(OwnedFd::from(listener)),
            Store::BoundByRankZero => {
                drop(listener);
                None
            }
        };

        let mut workers = Workers { list: Vec::new(), signals, job: job.clone(), _stays_on_its_thread: PhantomData };
        let run_id = format!("{}-{port}", std::process::id());
        for rank in 0..job.world_size {
            let place = LaunchedRank {
                rank,
                world_size: job.world_size,
                local_rank: rank,
                local_world_size: job.world_size,
                node: 0,
                node_count: 1,
                master: Some((Ipv4Addr::LOCALHOST.to_string(), port)),
                restart_count: 0,
                max_restarts: 0,
                run_id: run_id.clone(),
            };
            let token = token_file(&token).map_err(LaunchError::kernel("make a file in memory"))?;
            workers.list.push(start(job, &place, store.take(), token)?);
        }
        Ok(workers)
    }

    /// The process of each rank.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.list.iter().map(|worker| worker.child.id())
    }

    /// Sends a signal to every process of every rank.
    pub(crate) fn signal(&self, signal: Signal) {
        for worker in &self.list {
            // The group may be empty already, which is what is wanted.
            let _ = rustix::process::kill_process_group(worker.pid, signal);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for worker in &mut self.list {
            // A process that hangs in the kernel cannot be waited for; it was reported.
            let _ = match worker.status {
                Some(Status::Unkillable) => worker.child.try_wait(),
                _ => worker.child.wait().map(Some),
            };
        }
    }
}

fn start(job: &Job, place: &LaunchedRank, store: Option<OwnedFd>, token: OwnedFd) -> Result<Worker, LaunchError> {
    let rank = place.rank;
    let (report, reporting) = report_pipe().map_err(LaunchError::kernel("make a pipe"))?;
    let reporting = OwnedFd::from(reporting);
    let mut command = Command::new(&job.program);
    command.args(&job.arguments).envs(job.variables.iter().map(|(name, value)| (name, value)));
    command.envs(place.variables(omp_is_set(job)));
    // A launcher inside a launched rank must not pass the outer job's descriptors on.
    command.env_remove(STORE_FD).env(TOKEN_FD, number(&token)).env(CAUSE_FD, number(&reporting));
    if let Some(store) = &store {
        command.env(STORE_FD, number(store));
    }
    command.stdin(Stdio::null());
    match job.output {
        Output::RankZero | Output::RankZeroAndErrors if rank > 0 => {
            command.stdout(Stdio::null()).stderr(Stdio::piped())
        }
        Output::RankZero | Output::RankZeroAndErrors => &mut command,
        Output::All => command.stderr(Stdio::piped()),
    };
    // A group of its own: a Ctrl-C on the terminal reaches the launcher alone, which then stops everybody in order, and
    // one signal reaches whatever the rank has started.
    command.process_group(0);
    die_with_launcher(&mut command, store.into_iter().chain([token, reporting]).collect());

    let spawn_error = |source| LaunchError::Spawn { program: job.program.clone(), rank, source };
    let mut child = command.spawn().map_err(spawn_error)?;
    let watch = || -> io::Result<_> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        if let Some(stderr) = &child.stderr {
            rustix::fs::fcntl_setfl(stderr, OFlags::NONBLOCK)?;
        }
        Ok((pid, rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
    };
    match watch() {
        Ok((pid, pidfd)) => {
            let stderr = child.stderr.take();
            Ok(Worker { child, pid, pidfd, stderr, tail: Tail::default(), report, status: None })
        }
        Err(source) => {
            // Unwatched it must not stay; both fail only if it is gone.
            let _ = child.kill().and_then(|()| child.wait());
            Err(LaunchError::Kernel { what: "watch a process", source })
        }
    }
}

/// Makes the child die when its launcher does, however that happens, and opens `inherited` up to it alone.
fn die_with_launcher(command: &mut Command, inherited: Vec<OwnedFd>) {
    let launcher = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the launcher died before that call, no signal will come.
        if rustix::process::getppid() != Some(launcher) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        for descriptor in &inherited {
            rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: the hook runs between fork and exec, where only async-signal-safe functions may be called: it makes three
    // kinds of system calls, allocates nothing and takes no lock. `inherited` is read, not dropped, in the child.
    unsafe { command.pre_exec(prepare) };
}

fn number(descriptor: &OwnedFd) -> String {
    descriptor.as_raw_fd().to_string()
}

/// Whether the workers will find `OMP_NUM_THREADS` set, by the job or by the launcher's environment.
fn omp_is_set(job: &Job) -> bool {
    const NAME: &str = "OMP_NUM_THREADS";
    let of_job = job.variables.iter().rev().find(|(name, _)| name == NAME).map(|(_, value)| value.clone());
    of_job.or_else(|| std::env::var_os(NAME)).is_some_and(|value| !value.is_empty())
}
