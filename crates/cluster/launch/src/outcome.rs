//! The outcome of a job, as a report and as an exit code.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use enmasse_comm::{Cause, CauseKind};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};
use signal_hook::low_level::signal_name;

use crate::job::Output;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// A signal with this number, which the launcher did not send, ended it.
    Signal(i32),
    /// The launcher stopped it, because another rank had failed or the user interrupted.
    Stopped,
    /// It has not ended: even SIGKILL had no effect in time, so it hangs inside the kernel.
    Unkillable,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Status::Code(0) => f.write_str("exited with code 0 while others still ran"),
            Status::Code(code) => write!(f, "exited with code {code}"),
            Status::Signal(signal) => {
                write!(f, "was killed by signal {signal}")?;
                signal_name(signal).map_or(Ok(()), |name| write!(f, " ({name})"))
            }
            Status::Stopped => f.write_str("was stopped by the launcher"),
            Status::Unkillable => f.write_str("cannot be killed: it hangs inside the kernel"),
        }
    }
}

/// The first failure of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank to blame; `None` if the ranks reported a cause that names no rank of this job.
    pub rank: Option<usize>,
    /// Its number on this node, if it runs here.
    pub local_rank: Option<usize>,
    /// The machine it ran on; empty if unknown.
    pub host: String,
    /// Its process.
    pub pid: Option<u32>,
    /// How the process ended.
    pub status: Option<Status>,
    /// The root cause, if a rank reported one.
    pub cause: Option<Cause>,
    /// The last lines of the rank's standard error, if they went through the launcher or to a file.
    pub stderr: Vec<String>,
    /// The traceback from the rank's error file, if it wrote one.
    pub traceback: Vec<String>,
    /// Whether the kernel killed it because memory ran out; `None` if that is possible but unknown.
    pub for_memory: Option<bool>,
    /// The folder of its log files, if any.
    pub logs: Option<PathBuf>,
    pub(crate) output: Output,
}

impl Failure {
    /// How the rank ended, in words; `None` if unknown.
    pub fn end(&self) -> Option<String> {
        let status = self.status?;
        // The kernel's out-of-memory killer leaves no trace in the process itself.
        Some(match (status, self.for_memory) {
            (Status::Signal(SIGKILL), Some(true)) => {
                "was killed by the kernel for memory: signal 9 (SIGKILL)".to_owned()
            }
            (Status::Signal(SIGKILL), None) => format!("{status}, possibly by the kernel for memory"),
            _ => status.to_string(),
        })
    }

    /// The last lines of the rank's standard error under a heading, each on its own line; empty if there are none.
    pub fn last_lines(&self) -> String {
        let (heading, lines) = match (self.stderr.is_empty(), self.traceback.is_empty()) {
            (false, _) => ("\n  last lines of its standard error:", &self.stderr),
            (true, false) => ("\n  its error file says:", &self.traceback),
            (true, true) => return String::new(),
        };
        lines.iter().fold(heading.to_owned(), |text, line| text + "\n  | " + line)
    }
}

/// Several lines: the cause, the rank and how it ended, and its last output. Where a signal ended the rank, that is the cause, and the
/// others tell only that it is gone.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_killed = matches!(self.status, Some(Status::Signal(_)));
        let tells_end = |cause: &&Cause| is_killed && cause.kind == CauseKind::Exited;
        if let Some(cause) = self.cause.as_ref().filter(|cause| !tells_end(cause)) {
            write!(f, "{cause}\n  ")?;
        }
        match self.rank {
            Some(rank) => write!(f, "rank {rank}")?,
            None => f.write_str("the job")?,
        }
        if !self.host.is_empty() {
            write!(f, " on host {}", self.host)?;
        }
        if let (Some(local_rank), Some(pid)) = (self.local_rank, self.pid) {
            write!(f, " (local rank {local_rank}, process {pid})")?;
        }
        write!(f, " {}", self.end().as_deref().unwrap_or("failed"))?;
        if let Some(cause) = self.cause.as_ref().filter(tells_end) {
            write!(f, "\n  {cause}")?;
        }
        if let Some(logs) = &self.logs {
            write!(f, "\n  log files: {}", logs.display())?;
        }
        f.write_str(&self.last_lines())
    }
}

