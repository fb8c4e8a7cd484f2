//! Starts the ranks of a job.

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Write};
use std::marker::PhantomData;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use enmasse_comm::Token;
use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::assignment::Assignment;
use crate::binding::{CpuShare, shares};
use crate::environment::LOCAL_RANK;
use crate::environment::ports::bind_any;
use crate::error::LaunchError;
use crate::error_file::ERROR_FILE;
use crate::guard::Guard;
use crate::inherited::{CAUSE_FD, STORE_FD, TOKEN_FD, report_pipe, token_file};
use crate::job::{Job, Store};
use crate::memory::MemoryKills;
use crate::outcome::Status;
use crate::output::{Filter, Passage};
use crate::reap::reap;
use crate::routes::{filters, routes};
use crate::signal_names::signal_names;
use crate::tail::Tail;

/// Set as by torchrun, so that NCCL's errors end a rank.
const NCCL_ERRORS: &str = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// How long to wait for a process that was killed.
const REAPING: Duration = Duration::from_secs(10);

/// One rank's process. It is not reaped before the job is over, so its process number stays valid throughout.
pub(crate) struct Worker {
    pub(crate) child: Child,
    pub(crate) pid: Pid,
    /// Readable once the process has ended.
    pub(crate) pidfd: OwnedFd,
    /// Standard output and standard error, if they pass through the launcher and have not ended.
    pub(crate) streams: [Option<Passage>; 2],
    /// The last lines of standard error, once it has ended.
    pub(crate) tail: Tail,
    pub(crate) report: PipeReader,
    pub(crate) status: Option<Status>,
}

