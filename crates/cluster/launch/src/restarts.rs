//! A job from its first attempt to its last.

use crate::error::LaunchError;
use crate::job::Job;
use crate::logs::random_name;
use crate::outcome::{Failure, Outcome};
use crate::signals::Signals;
use crate::workers::Workers;

/// Starts the job's ranks and waits until all of them have ended. Restarts them as often as the job permits.
///
/// # Errors
/// The ranks cannot be started or watched; those that have been started are stopped. Ranks that fail are no error, but
/// an [`Outcome`].
pub fn launch(job: &Job) -> Result<Outcome, LaunchError> {
    launch_telling(job, |_, _| {})
}

/// The same. Before each further attempt, passes the failure and the attempt's number (from 1) to `tell`. A request to stop that
/// arrives while a failure is handled makes this failure the last.
///
/// # Errors
/// Those of [`launch`].
pub fn launch_telling(job: &Job, mut tell: impl FnMut(&Failure, usize)) -> Result<Outcome, LaunchError> {
    let mut signals = Signals::watch(job)?;
    let run_id = job.run_id.clone().map_or_else(new_run_id, Ok)?;
    let mut attempt = 0;
    loop {
        let outcome = Workers::spawn(job, &job.assignment(attempt, &run_id)?)?.supervise(&mut signals, None)?;
        match outcome {
            Outcome::Failed(failure) if attempt < job.max_restarts && !signals.has_request() => {
                attempt += 1;
                tell(&failure, attempt);
            }
            outcome => return Ok(outcome),
        }
    }
}

/// A name that no other job has.
///
/// # Errors
/// The kernel gives no random numbers.
pub fn new_run_id() -> Result<String, LaunchError> {
    let random = random_name().map_err(LaunchError::kernel("draw random numbers"))?;
    Ok(format!("enmasse-{random}"))
}
