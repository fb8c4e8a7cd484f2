//! Has Slurm requeue this job: `scontrol requeue`, which only one rank may call, once all have saved.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::SIGTERM;

use crate::failure::Failure;
use crate::output::say;
use crate::ranks::Rank;

/// Slurm's own commands give up on each unresponsive controller after some ten seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Has the job requeued by the first rank; returns on all ranks when that is done. Without a scheduler the exit code is
/// the only signal: a launcher may restart the ranks.
pub fn requeue(rank: &Rank) -> Result<(), Failure> {
    let mut problem = String::new();
    if rank.is_first()
        && let Some(job) = job(|name| std::env::var_os(name))
    {
        match scontrol(&job) {
            Ok(()) => say(format_args!("requeued: Slurm starts job {job} again, which resumes from here")),
            Err(reason) => {
                problem = format!("saved, but job {job} is not requeued: {reason}; submit it again with --resume")
            }
        }
    }
    match rank.agree(problem)? {
        problem if problem.is_empty() => Ok(()),
        problem => Err(Failure::Error(problem)),
    }
}

/// The job's name for `scontrol`: an array element is `ARRAY_ELEMENT`, since the last element's own number is that of
/// the array.
fn job(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let number = |name: &str| {
        let text = variable(name)?.into_string().ok()?;
        (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
    };
    match (number("SLURM_ARRAY_JOB_ID"), number("SLURM_ARRAY_TASK_ID")) {
        (Some(array), Some(element)) => Some(format!("{array}_{element}")),
        _ => number("SLURM_JOB_ID"),
    }
}

fn scontrol(job: &str) -> Result<(), String> {
    let mut command = Command::new("scontrol");
    command.args(["requeue", job]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Slurm reacts with SIGTERM to the job's processes, which is not meant for this one.
    command.process_group(0);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "scontrol is not installed, as in many containers".to_owned(),
        _ => format!("cannot start scontrol: {error}"),
    })?;
    let ended =
        ends(&child, Instant::now() + DEADLINE).and_then(|ended| if ended { child.wait().map(Some) } else { Ok(None) });
    match ended {
        Ok(Some(status)) if status.success() => Ok(()),
        // The signal is a result of the requeue.
        Ok(Some(status)) if status.signal() == Some(SIGTERM) => Ok(()),
        Ok(Some(status)) => {
            let mut said = String::new();
            if let Some(stderr) = child.stderr.take() {
                // Unreadable output is left out.
                let _ = stderr.take(1 << 10).read_to_string(&mut said);
            }
            Err(format!("scontrol requeue: {} ({status})", said.trim()))
        }
        Ok(None) => {
            // Not waited for: it may hang in the kernel, and this process ends soon.
            let _ = child.kill();
            Err(format!("scontrol requeue has not answered within {} s", DEADLINE.as_secs()))
        }
        Err(error) => Err(format!("cannot wait for scontrol: {error}")),
    }
}

/// Whether the process ends before the deadline.
pub fn ends(child: &Child, deadline: Instant) -> io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(ErrorKind::InvalidData)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_by_the_names_that_scontrol_takes() {
        let check = |variables: &[(&str, &str)], expected: Option<&str>| {
            let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            assert_eq!(job(find).as_deref(), expected, "{variables:?}");
        };
        check(&[], None);
        check(&[("SLURM_JOB_ID", "77")], Some("77"));
        check(&[("SLURM_JOB_ID", "")], None);
        check(&[("SLURM_JOB_ID", "7; rm")], None);
        let element = [("SLURM_JOB_ID", "70"), ("SLURM_ARRAY_JOB_ID", "70"), ("SLURM_ARRAY_TASK_ID", "4")];
        check(&element, Some("70_4"));
        check(&element[..2], Some("70"));
    }
}
