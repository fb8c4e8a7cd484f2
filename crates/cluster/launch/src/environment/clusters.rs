//! LSF's jsrun, and Kubeflow pods that were started without their launcher.

use super::variables::Names;
use super::{Alone, EnvironmentError, Interpretation, Job, Launcher, Variables};

pub(super) const LSF: Names = Names {
    rank: "JSM_NAMESPACE_RANK",
    world_size: "JSM_NAMESPACE_SIZE",
    local_rank: "JSM_NAMESPACE_LOCAL_RANK",
    local_world_size: "JSM_NAMESPACE_LOCAL_SIZE",
};

pub(super) fn read_lsf(variables: Variables<'_>) -> Result<Option<Interpretation>, EnvironmentError> {
    let Some(numbers) = variables.numbers(&LSF)? else { return Ok(None) };
    // "launch 1 c01 42 c02 42": hosts with their slots. The first host runs the batch script, and is not one of those
    // that jsrun uses.
    let hosts = variables.text("LSB_MCPU_HOSTS")?.unwrap_or_default();
    let hosts: Vec<&str> = hosts.split_whitespace().step_by(2).collect();
    let skipped = usize::from(hosts.len() > numbers.nodes_by_block().1);
    let name = variables.text("LSB_JOBID")?.unwrap_or_default();
    let job = Job::by_block(Launcher::Lsf, &LSF, numbers, name, "jsrun -E MASTER_ADDR=HOST");
    Job { host: hosts.get(skipped).copied(), ..job }.interpret(variables).map(Some)
}

/// The one process of a pod that should run a launcher: Kubeflow passes torchrun's options to each pod.
pub(super) fn without_launcher(variables: Variables<'_>) -> Result<Option<Alone>, EnvironmentError> {
    for variable in ["PET_NNODES", "PET_NPROC_PER_NODE"] {
        if let Some(value) = variables.text(variable)?.filter(|value| value != "1" && value != "1:1") {
            let mend =
                "start it with the launcher that reads the PET_ variables, as in `enmasse launch enmasse train ...`";
            let why = format!("{variable} is set for a launcher that was not started: a single process");
            let warning = Some(EnvironmentError::NotLaunched { variable, value, mend });
            return Ok(Some(Alone { why, warning }));
        }
    }
    Ok(None)
}
