//! Which start of a job a process belongs to. A job that was requeued or restarted goes on with the run that it began, and an
//! earlier start of it that is still alive somewhere, cut off, may not write to that run any more.

use std::fmt;

/// One start of a job, out of those that its scheduler and its launcher make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// The job's name, unique where it writes; empty where it has none, and every start is a job of its own.
    pub job: String,
    /// How often the scheduler had started it before.
    pub requeues: usize,
    /// How often its launcher had, since then.
    pub restarts: usize,
}

impl Attempt {
    /// Whether the job was started before.
    pub fn is_repeated(&self) -> bool {
        (self.requeues, self.restarts) != (0, 0)
    }

    /// Whether this is an earlier start of the job that `other` is of.
    pub fn is_before(&self, other: &Attempt) -> bool {
        let counts = |attempt: &Attempt| (attempt.requeues, attempt.restarts);
        !self.job.is_empty() && self.job == other.job && counts(self) < counts(other)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attempt { job, requeues, restarts } = self;
        match (job.is_empty(), restarts) {
            (true, _) => f.write_str("another run"),
            (false, 0) => write!(f, "start {} of {job}", requeues + 1),
            (false, _) => write!(f, "start {} of {job}, restarted {restarts} times", requeues + 1),
        }
    }
}