/// The running ranks of one node and one attempt. Dropping them kills them.
///
/// By the kernel's rules they die with the *thread* that started them, so this value cannot leave its thread.
pub(crate) struct Workers {
    pub(crate) list: Vec<Worker>,
    pub(crate) job: Job,
    pub(crate) assignment: Assignment,
    pub(crate) memory_kills: MemoryKills,
    guard: Option<Guard>,
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Workers {
    /// Starts the ranks of an assignment; on an error the ranks already started are stopped.
    ///
    /// Start listening for signals before ([`Signals::watch`](crate::signals::Signals::watch)).
    pub(crate) fn spawn(job: &Job, assignment: &Assignment) -> Result<Self, LaunchError> {
        if assignment.local_world_size == 0 {
            return Err(LaunchError::NoRanks);
        }
        let mut assignment = assignment.clone();
        // One of several nodes cannot give the others a secret: either they have it already, or there is none.
        let token = match &job.token {
            Some(token) => Some(token.clone()),
            None if assignment.node_count > 1 => None,
            None => Some(Token::generate().map_err(LaunchError::kernel("draw random numbers"))?),
        };
        let mut store = open_store(job, &mut assignment)?;
        job.logs.begin_attempt(assignment.attempt, assignment.local_world_size)?;
        let filters = filters(job, &assignment)?;
        let shares = shares(job.binding, assignment.local_world_size);
        let list = Vec::with_capacity(assignment.local_world_size);
        let job = job.clone();
        let memory_kills = MemoryKills::so_far();
        let mut workers =
            Workers { list, job, assignment, memory_kills, guard: Guard::call(), _stays_on_its_thread: PhantomData };
        for local_rank in 0..workers.assignment.local_world_size {
            let token = token.as_ref().map(token_file).transpose();
            let token = token.map_err(LaunchError::kernel("make a file in memory"))?;
            let share = shares.as_ref().and_then(|shares| shares.get(local_rank));
            let register = workers.guard.as_ref().map(Guard::register).transpose();
            let register = register.map_err(LaunchError::kernel("open a pipe twice"))?;
            let inherited = Inherited { store: store.take(), token, register };
            let worker = start(&workers.job, &workers.assignment, local_rank, share, inherited, &filters)?;
            workers.list.push(worker);
        }
        if let Some(guard) = &mut workers.guard {
            guard.settle();
        }
        Ok(workers)
    }

    /// Sends a signal to every process of every rank.
    pub(crate) fn signal(&self, signal: Signal) {
        for worker in &self.list {
            // The group may be empty already, which is fine.
            let _ = rustix::process::kill_process_group(worker.pid, signal);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // Until its leader is waited for, a group's number stays valid.
        drop(self.guard.take());
        let deadline = Instant::now() + REAPING;
        for worker in &mut self.list {
            // One that hangs in the kernel was waited for already, and reported.
            let is_given_up = matches!(worker.status, Some(Status::Unkillable));
            reap(&mut worker.child, if is_given_up { Instant::now() } else { deadline });
        }
    }
}

/// The listening socket for rank 0, if rank 0 inherits one. Fills in the assignment's port if it is still open.
pub(crate) fn open_store(job: &Job, assignment: &mut Assignment) -> Result<Option<OwnedFd>, LaunchError> {
    let (host, port) = assignment.master.clone();
    if assignment.node_rank > 0 || (job.store == Store::BoundByRankZero && port > 0 && assignment.node_count > 1) {
        return Ok(None);
    }
    let address = |source| LaunchError::Address { host: host.clone(), port, source };
    // Binds even if rank 0 is to bind the port itself: a taken port then shows here, and not in some rank's traceback.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let bind = |port| TcpListener::bind((bare, port));
    let listener = match (job.store, port) {
        (Store::BoundByRankZero, 0) => bind_any(bind),
        _ => bind(port),
    };
    let listener = listener.map_err(address)?;
    let bound = listener.local_addr().map_err(address)?;
    assignment.master.1 = bound.port();
    if bound.ip().is_loopback() && assignment.world_size > 1 {
        // If loopback is down, as in a new network namespace, listening works, but connecting does not: the ranks would
        // wait for each other until the deadline. Connecting a datagram socket sends nothing.
        let route = UdpSocket::bind((bare, 0)).and_then(|socket| socket.connect(bound));
        route.map_err(|source| LaunchError::Loopback { host: host.clone(), source })?;
    }
    Ok(match job.store {
        Store::Inherited => Some(OwnedFd::from(listener)),
        Store::BoundByRankZero => None,
    })
}

/// The variables of one rank in addition to the inherited ones; later ones take precedence over earlier ones.
pub(crate) fn variables(
    job: &Job,
    assignment: &Assignment,
    local_rank: usize,
    share: Option<&CpuShare>,
) -> Result<Vec<(OsString, OsString)>, LaunchError> {
    let mut variables = job.variables.clone();
    let mut set = |name: &str, value: &OsStr| variables.push((name.into(), value.into()));
    let omp_is_set = omp_is_set(job);
    for (name, value) in assignment.place(local_rank).variables(omp_is_set) {
        set(name, value.as_ref());
    }
    set("ROLE_NAME", job.role.as_ref());
    set(NCCL_ERRORS, &std::env::var_os(NCCL_ERRORS).unwrap_or_else(|| "1".into()));
    set("TORCHELASTIC_SIGNALS_TO_HANDLE", signal_names(&job.stop_signals).as_ref());
    // An outer launcher's error file is not for these ranks.
    let error_file = job.logs.rank_folder(assignment.attempt, local_rank).map(|folder| folder.join("error.json"));
    set(ERROR_FILE, error_file.unwrap_or_default().as_os_str());
    if let Some(share) = share
        && !omp_is_set
    {
        set("OMP_NUM_THREADS", share.threads.to_string().as_ref());
    }
    if job.virtual_local_rank {
        set(LOCAL_RANK, "0".as_ref());
        set(VISIBLE_DEVICES, visible_device(local_rank)?.as_ref());
    }
    Ok(variables)
}

/// The visible device that belongs to a rank.
fn visible_device(local_rank: usize) -> Result<String, LaunchError> {
    let Ok(list) = std::env::var(VISIBLE_DEVICES) else { return Ok(local_rank.to_string()) };
    let device = list.split(',').nth(local_rank).map(|device| device.trim().to_owned());
    device.ok_or(LaunchError::VisibleDevices { list, local_rank })
}

/// Descriptors for one rank.
struct Inherited {
    store: Option<OwnedFd>,
    token: Option<OwnedFd>,
    /// The guard's descriptor, until the program starts.
    register: Option<OwnedFd>,
}

fn start(
    job: &Job,
    assignment: &Assignment,
    local_rank: usize,
    share: Option<&CpuShare>,
    Inherited { store, token, register }: Inherited,
    filters: &[Option<Filter>; 2],
) -> Result<Worker, LaunchError> {
    let rank = assignment.first_rank + local_rank;
    let (report, reporting) = report_pipe().map_err(LaunchError::kernel("make a pipe"))?;
    let reporting = OwnedFd::from(reporting);
    let mut command = Command::new(&job.program);
    command.args(arguments(job, local_rank)).envs(variables(job, assignment, local_rank, share)?);
    // A launcher inside a launched rank must not pass on the outer job's descriptors.
    command.env_remove(STORE_FD).env_remove(TOKEN_FD).env(CAUSE_FD, number(&reporting));
    for (name, descriptor) in [(STORE_FD, &store), (TOKEN_FD, &token)] {
        if let Some(descriptor) = descriptor {
            command.env(name, number(descriptor));
        }
    }
    command.stdin(Stdio::null());
    let [stdout, stderr] = routes(job, assignment, local_rank, filters)?;
    command.stdout(stdout.target()?).stderr(stderr.target()?);
    // A separate process group: a Ctrl-C on the terminal reaches only the launcher, which then stops all ranks in
    // order. And one signal reaches all processes that the rank has started.
    command.process_group(0);
    let cores = share.map(CpuShare::set);
    die_with_launcher(&mut command, store.into_iter().chain(token).chain([reporting]).collect(), register, cores);

    let spawn_error = |source| LaunchError::Spawn { program: job.program.clone(), rank, source };
    let mut child = command.spawn().map_err(spawn_error)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let watch = || -> io::Result<_> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let out = out.map(|out| stdout.passage(out)).transpose()?.flatten();
        let err = err.map(|err| stderr.passage(err)).transpose()?.flatten();
        Ok((pid, rustix::process::pidfd_open(pid, PidfdFlags::empty())?, [out, err]))
    };
    match watch() {
        Ok((pid, pidfd, streams)) => {
            log::info!("rank {rank} runs as process {}", pid.as_raw_nonzero());
            Ok(Worker { child, pid, pidfd, streams, tail: Tail::default(), report, status: None })
        }
        Err(source) => {
            // A process that cannot be watched must not remain. Killing fails only if it is gone.
            let _ = child.kill();
            reap(&mut child, Instant::now() + REAPING);
            Err(LaunchError::Kernel { what: "watch a process", source })
        }
    }
}

/// The arguments of one rank.
pub(crate) fn arguments(job: &Job, local_rank: usize) -> Vec<OsString> {
    let mut arguments = job.arguments.clone();
    if let Some(place) = job.local_rank_at {
        arguments.insert(place.min(arguments.len()), format!("--local-rank={local_rank}").into());
    }
    arguments
}

/// Makes the child die when its launcher does, in whatever way, opens `inherited` for it alone, and keeps it on
/// `cores`. Writes its process group to `register`.
fn die_with_launcher(command: &mut Command, inherited: Vec<OwnedFd>, register: Option<OwnedFd>, cores: Option<CpuSet>) {
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
        if let Some(register) = &register {
            let mut line = [0; 16];
            let mut rest = line.as_mut_slice();
            writeln!(rest, "{}", rustix::process::getpid().as_raw_pid())?;
            let unused = rest.len();
            let line = line.get(..line.len() - unused).unwrap_or_default();
            // Without a reader there is no guard.
            let _ = rustix::io::write(register, line);
        }
        if let Some(cores) = &cores {
            // If the kernel refuses, the rank runs on any core.
            let _ = sched_setaffinity(None, cores);
        }
        Ok(())
    };
    // SAFETY: the hook runs between fork and exec, where only async-signal-safe functions may be called: it makes a few
    // kinds of system calls, allocates nothing and takes no lock. `inherited` is read, not dropped, in the child.
    unsafe { command.pre_exec(prepare) };
}

fn number(descriptor: &OwnedFd) -> String {
    descriptor.as_raw_fd().to_string()
}

/// Whether the workers get `OMP_NUM_THREADS`, from the job or from the launcher's environment.
fn omp_is_set(job: &Job) -> bool {
    const NAME: &str = "OMP_NUM_THREADS";
    let of_job = job.variables.iter().rev().find(|(name, _)| name == NAME).map(|(_, value)| value.clone());
    of_job.or_else(|| std::env::var_os(NAME)).is_some_and(|value| !value.is_empty())
}
