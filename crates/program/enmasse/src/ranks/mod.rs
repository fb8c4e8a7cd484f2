//! Where ranks run: this process alone, its threads, processes that it launches, or this process as
//! one rank of a launched job.
//!
//! With `--strategy dp` the ranks are threads of one process.
//!
//! # Cores
//!
//! Each rank decodes images with its share of the node's cores. A rank with a GPU keeps its loader
//! and its submitting thread on the cores of the GPU's memory node, if the machine has several. The
//! thread is bound before it starts the others. The CPU device pins its own threads
//! (`enmasse_cpu`'s `affinity`).
//!
//! One pool of loader threads for all ranks of a node would be 1 to 2 % faster, but would need
//! batches in shared memory. `benchmarks/loader.md` has the measurement.

pub mod attempt;
pub mod automatic;
pub mod interrupt;
pub mod launched;
pub mod requeue;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use enmasse::devices::Share;
use enmasse_comm::{Cause, CauseKind, Group, GroupOptions, TransportChoice};
use enmasse_cpu::{Cores, Pinned};
use enmasse_device::Device;
use enmasse_doctor::FailureRecord;
use enmasse_launch::{Job, Outcome, Output, Status, Store, report_cause, run_threads};
use enmasse_system::machine::NearProcessors;
use enmasse_system::writer;
use enmasse_train::{
    CheckpointMeta, DeviceSelection, Devices, LayeredConfig, RankKind, RunConfig, RunFolder, RunPaths, StrategyKind,
    TrainConfig,
};
use enmasse_wording::counted;

use crate::command_line::settings::{self, Ranks, cores};
use crate::failure::flight;
use crate::failure::record;
use crate::failure::{Failure, INTERRUPTED, REQUEUED, TERMINATED, failed, usage};
use crate::output::screen;
use crate::output::{say, say_block};
use crate::ranks::attempt::attempt;
use crate::ranks::automatic::Candidate;
use crate::ranks::interrupt::Interrupts;
use crate::ranks::launched::Launched;
use crate::report::resume_command;

/// One rank, and its group.
pub struct Rank {
    /// `None` for a single rank.
    pub group: Option<Group>,
    /// Its part of the machine, among the ranks that share its cores.
    pub share: Share,
    /// How many times the job's launcher has restarted it; equal on all ranks.
    pub attempt: usize,
}

impl Rank {
    /// A single rank.
    pub fn alone() -> Self {
        Rank { group: None, share: Share::WHOLE, attempt: 0 }
    }

    /// Whether this rank writes files and prints.
    pub fn is_first(&self) -> bool {
        self.group.as_ref().is_none_or(|group| group.rank() == 0)
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.group.as_ref().map_or(1, Group::world_size)
    }

    /// This rank's share of the machine for computing.
    pub fn device(&self, config: &RunConfig) -> Result<Arc<dyn Device>, Failure> {
        settings::device(config, self.share.request(&config.program, cores()))
    }

    /// Lets a launched rank that was told no devices, or `auto`, take one together with the others: its GPU, if every rank has one of its
    /// own that works, otherwise a CPU, and `speaks` for all why. All ranks must call it.
    pub fn settle(&self, config: &mut RunConfig, layers: &LayeredConfig, speaks: bool) -> Result<(), Failure> {
        let ranks = Ranks::Launched { local_rank: self.share.local_rank, speaks };
        if !settings::is_undecided(&config.program, layers.given_device_kind(), ranks) {
            return Ok(());
        }
        let own = Candidate::of_rank(&config.program, self.share.local_rank);
        let all = self.gather(own.to_text())?;
        let all: Vec<Candidate> = all.iter().map(|text| Candidate::from_text(text)).collect();
        let (kind, line) = automatic::together(&all, config.program.share_devices);
        line.filter(|_| speaks).iter().for_each(say);
        let kind = kind.as_deref().unwrap_or(settings::default_kind());
        config.program.devices = Some(Devices::taken(kind, DeviceSelection::Count(1)));
        // If the CPU refuses a setting, it does so here, as in [`settings::finish`].
        if settings::kind(&config.program) == settings::default_kind() {
            settings::device(config, settings::alone()).map(drop)
        } else {
            Ok(())
        }
    }

    /// This rank's share of the machine for decoding.
    pub fn loader_threads(&self, config: &TrainConfig) -> usize {
        config.loader_threads_of_rank(cores(), self.share.sharer, self.share.sharers)
    }

    /// The text of rank 0, on every rank.
    pub fn agree(&self, text: String) -> Result<String, Failure> {
        Ok(self.gather(text)?.into_iter().next().unwrap_or_default())
    }

