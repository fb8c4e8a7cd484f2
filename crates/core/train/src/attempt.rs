//! Identifies the start of a job that a process belongs to. A job that was requeued or restarted continues the run that
//! it began. An earlier start of it may still be alive somewhere, cut off, and may no longer write to that run.

use std::fmt;

/// One start of a job, among those that its scheduler and its launcher make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// The job's name, unique where it writes. If empty, the job has no name, and every start is a separate job.
    pub job: String,
    /// How often the scheduler had started the job before.
    pub requeues: usize,
    /// How often the launcher had started the job since then.
    pub restarts: usize,
}

impl Attempt {
    /// Whether the job was started before.
    pub fn is_repeated(&self) -> bool {
        (self.requeues, self.restarts) != (0, 0)
    }

    /// Whether this is an earlier start of the same job as `other`.
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
