//! The one start and the one end of MPI in this process, and what must be over before the end.
//!
//! MPI starts with the first group that needs it, and ends with the last one that does. Its end waits for all processes, so
//! ranks first say goodbye to each other: each in every group, and without waiting there. After a failure MPI does not end,
//! and the process leaves without it.

use std::io;
use std::mem::{forget, replace};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::error::MpiError;
use super::family::MpiFamily;
use super::sys::MAX_TAG;
use super::{Runtime, load};
use crate::failure::Failure;
use crate::locks::lock;

/// How long a rank that waits for MPI's start does so before it looks whether the group has failed.
const LOOK: Duration = Duration::from_millis(50);
/// How long a rank sleeps between two looks for the goodbyes of others.
const NAP: Duration = Duration::from_millis(1);
/// How long MPI may take to end once all ranks have said goodbye. Then the process leaves without it.
const END: Duration = Duration::from_secs(10);

/// MPI in this process.
pub(crate) enum Process {
    Unused,
    Started(Started),
    /// MPI has ended, or its start has failed or not ended.
    Over,
}

static PROCESS: Mutex<Process> = Mutex::new(Process::Unused);

pub(crate) struct Started {
    runtime: Arc<dyn Runtime>,
    /// This process's number, and the number of processes.
    numbers: (usize, usize),
    /// No group of this process has a tag from here on.
    next_tag: i32,
    /// Transports that send messages.
    users: usize,
    /// The last messages of those that have closed; `None` once one closed in the middle of an operation.
    partings: Option<Vec<Box<dyn Parting>>>,
    /// Ends MPI.
    end: Sender<()>,
    ended: Receiver<()>,
}

/// The last messages of a transport. Dropping it keeps its memory for ever.
pub(crate) trait Parting: Send {
    /// Whether all have ended. It is not asked again then.
    fn is_over(&mut self) -> io::Result<bool>;
}

impl Process {
    /// The library in use, or that of a family, which is loaded.
    pub(crate) fn runtime(family: MpiFamily) -> Result<Arc<dyn Runtime>, MpiError> {
        match &*lock(&PROCESS) {
            Process::Started(started) => Ok(started.runtime.clone()),
            Process::Unused => load(family),
            Process::Over => Err(MpiError::Over),
        }
    }

    /// Starts MPI in this process, together with all others, unless that has happened. Returns this process's number and
    /// their number. `go_on` has an error once waiting for them has become pointless.
    pub(crate) fn start<E: From<MpiError>>(
        runtime: &Arc<dyn Runtime>,
        go_on: impl Fn() -> Result<(), E>,
    ) -> Result<(usize, usize), E> {
        {
            let mut process = lock(&PROCESS);
            match &*process {
                Process::Started(started) => return Ok(started.numbers),
                Process::Over => return Err(MpiError::Over.into()),
                // Unless the start ends well.
                Process::Unused => *process = Process::Over,
            }
        }
        let (told, outcome) = channel();
        let (end, ending) = channel();
        let (tell, ended) = channel();
        let of_thread = runtime.clone();
        let thread = std::thread::Builder::new().name("enmasse-mpi".into()).spawn(move || {
            let numbers = of_thread.start();
            let has_started = numbers.is_ok();
            // Nobody hears either word if the rank did not wait.
            let _ = told.send(numbers);
            if has_started && ending.recv().is_ok() {
                of_thread.end();
                let _ = tell.send(());
            }
        });
        thread.map_err(MpiError::Thread)?;
        let numbers = loop {
            match outcome.recv_timeout(LOOK) {
                Ok(numbers) => break numbers?,
                Err(RecvTimeoutError::Timeout) => go_on()?,
                Err(RecvTimeoutError::Disconnected) => return Err(MpiError::Over.into()),
            }
        };
        let runtime = runtime.clone();
        let partings = Some(vec![]);
        *lock(&PROCESS) = Process::Started(Started { runtime, numbers, next_tag: 0, users: 0, partings, end, ended });
        Ok(numbers)
    }

    /// The least tag that no group of this process has had.
    pub(crate) fn next_tag() -> i32 {
        match &*lock(&PROCESS) {
            Process::Started(started) => started.next_tag,
            Process::Unused | Process::Over => 0,
        }
    }

    /// Takes a tag that no member of a new group has had.
    pub(crate) fn take_tag(tag: i32) -> Result<i32, MpiError> {
        match &mut *lock(&PROCESS) {
            Process::Started(started) if tag <= MAX_TAG => started.next_tag = tag + 1,
            Process::Started(_) => return Err(MpiError::Tags),
            Process::Unused | Process::Over => return Err(MpiError::Over),
        }
        Ok(tag)
    }

    /// Counts a transport that sends messages.
    pub(super) fn enter() {
        if let Process::Started(started) = &mut *lock(&PROCESS) {
            started.users += 1;
        }
    }

    /// A transport closes, with its last messages, or without if it did so in the middle of an operation. The last one to
    /// close ends MPI, once all ranks have come as far, or the group has failed, or `timeout` is over.
    pub(super) fn leave(parting: Option<Box<dyn Parting>>, failure: &Failure, timeout: Duration) {
        let mut process = lock(&PROCESS);
        let Process::Started(started) = &mut *process else { return };
        started.users -= 1;
        match (&mut started.partings, parting) {
            (Some(partings), Some(parting)) => partings.push(parting),
            // Kept for ever: MPI may still write to their memory.
            (partings, _) => forget(partings.take()),
        }
        if started.users == 0
            && let Process::Started(started) = replace(&mut *process, Process::Over)
        {
            drop(process);
            started.finish(failure, timeout);
        }
    }
}

impl Started {
    fn finish(self, failure: &Failure, timeout: Duration) {
        let began = Instant::now();
        let Some(mut partings) = self.partings else { return };
        while let Some(parting) = partings.last_mut() {
            match parting.is_over() {
                Ok(true) => drop(partings.pop()),
                Ok(false) if !failure.is_stopping() && began.elapsed() < timeout => std::thread::sleep(NAP),
                Ok(false) | Err(_) => return forget(partings),
            }
        }
        // The thread is there until it has heard this, and a late end is nobody's any more.
        let _ = self.end.send(()).map(|()| self.ended.recv_timeout(END));
    }
}