    /// Keeps the calling thread, and those that it starts until the result is dropped, near the device: on the cores of its memory
    /// node. `None` on a machine with one node, and for a device that belongs to none.
    pub fn near(&self, device: &dyn Device) -> Option<Pinned> {
        let (cores, near) = near(device)?;
        Pinned::to(cores.among(&near.processors))
    }

    /// What makes the ranks' devices slower than they could be, a line each; on the first rank those of all. All ranks must
    /// call it.
    pub fn device_warnings(&self, device: &dyn Device) -> Result<Vec<String>, Failure> {
        let all = self.gather(device.warnings().join("\n"))?;
        let named = |(rank, text): (usize, &String)| -> Vec<String> {
            let rank = if all.len() > 1 { format!("rank {rank}: ") } else { String::new() };
            text.lines().map(|line| format!("{rank}{line}")).collect()
        };
        Ok(all.iter().enumerate().flat_map(named).collect())
    }

    /// The text of each rank, in rank order.
    pub fn gather(&self, text: String) -> Result<Vec<String>, Failure> {
        let Some(group) = &self.group else { return Ok(vec![text]) };
        let texts = group.all_gather_bytes(text.as_bytes()).map_err(Failure::error)?;
        Ok(texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
    }

    /// The result of `work`, which a thread does. Meanwhile the ranks meet again and again, until all are done: works take
    /// different times, and a rank that waited for another's in the next operation would reach the deadline of that operation.
    /// All ranks must call it.
    pub fn at_once<T: Send + 'static>(
        &self,
        config: &TrainConfig,
        name: &str,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        /// The longest time between two rounds in which ranks tell each other that they are still at it.
        const ROUND: Duration = Duration::from_secs(1);
        let round = ROUND.min(config.timeout(1) / 4);
        let (send, result) = channel();
        // Nobody waits for it after a failure of the group.
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || drop(send.send(work())));
        thread.map_err(|error| failed!("cannot start a thread: {error}; check the limit on processes (ulimit -u)"))?;
        let mut done = None;
        loop {
            if done.is_none() {
                match result.recv_timeout(round) {
                    Ok(found) => done = Some(found?),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Err(failed!("the thread {name} panicked")),
                }
            }
            let words = self.gather(if done.is_some() { "done" } else { "" }.to_owned())?;
            if let Some(done) = done.take_if(|_| words.iter().all(|word| word == "done")) {
                return Ok(done);
            }
        }
    }

    /// Lines that say which rank this is, and where and on what it runs; on the first rank one line per rank, and how they
    /// exchange data. All ranks must call it.
    pub fn introductions(&self, device: &dyn Device) -> Result<Vec<String>, Failure> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let near = near(device).map_or(String::new(), |(_, near)| {
            format!(", loader on the {} of memory node {}", counted(near.processors.len(), "core"), near.node)
        });
        let place = format!("{host}:{}, {}{near}", std::process::id(), device.name());
        let Some(group) = &self.group else { return Ok(vec![format!("not distributed: {place}")]) };
        let own = format!("rank {} of {}, {place}", group.rank(), group.world_size());
        let all = self.gather(own.clone())?;
        let ways = device.ways(group).map_err(Failure::error)?;
        Ok(if self.is_first() { [all, ways].concat() } else { vec![own] })
    }
}

/// The cores that this thread may use, and those of them that are near a device, if not all are.
fn near(device: &dyn Device) -> Option<(Cores, NearProcessors)> {
    let address = device.bus_address()?;
    let cores = Cores::available()?;
    let near = NearProcessors::of_pci(&address, &cores.numbers().collect::<Vec<_>>())?;
    Some((cores, near))
}