/// Ranks that had not ended after a request to stop and the time for it, and were killed. What they would have saved is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Which, in order.
    pub ranks: Vec<usize>,
    /// The time that they had.
    pub grace: Duration,
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<String> = self.ranks.iter().map(usize::to_string).collect();
        let (plural, were) = if ranks.len() == 1 { ("", "was") } else { ("s", "were") };
        let seconds = self.grace.as_secs_f64();
        write!(f, "rank{plural} {} had not ended after {seconds} s and {were} killed", ranks.join(", "))
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every rank exited with code 0.
    Done,
    /// A rank failed, and the others were stopped.
    Failed(Box<Failure>),
    /// The launcher was asked to stop, and stopped every rank.
    Interrupted {
        /// By this signal.
        signal: i32,
        /// The ranks that did not stop in time.
        overdue: Option<Overdue>,
    },
    /// The caller asked for the ranks' end, to start others.
    Recalled,
}

/// Exit code for an invalid command line.
const USAGE: i32 = 2;

impl Outcome {
    /// The exit code: 0 if done; the failing rank's own, or 128 + the signal that ended it; 128 + the signal that
    /// stopped the launcher; 1 if there is no such code.
    pub fn exit_code(&self) -> u8 {
        let of_signal = |signal: i32| u8::try_from(signal).ok().and_then(|signal| signal.checked_add(128));
        let code = match self {
            Outcome::Done | Outcome::Recalled => Some(0),
            Outcome::Failed(failure) => match failure.status {
                // A rank that exited too early, even with success, made the others fail.
                Some(Status::Code(code)) => u8::try_from(code).ok().filter(|code| *code > 0),
                Some(Status::Signal(signal)) => of_signal(signal),
                Some(Status::Stopped | Status::Unkillable) | None => None,
            },
            Outcome::Interrupted { signal, .. } => of_signal(*signal),
        };
        code.unwrap_or(1)
    }

