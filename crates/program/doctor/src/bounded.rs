//! Runs other programs, and kernel calls that may hang, to their end or to a deadline.

use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

/// Bytes kept of a stream; the rest is read and dropped.
const KEPT: u64 = 1 << 20;
/// A stream ends with its program, unless one of the program's children keeps it open.
const LINGER: Duration = Duration::from_secs(1);

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// `None` if it did not end in time, and was killed.
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Whether the program succeeded.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The last line with text; standard error takes precedence over standard output.
    pub fn last_line(&self) -> Option<&str> {
        [&self.stderr, &self.stdout].into_iter().find_map(|text| text.lines().rfind(|line| !line.trim().is_empty()))
    }
}

/// Runs a program, and kills it after `time`.
pub fn run(command: &mut Command, time: Duration) -> io::Result<Ended> {
    let deadline = Instant::now() + time;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let readers = read(child.stdout.take()).and_then(|stdout| Ok((stdout, read(child.stderr.take())?)));
    let (stdout, stderr) = match readers {
        Ok(readers) => readers,
        Err(error) => {
            // It may have ended just now.
            let _ = child.kill();
            child.wait()?;
            return Err(error);
        }
    };
    let ended = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH).and_then(|pid| {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut events, Some(&left)) {
                Err(Errno::INTR) => {}
                other => return other.map(|ready| ready > 0),
            }
        }
    });
    if !matches!(ended, Ok(true)) {
        // It may have ended just now.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let text = |stream: Receiver<String>| stream.recv_timeout(LINGER).unwrap_or_default();
    Ok(Ended { status: ended?.then_some(status), stdout: text(stdout), stderr: text(stderr) })
}

/// The result of `call`; `None` if it takes longer than `time`, like a call to a file server that is gone. Its thread
/// is then left behind, and ends with the process. If no thread can be started, the call runs here and takes as long as
/// it takes.
pub fn within<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(time: Duration, call: F) -> Option<T> {
    let (calls, called) = channel::<F>();
    let (sender, receiver) = channel();
    let thread = Builder::new().spawn(move || {
        if let Ok(call) = called.recv() {
            // The receiver may be gone.
            let _ = sender.send(call());
        }
    });
    match thread {
        Ok(_) => calls.send(call).ok().and_then(|()| receiver.recv_timeout(time).ok()),
        Err(_) => Some(call()),
    }
}

/// Reads a stream to its end, so that its writer never blocks.
fn read(stream: Option<impl Read + Send + 'static>) -> io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    if let Some(mut stream) = stream {
        Builder::new().spawn(move || {
            let mut bytes = Vec::new();
            // Data read before an error counts.
            let _ = stream.by_ref().take(KEPT).read_to_end(&mut bytes);
            let _ = io::copy(&mut stream, &mut io::sink());
            // The receiver may have given up.
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        })?;
    }
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, time: Duration) -> Ended {
        run(Command::new("sh").args(["-c", script]), time).unwrap()
    }

    #[test]
    fn ends() {
        const LONG: Duration = Duration::from_secs(60);
        let ended = shell("echo a; echo b; echo; echo c >&2", LONG);
        assert!(ended.is_success());
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str(), ended.last_line()), ("a\nb\n\n", "c\n", Some("c")));
        assert_eq!(shell("echo a; echo b; echo", LONG).last_line(), Some("b"));
        assert_eq!(shell("true", LONG).last_line(), None);
        let ended = shell("exit 3", LONG);
        assert!(!ended.is_success());
        assert_eq!(ended.status.unwrap().code(), Some(3));
        assert!(run(&mut Command::new("/nowhere/program"), LONG).is_err());
        // More than is kept, and more than a pipe holds.
        let ended = shell("head -c 3000000 /dev/zero", LONG);
        assert_eq!((ended.is_success(), ended.stdout.len() as u64), (true, KEPT));
    }

    #[test]
    fn hanging_calls_are_abandoned() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let (held, hang) = channel::<()>();
        assert_eq!(within(Duration::from_millis(50), move || hang.recv().is_ok()), None);
        drop(held);
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let ended = shell("echo begun; exec tail -f /dev/null", Duration::from_millis(200));
        assert!(ended.status.is_none() && !ended.is_success());
    }
}