/// How ranks sum, and how long they wait for each other.
fn options(config: &TrainConfig) -> GroupOptions {
    let default = GroupOptions::default();
    let timeout = seconds(config.timeout);
    GroupOptions {
        all_reduce: config.all_reduce.into(),
        timeout,
        stall_warning: default.stall_warning.min(timeout / 2),
        ..default
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Runs `body` as the one rank of this process; `folder` is the run's folder, if it is known.
pub fn as_rank(
    launched: &Launched,
    config: &RunConfig,
    folder: Option<&Path>,
    body: impl FnOnce(&Rank) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if config.train.strategy == StrategyKind::Dp && launched.place.world_size > 1 {
        return Err(usage!(
            "--strategy dp: its ranks are threads of one process, and a launcher has started {}; start one, or use --strategy ddp",
            counted(launched.place.world_size, "process")
        ));
    }
    as_rank_over(launched.transport(config.program.transport)?, launched, config, folder, body)
}

/// The same over a given transport.
pub fn as_rank_over(
    transport: TransportChoice,
    launched: &Launched,
    config: &RunConfig,
    folder: Option<&Path>,
    body: impl FnOnce(&Rank) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let group = launched.join(folder, seconds(config.program.heartbeat), transport, options(&config.train))?;
    group.iter().for_each(flight::warn);
    // Rank 0's attempt counts: the launchers of several nodes may each count their restarts separately.
    let attempt = group.as_ref().map_or(launched.place.restart_count, |group| group.attempt() as usize);
    let share =
        group.as_ref().map_or(Ok(Share::WHOLE), |group| Share::of(group, launched.place.node).map_err(Failure::error));
    let result = share.and_then(|share| body(&Rank { group: group.clone(), share, attempt }));
    let failure = match result {
        Ok(()) => return Ok(()),
        // All ranks stop in the same way.
        Err(Failure::Stopped(stop)) => return Err(Failure::Stopped(stop)),
        Err(failure) => failure,
    };
    let Some(group) = &group else { return Err(failure) };
    // The other ranks wait for this one: it reports its failure, unless the group has failed before.
    group.abort(group.own_cause(CauseKind::Error, failure.message()));
    let told = group.cause().is_some_and(|cause| report_cause(&cause));
    match failure {
        Failure::Error(_) if told => Err(Failure::Told(1)),
        other => Err(other),
    }
}

/// Runs `body` on the given number of ranks on this machine. `command` are the arguments that make a process of this
/// program one of them. In every case no temporary file remains in `folder`.
pub fn host(
    ranks: usize,
    config: &RunConfig,
    folder: Option<&Path>,
    command: impl FnOnce() -> Vec<OsString>,
    interrupts: Option<Interrupts>,
    body: impl Fn(&Rank) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    // The other ranks mark their lines.
    let output = if config.program.log_ranks { Output::RankZeroAndErrors } else { Output::RankZero };
    match (ranks, config.train.rank_kind()) {
        (1, _) => body(&Rank::alone()),
        (_, RankKind::Thread) => threads(ranks, options(&config.train), body),
        (_, RankKind::Process) => {
            // From here on the launcher handles signals, and stops the ranks.
            drop(interrupts);
            let result = processes(ranks, command(), output, folder);
            folder.into_iter().for_each(clear);
            result
        }
    }
}

fn threads(
    ranks: usize,
    options: GroupOptions,
    body: impl Fn(&Rank) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let run = |group: Group| {
        flight::warn(&group);
        let share = Share { local_rank: group.rank(), sharer: group.rank(), sharers: ranks };
        let rank = Rank { group: Some(group.clone()), share, attempt: 0 };
        match body(&rank) {
            Ok(()) => Ok(None),
            Err(Failure::Stopped(stop)) => Ok(Some(stop)),
            Err(failure) => Err(Arc::new(group.own_cause(CauseKind::Error, failure.message()))),
        }
    };
    let groups = Group::threads_with(ranks, options).map_err(Failure::error)?;
    // All ranks stop, for one reason.
    match run_threads(groups, run).map_err(Failure::error)?.into_iter().flatten().next() {
        Some(stop) => Err(Failure::Stopped(stop)),
        None => Ok(()),
    }
}

/// Names the file for NCCL's lines; `%p` stands for the number of the process.
const NCCL_DEBUG_FILE: &str = "NCCL_DEBUG_FILE";

/// Where the lines go that `NCCL_DEBUG` asks for, unless the user says where: otherwise they would be among the results. NCCL
/// makes no folder.
fn nccl_log(run: &Path) -> Option<PathBuf> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let logs = run.join("logs");
    let asked = is_set("NCCL_DEBUG") && !is_set(NCCL_DEBUG_FILE);
    (asked && std::fs::create_dir_all(&logs).is_ok()).then(|| logs.join("nccl-%p.log"))
}

/// How long ranks may take to save after Ctrl-C or SIGTERM: a step and a checkpoint of any size. A second Ctrl-C ends them, and so
/// does a scheduler when its own time is over.
const SAVING: Duration = Duration::from_secs(24 * 3600);

/// How long ranks may take to end after the death of one of them: a survivor saves what it has finished.
const SURVIVING: Duration = Duration::from_secs(30);

fn processes(ranks: usize, command: Vec<OsString>, output: Output, folder: Option<&Path>) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|error| failed!("cannot find this program's own file: {error}"))?;
    let job = Job::new(program, ranks).args(command);
    let mut job = Job { store: Store::Inherited, output, grace: SURVIVING, signal_grace: SAVING, ..job };
    if let Some(file) = folder.and_then(nccl_log) {
        job = job.variable(NCCL_DEBUG_FILE, file);
    }
    // The ranks write to the same streams.
    let _ = writer::finish();
    let step_before = folder.map_or(0, saved_step);
    let outcome = enmasse_launch::launch(&job).map_err(Failure::error)?;
    // The first rank may have ended without a chance to do so.
    screen::clear_after_others();
    if let Some(code) = stopped(&outcome) {
        // The first rank has printed it.
        return Err(Failure::Told(code));
    }
    if let (Some(folder), Some(record)) = (folder, FailureRecord::of_outcome(&outcome)) {
        record::keep(&record, folder);
    }
    if let Some(story) = story(&outcome) {
        say_block(story);
    }
    if let (Some(folder), Outcome::Failed(failure)) = (folder, &outcome)
        && let Some(line) = saved_line(failure, folder, step_before, saved_step(folder))
    {
        say(line);
    }
    Failure::told(exit_code(&outcome))
}

