//! Signals to the launcher as readable streams.
//!
//! At Ctrl-Z the launcher stops its ranks and then itself. It continues them when it is continued.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGSTOP, SIGTSTP, SIGTTOU, SIGUSR1, SIGUSR2};
use signal_hook::{SigId, low_level};

use crate::error::LaunchError;
use crate::job::Job;

/// Signals that are passed on to the ranks and do not end the job: schedulers use them to announce a time limit.
const PASSED_ON: [i32; 2] = [SIGUSR1, SIGUSR2];

/// Signals that keep being ignored if they were when the program started: `nohup` does so, and shells without job control.
const KEPT_IGNORED: [i32; 2] = [SIGHUP, SIGTSTP];

/// Listens for signals to the launcher from the first attempt of a job to the last, so that none is lost in between.
///
/// If SIGHUP or SIGTSTP was ignored when the program started, it stays ignored. Other signals are handled even if they
/// were ignored, since a script's background job, which has SIGINT ignored, should still stop when told to. Ranks get the
/// default action for every signal that is handled here.
///
/// The launcher and its ranks ignore SIGTTOU. The ranks are in process groups of their own, which a terminal takes for
/// background jobs. With `stty tostop` the first line of rank 0 would stop it while the others wait. So `tostop` has no
/// effect on a launched job: its output goes through.
pub(crate) struct Signals {
    pub(crate) streams: Vec<SignalStream>,
    /// Called with the first request to stop, as soon as it is handled.
    pub(crate) first_request: Option<Box<dyn FnOnce(i32)>>,
    /// That request.
    requested: Option<i32>,
}

impl Signals {
    /// Starts listening for the signals of `job`.
    pub(crate) fn watch(job: &Job) -> Result<Self, LaunchError> {
        let ignored = fs::read_to_string("/proc/self/status").map_or(0, |status| ignored_signals(&status));
        let mut numbers: Vec<i32> = job.stop_signals.iter().chain(&PASSED_ON).copied().collect();
        numbers.push(SIGTSTP);
        numbers.sort_unstable();
        numbers.dedup();
        let is_kept = |number: i32| KEPT_IGNORED.contains(&number) && ignored >> (number - 1) & 1 == 1;
        let heeded = numbers.into_iter().filter(|&number| !is_kept(number));
        ignore(SIGTTOU);
        let streams = heeded.map(SignalStream::new).collect::<io::Result<_>>();
        let streams = streams.map_err(LaunchError::kernel("handle signals"))?;
        Ok(Signals { streams, first_request: None, requested: None })
    }

    /// Records a request to stop. Reports the first one.
    pub(crate) fn request(&mut self, signal: i32) {
        self.requested.get_or_insert(signal);
        if let Some(tell) = self.first_request.take() {
            tell(signal);
        }
    }

    /// Whether the job was asked to stop, in any attempt or after it.
    pub(crate) fn has_request(&mut self) -> bool {
        if let Some(signal) = self.pending() {
            self.request(signal);
        }
        self.requested.is_some()
    }

    /// A request to stop that arrived while nothing was running. A request to suspend is heeded at once.
    pub(crate) fn pending(&mut self) -> Option<i32> {
        let arrived = |stream: &mut SignalStream| (stream.arrivals() > 0).then_some((stream.number, stream.stops()));
        let arrived: Vec<_> = self.streams.iter_mut().filter_map(arrived).collect();
        if arrived.iter().any(|&(number, _)| number == SIGTSTP) {
            suspend_this_process();
        }
        arrived.into_iter().rev().find_map(|(number, stops)| stops.then_some(number))
    }
}

/// Stops this process; returns once it is continued.
pub(crate) fn suspend_this_process() {
    // To the calling thread, so that no instruction of it comes after the stop. It cannot fail for a valid signal.
    let _ = low_level::raise(SIGSTOP);
}

/// Ignores a signal, in this process and in those that it starts from now on.
fn ignore(number: i32) {
    unsafe extern "C" {
        /// POSIX. A handler is an address; 1 is SIG_IGN on Linux.
        fn signal(number: std::ffi::c_int, handler: usize) -> usize;
    }
    const SIG_IGN: usize = 1;
    // SAFETY: ignoring a signal runs no code. It fails for invalid numbers only.
    unsafe { signal(number, SIG_IGN) };
}

/// The set of ignored signals in the text of a process's `status` file: bit n-1 is signal n.
fn ignored_signals(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// One signal: its handler writes a byte for each arrival.
pub(crate) struct SignalStream {
    pub(crate) number: i32,
    pub(crate) stream: UnixStream,
    registration: SigId,
}

impl SignalStream {
    fn new(number: i32) -> io::Result<Self> {
        let (stream, sender) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let registration = low_level::pipe::register(number, sender)?;
        Ok(SignalStream { number, stream, registration })
    }

    /// Whether this signal asks the launcher to stop.
    pub(crate) fn stops(&self) -> bool {
        !PASSED_ON.contains(&self.number) && self.number != SIGTSTP
    }

    /// The number of arrivals since the last call.
    pub(crate) fn arrivals(&mut self) -> usize {
        let mut bytes = [0; 64];
        let mut count = 0;
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return count,
                Ok(read) => count += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return count,
            }
        }
    }
}

impl Drop for SignalStream {
    /// The handler remains and does nothing, so a process that continues after a launch ignores these signals.
    fn drop(&mut self) {
        low_level::unregister(self.registration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        let check = |status: &str, expected: &[i32]| {
            let mask = ignored_signals(status);
            let found: Vec<i32> = (1..=64).filter(|number| mask >> (number - 1) & 1 == 1).collect();
            assert_eq!(found, expected, "{status}");
        };
        check("", &[]);
        check("Name:\tsh\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000000000\n", &[]);
        check("SigIgn:\t0000000000000001\n", &[1]);
        check("SigIgn:\t8000000000001006\nSigCgt:\t0000000000000001\n", &[2, 3, 13, 64]);
        check("SigIgn:\tnone\n", &[]);
    }
}
