//! Faults in a running job: finds the moment among its system calls, and acts.

use std::fs::read;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, Shutdown, getpeername, shutdown};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::fault::{Act, Calls, Fault, Place, Victims};
use crate::held_calls::{Answer, Call, status};

/// The shortest heartbeat that the program takes, in seconds; for faults that are checked by it.
pub const HEARTBEAT: i64 = 1;

/// Calls that take space on a disk.
const FILLING: [&str; 6] = ["write", "pwrite64", "writev", "mkdir", "mkdirat", "linkat"];

/// The answers to a job's calls.
pub struct Injector {
    pub run: PathBuf,
    pub data: PathBuf,
    /// Whether ranks share no memory, so that they talk over TCP as on several machines.
    pub tcp: bool,
    pub fault: Option<Fault>,
    /// The calls that were made so far.
    pub calls: Calls,
    /// The calls on files of the run folder, in order: name and file.
    pub writes: Vec<(&'static str, PathBuf)>,
    /// The call at which the fault happened.
    pub hit: Option<String>,
    is_full: bool,
    /// Calls of ranks on the run folder since another rank was killed.
    since: u64,
}

impl Injector {
    pub fn new(run: PathBuf, data: PathBuf, tcp: bool, fault: Option<Fault>) -> Self {
        let calls = Calls::default();
        let writes = vec![];
        Injector { run, data, tcp, fault, calls, writes, hit: None, is_full: false, since: 0 }
    }

    pub fn answer(&mut self, call: &Call) -> Answer {
        if call.name == "memfd_create" {
            let is_shared = !self.tcp || call.process().and_then(rank_of).is_none();
            return if is_shared { Answer::Continue } else { Answer::Fail(Errno::NOSYS) };
        }
        let Some(object) = call.object() else { return Answer::Continue };
        if self.is_full && object.starts_with(&self.run) && FILLING.contains(&call.name) {
            return Answer::Fail(Errno::NOSPC);
        }
        if let Some(answer) = self.kill_survivor(call, &object) {
            return answer;
        }
        let Some((process, rank, place)) = self.place(call, &object) else { return Answer::Continue };
        let count = self.calls.entry((rank, place)).or_default();
        *count += 1;
        if place == Place::Run {
            self.writes.push((call.name, object.clone()));
        }
        let is_due = |Fault { moment, .. }: &Fault| {
            (moment.rank, moment.place) == (rank, place) && moment.nth <= *count && self.hit.is_none()
        };
        let Some(Fault { act, .. }) = self.fault.filter(is_due) else { return Answer::Continue };
        let Some(answer) = self.act(act, call, process) else { return Answer::Continue };
        self.hit = Some(format!("{} of {}", call.name, object.display()));
        answer
    }

    /// Kills a rank that writes in the place of one that was killed before.
    fn kill_survivor(&mut self, call: &Call, object: &Path) -> Option<Answer> {
        let Some(Fault { act: Act::KillSurvivorToo { nth }, .. }) = self.fault else { return None };
        let is_saving =
            self.hit.is_some() && object.starts_with(&self.run) && !object.starts_with(self.run.join("logs"));
        let process = call.process().filter(|&process| is_saving && rank_of(process).is_some())?;
        self.since += 1;
        (self.since == nth).then(|| {
            send(process, Signal::KILL);
            Answer::Nothing
        })
    }

    /// The rank that makes a call, and what it is about, if moments are counted in it.
    fn place(&self, call: &Call, object: &Path) -> Option<(i32, usize, Place)> {
        let place = if object.starts_with(self.run.join("logs")) {
            Place::Log
        } else if object.starts_with(&self.run) {
            Place::Run
        } else if object.starts_with(&self.data) && call.name == "openat" {
            Place::Images
        } else if object.to_str().is_some_and(|name| name.starts_with("socket:[")) {
            Place::Link
        } else {
            return None;
        };
        let process = call.process()?;
        let rank = rank_of(process)?;
        match place {
            Place::Run if rank != 0 => None,
            Place::Link if !is_tcp(call) => None,
            Place::Images | Place::Run | Place::Log | Place::Link => Some((process, rank, place)),
        }
    }

    /// Lets the fault happen at a call; `None` if this call cannot have it.
    fn act(&mut self, act: Act, call: &Call, process: i32) -> Option<Answer> {
        let launcher = status(process, "PPid")?;
        let ranks = children(launcher);
        let job = || ranks.iter().copied().chain([launcher]);
        match act {
            Act::Kill(Victims::Rank) | Act::KillSurvivorToo { .. } => send(process, Signal::KILL),
            Act::Kill(Victims::Ranks) => ranks.iter().for_each(|&rank| send(rank, Signal::KILL)),
            Act::Kill(Victims::Launcher) => send(launcher, Signal::KILL),
            Act::Kill(Victims::Job) => job().for_each(|process| send(process, Signal::KILL)),
            Act::Ask { signal, everybody: true } => job().for_each(|process| send(process, signal)),
            Act::Ask { signal, everybody: false } => send(launcher, signal),
            Act::Hang => send(process, Signal::STOP),
            Act::Freeze => {
                job().for_each(|process| send(process, Signal::STOP));
                let ended = pidfd_open(Pid::from_raw(launcher)?, PidfdFlags::empty()).ok()?;
                let freeze = Timespec { tv_sec: 2 * HEARTBEAT, tv_nsec: 0 };
                // A job that stands still does not end meanwhile.
                let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&freeze));
                job().for_each(|process| send(process, Signal::CONT));
            }
            Act::Fail(error) => return Some(Answer::Fail(error)),
            Act::FillDisk => {
                self.is_full = FILLING.contains(&call.name);
                return self.is_full.then_some(Answer::Fail(Errno::NOSPC));
            }
            Act::AskAndFillDisk => {
                self.is_full = true;
                send(launcher, Signal::TERM);
            }
            Act::Shorten => {
                let data = call.data().filter(|data| call.name == "write" && data.len() > 1)?;
                return Some(Answer::Return(rustix::io::write(call.descriptor()?, &data[..data.len() / 2]).ok()?));
            }
            Act::Cut => shutdown(call.descriptor()?, Shutdown::Both).ok()?,
            Act::Flip { bit } => {
                let mut data = call.data().filter(|data| !data.is_empty())?;
                let bit = bit % (8 * data.len() as u64);
                data[(bit / 8) as usize] ^= 1 << (bit % 8);
                return Some(Answer::Return(rustix::io::write(call.descriptor()?, &data).ok()?));
            }
        }
        Some(match act {
            // An answer could still let a killed caller make the call.
            Act::Kill(Victims::Rank | Victims::Ranks | Victims::Job) | Act::KillSurvivorToo { .. } => Answer::Nothing,
            _ => Answer::Continue,
        })
    }
}

/// The rank that a process is.
fn rank_of(process: i32) -> Option<usize> {
    let environment = read(format!("/proc/{process}/environ")).ok()?;
    let value = environment.split(|&byte| byte == 0).find_map(|variable| variable.strip_prefix(b"RANK="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn is_tcp(call: &Call) -> bool {
    let Some(socket) = call.descriptor() else { return false };
    socket_domain(&socket) == Ok(AddressFamily::INET) && getpeername(&socket).is_ok()
}

fn children(process: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Sends a signal to a process, which may be gone.
pub fn send(process: i32, signal: Signal) {
    if let Some(process) = Pid::from_raw(process) {
        let _ = kill_process(process, signal);
    }
}
