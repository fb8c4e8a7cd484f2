//! The ranks that a job would start, without starting them.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::assignment::Assignment;
use crate::binding::{CpuShare, shares};
use crate::error::LaunchError;
use crate::job::Job;
use crate::restarts::new_run_id;
use crate::workers::{arguments, open_store, variables};

/// One rank as it would be started.
#[derive(Clone, Debug)]
pub struct RankPlan {
    /// The rank among all ranks.
    pub rank: usize,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The variables that it gets in addition to the inherited ones.
    pub variables: BTreeMap<OsString, OsString>,
    /// The processors that it would be bound to.
    pub share: Option<CpuShare>,
}

/// The assignment of this node's first attempt, with a currently free port if none was given, and its ranks.
///
/// # Errors
/// The job has no ranks, an impossible node rank, or fewer devices than ranks, or the address of the store is not
/// available.
pub fn plan(job: &Job) -> Result<(Assignment, Vec<RankPlan>), LaunchError> {
    let run_id = job.run_id.clone().map_or_else(new_run_id, Ok)?;
    let mut assignment = job.assignment(0, &run_id)?;
    open_store(job, &mut assignment)?;
    let shares = shares(job.binding, assignment.local_world_size);
    let rank = |local_rank: usize| {
        let share = shares.as_ref().and_then(|shares| shares.get(local_rank)).cloned();
        Ok(RankPlan {
            rank: assignment.first_rank + local_rank,
            program: job.program.clone(),
            arguments: arguments(job, local_rank),
            variables: variables(job, &assignment, local_rank, share.as_ref())?.into_iter().collect(),
            share,
        })
    };
    let ranks = (0..assignment.local_world_size).map(rank).collect::<Result<_, LaunchError>>()?;
    Ok((assignment, ranks))
}