    /// The text for standard error, if anything remains to be said.
    pub fn report(&self) -> Option<String> {
        match self {
            Outcome::Done => None,
            // Every enmasse rank refuses an invalid command line with the same message, which should appear once. Rank
            // 0 has already printed it on the terminal; another rank's is in its last lines.
            Outcome::Failed(failure) if failure.status == Some(Status::Code(USAGE)) => match failure.output {
                Output::RankZero => Some(failure.stderr.join("\n")).filter(|lines| !lines.is_empty()),
                Output::RankZeroAndErrors => None,
                Output::All => Some(failure.to_string()),
            },
            Outcome::Failed(failure) => Some(failure.to_string()),
            Outcome::Interrupted { signal, overdue } => {
                let request = match *signal {
                    SIGINT => "interrupted".to_owned(),
                    SIGTERM => "terminated".to_owned(),
                    other => format!("stopped by {}", signal_name(other).unwrap_or("a signal")),
                };
                let overdue = overdue.as_ref().map_or(String::new(), |overdue| format!("; {overdue}"));
                Some(format!("{request}: all ranks are stopped{overdue}"))
            }
            Outcome::Recalled => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::SIGHUP;

    fn failure(rank: usize, status: Status, stderr: &[&str], output: Output) -> Failure {
        let stderr = stderr.iter().map(|line| line.to_string()).collect();
        Failure {
            rank: Some(rank),
            local_rank: Some(rank),
            host: "h".to_owned(),
            pid: Some(77),
            status: Some(status),
            cause: None,
            stderr,
            traceback: Vec::new(),
            for_memory: None,
            logs: None,
            output,
        }
    }

    #[test]
    fn reports_and_codes() {
        let check = |outcome: Outcome, code: u8, report: Option<&str>| {
            assert_eq!((outcome.exit_code(), outcome.report().as_deref()), (code, report));
        };
        let failed = |failure| Outcome::Failed(Box::new(failure));
        check(Outcome::Done, 0, None);
        let interrupted = |signal| Outcome::Interrupted { signal, overdue: None };
        check(interrupted(SIGINT), 130, Some("interrupted: all ranks are stopped"));
        check(interrupted(SIGHUP), 129, Some("stopped by SIGHUP: all ranks are stopped"));
        check(interrupted(SIGTERM), 143, Some("terminated: all ranks are stopped"));
        let killed = |ranks: &[usize], millis| {
            let overdue = Overdue { ranks: ranks.to_vec(), grace: Duration::from_millis(millis) };
            Outcome::Interrupted { signal: SIGTERM, overdue: Some(overdue) }
        };
        let report = "terminated: all ranks are stopped; rank 0 had not ended after 30 s and was killed";
        check(killed(&[0], 30_000), 143, Some(report));
        let report = "terminated: all ranks are stopped; ranks 0, 2 had not ended after 0.5 s and were killed";
        check(killed(&[0, 2], 500), 143, Some(report));
        check(
            failed(failure(2, Status::Signal(9), &[], Output::RankZero)),
            137,
            Some(
                "rank 2 on host h (local rank 2, process 77) was killed by signal 9 (SIGKILL), possibly by the kernel for memory",
            ),
        );
        check(
            failed(failure(1, Status::Code(3), &["a", "b"], Output::All)),
            3,
            Some(
                "rank 1 on host h (local rank 1, process 77) exited with code 3\n  last lines of its standard error:\n  | a\n  | b",
            ),
        );
        check(
            failed(failure(0, Status::Stopped, &[], Output::All)),
            1,
            Some("rank 0 on host h (local rank 0, process 77) was stopped by the launcher"),
        );
        check(failed(failure(0, Status::Code(2), &[], Output::RankZero)), 2, None);
        check(failed(failure(1, Status::Code(2), &["error: no"], Output::RankZero)), 2, Some("error: no"));
        check(failed(failure(1, Status::Code(2), &["error: no"], Output::RankZeroAndErrors)), 2, None);
        check(
            failed(failure(1, Status::Code(2), &["error: no"], Output::All)),
            2,
            Some(
                "rank 1 on host h (local rank 1, process 77) exited with code 2\n  last lines of its standard error:\n  | error: no",
            ),
        );
        let place = "rank 1 on host h (local rank 1, process 77)";
        let kernel = |for_memory| Failure { for_memory, ..failure(1, Status::Signal(9), &[], Output::All) };
        let by_kernel = format!("{place} was killed by the kernel for memory: signal 9 (SIGKILL)");
        check(failed(kernel(Some(true))), 137, Some(&by_kernel));
        check(failed(kernel(Some(false))), 137, Some(&format!("{place} was killed by signal 9 (SIGKILL)")));
        let cause = Some(Cause::new(CauseKind::Exited, "connection closed").of_rank(1).on_host("h"));
        let logs = Some("/logs/1".into());
        let named =
            Failure { cause, logs, traceback: vec!["at 7".into()], ..failure(1, Status::Signal(11), &[], Output::All) };
        check(
            failed(named),
            139,
            Some(&format!(
                "{place} was killed by signal 11 (SIGSEGV)\n  rank 1 on host h exited: connection closed\n  \
                 log files: /logs/1\n  its error file says:\n  | at 7"
            )),
        );
        let elsewhere = Failure {
            rank: None,
            local_rank: None,
            pid: None,
            status: None,
            ..failure(1, Status::Stopped, &[], Output::All)
        };
        check(failed(elsewhere), 1, Some("the job on host h failed"));
    }
}