/// The step after which the run in a folder goes on; 0 if it has no checkpoint that can be read.
fn saved_step(folder: &Path) -> u64 {
    CheckpointMeta::load(&RunPaths::new(folder).last_checkpoint()).map_or(0, |meta| meta.optimizer_step)
}

/// What the ranks have saved, if the first one has failed: it cannot tell, and the other ranks tell only their logs.
fn saved_line(failure: &enmasse_launch::Failure, folder: &Path, before: u64, saved: u64) -> Option<String> {
    let is_new = failure.rank == Some(0) && saved > before;
    is_new.then(|| format!("saved after step {saved}; continue with: {}", resume_command(folder)))
}

/// The run's own exit codes, however a rank ended: 0, 1 error, 2 usage, 130 interrupted, 143 terminated.
fn exit_code(outcome: &Outcome) -> u8 {
    match outcome.exit_code() {
        code @ (0 | 2) => code,
        code if matches!(outcome, Outcome::Interrupted { .. }) => code,
        _ => 1,
    }
}

/// The exit code with which the ranks stopped as requested.
fn stopped(outcome: &Outcome) -> Option<u8> {
    let Outcome::Failed(failure) = outcome else { return None };
    stop_code(failure.status?, failure.cause.as_ref())
}

/// The same, by how the blamed rank ended. One that others blame for a cause may end in this way, too, since the launcher
/// then asks it to stop.
fn stop_code(status: Status, cause: Option<&Cause>) -> Option<u8> {
    let (Status::Code(code), None) = (status, cause) else { return None };
    [REQUEUED, INTERRUPTED, TERMINATED].into_iter().find(|known| i32::from(*known) == code)
}

/// One line if the ranks themselves or the kernel gave the reason; also the last lines of a rank that ended without a
/// reason, or that a signal ended.
fn story(outcome: &Outcome) -> Option<String> {
    let Outcome::Failed(failure) = outcome else { return outcome.report() };
    match (failure.status.zip(failure.end()), &failure.cause) {
        (Some((Status::Signal(_), end)), cause) => {
            let who = failure.rank.map_or("a rank".to_owned(), |rank| format!("rank {rank}"));
            let pid = failure.pid.map_or(String::new(), |pid| format!(" (process {pid})"));
            let during = cause.as_ref().filter(|cause| !cause.operation.is_empty());
            let during = during.map_or(String::new(), |cause| format!(" during {}", cause.operation));
            Some(format!("error: {who}{pid} {end}{during}{}", failure.last_lines()))
        }
        (_, Some(cause)) => Some(format!("error: {cause}")),
        (_, None) => outcome.report().map(|report| format!("error: {report}")),
    }
}

/// Only a killed writer leaves temporary files. Opening the folder as its next writer removes them.
fn clear(folder: &Path) {
    if folder.is_dir() {
        // The earlier failure is the one to report.
        let _ = RunFolder::open(RunPaths::new(folder), true, &attempt());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a job with a cause ended like one that was asked to stop, without a word.
    #[test]
    fn a_rank_that_is_blamed_has_not_stopped_as_requested() {
        let cause = Cause::new(CauseKind::Error, "the tag of record 7 is wrong").of_rank(0);
        let check = |status, cause, expected| assert_eq!(stop_code(status, cause), expected, "{status:?} {cause:?}");
        check(Status::Code(143), None, Some(143));
        check(Status::Code(75), None, Some(75));
        check(Status::Code(143), Some(&cause), None);
        check(Status::Code(1), None, None);
        check(Status::Signal(15), None, None);
    }
}
