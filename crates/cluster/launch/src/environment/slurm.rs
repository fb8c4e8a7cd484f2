//! Slurm's variables. Only a task of a step is a rank; a batch script and a shell of salloc see the job's counts too.

use super::node_list::expand_node_list;
use super::variables::{Names, Numbers};
use super::{Alone, EnvironmentError, Interpretation, Job, Launcher, MASTER_ADDR, Variables};

const STEP: &str = "SLURM_STEP_ID";
const RANK: &str = "SLURM_PROCID";
const TASKS: &str = "SLURM_NTASKS";
const LOCAL_RANK: &str = "SLURM_LOCALID";
const TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
const NODES: &str = "SLURM_STEP_NODELIST";
/// Set for the job itself too, while a step may run on only some of its nodes; so it is tried second.
const JOB_NODES: &str = "SLURM_NODELIST";
pub(super) const NAMES: Names =
    Names { rank: RANK, world_size: TASKS, local_rank: LOCAL_RANK, local_world_size: TASKS_PER_NODE };

pub(super) fn read(variables: Variables<'_>) -> Result<Option<Interpretation>, EnvironmentError> {
    let (Some(step), Some(rank)) = (variables.text(STEP)?, variables.index(RANK)?) else { return Ok(None) };
    let world_size = match variables.count("SLURM_STEP_NUM_TASKS")? {
        Some(tasks) => tasks,
        None => variables.count(TASKS)?.ok_or(EnvironmentError::HalfSet { present: RANK, missing: TASKS })?,
    };
    let node = variables.index("SLURM_NODEID")?.unwrap_or(0);
    let local_rank = variables.index(LOCAL_RANK)?.unwrap_or(0);
    let per_node = variables.text(TASKS_PER_NODE)?;
    let local_world_size = match &per_node {
        Some(counts) => {
            tasks_on_node(counts, node).ok_or_else(|| EnvironmentError::TasksPerNode { value: counts.clone(), node })?
        }
        None => world_size,
    };
    let numbers = Numbers { rank, world_size, local_rank, local_world_size };
    numbers.check(&NAMES)?;

    let name = match variables.text(NODES)? {
        Some(_) => NODES,
        None => JOB_NODES,
    };
    let nodes = match variables.text(name)? {
        Some(list) => expand_node_list(&list).map_err(|source| EnvironmentError::NodeList { name, source })?,
        None => vec![],
    };
    let first = nodes.first().map(String::as_str);
    if let (0, Some(first), Some(own)) = (rank, first, variables.text("SLURMD_NODENAME")?)
        && own != first
        && !variables.is_set(MASTER_ADDR)
    {
        return Err(EnvironmentError::RankZeroElsewhere { own, first: first.to_owned() });
    }
    let job = variables.text("SLURM_JOB_ID")?.unwrap_or_default();
    let job = Job {
        launcher: Launcher::Slurm,
        numbers,
        nodes: (node, nodes.len().max(node + 1)),
        name: format!("{job}.{step}"),
        attempt: attempt(variables)?,
        host: first,
        how: "export MASTER_ADDR=HOST before srun",
        why: format!("{STEP} and {RANK} are set: a task of step {job}.{step}"),
    };
    job.interpret(variables).map(Some)
}

/// How many times the job has been requeued; not set at first.
pub(super) fn attempt(variables: Variables<'_>) -> Result<usize, EnvironmentError> {
    Ok(variables.number("SLURM_RESTART_COUNT", 0, usize::MAX)?.unwrap_or(0))
}

/// The single process of a batch script, or of a shell of salloc, in a job with several tasks.
pub(super) fn without_srun(variables: Variables<'_>) -> Result<Option<Alone>, EnvironmentError> {
    if !variables.is_set("SLURM_JOB_ID") || variables.is_set(STEP) {
        return Ok(None);
    }
    let tasks = variables.count(TASKS)?.unwrap_or(1);
    let warning = (tasks > 1).then(|| EnvironmentError::NotLaunched {
        variable: TASKS,
        value: tasks.to_string(),
        mend: "start it with srun, as in `srun enmasse train ...`; or pass `devices = cpu:N` for N ranks on this node alone",
    });
    let why = format!("inside a Slurm job but not in a task of a step ({STEP} is not set): a single process");
    Ok(Some(Alone { why, warning }))
}

/// The tasks on a node, from counts such as `2(x3),1`: two on each of three nodes, then one.
fn tasks_on_node(counts: &str, node: usize) -> Option<usize> {
    let mut before = 0usize;
    for part in counts.split(',') {
        let (count, times) = match part.trim().split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1usize),
        };
        before = before.checked_add(times)?;
        if node < before {
            return count.parse().ok().filter(|count| (1..=super::variables::MAX_RANKS).contains(count));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_each_node() {
        let check = |counts: &str, expected: &[Option<usize>]| {
            let found: Vec<_> = (0..expected.len()).map(|node| tasks_on_node(counts, node)).collect();
            assert_eq!(found, expected, "{counts}");
        };
        check("2", &[Some(2), None]);
        check("2(x2)", &[Some(2), Some(2), None]);
        check("2,1", &[Some(2), Some(1), None]);
        check("2(x3),1", &[Some(2), Some(2), Some(2), Some(1), None]);
        check("0", &[None]);
        check("2(x", &[None]);
        check("", &[None]);
        check("a(x2)", &[None]);
        check("1,2(x18446744073709551615)", &[Some(1), None]);
    }
}
