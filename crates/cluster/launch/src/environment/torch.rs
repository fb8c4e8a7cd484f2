//! torchrun's variables, which `enmasse launch`, Kubeflow's PyTorchJob and users set too.

use super::variables::{Names, Numbers, at_most, below, both, require};
use super::{
    EnvironmentError, GROUP_RANK, GROUP_WORLD_SIZE, Interpretation, LOCAL_RANK, LOCAL_WORLD_SIZE, LaunchedRank,
    Launcher, MASTER_ADDR, MASTER_PORT, MAX_RESTARTS, RANK, RESTART_COUNT, RUN_ID, Variables, WORLD_SIZE,
};

const NAMES: Names =
    Names { rank: RANK, world_size: WORLD_SIZE, local_rank: LOCAL_RANK, local_world_size: LOCAL_WORLD_SIZE };
/// Set by Kubernetes in every container.
const KUBERNETES: &str = "KUBERNETES_SERVICE_HOST";

pub(super) fn read(variables: Variables<'_>) -> Result<Option<Interpretation>, EnvironmentError> {
    let has_rank = variables.is_set(RANK);
    let has_size = variables.is_set(WORLD_SIZE);
    // Batch scripts may export one of them alone. Then a later launcher decides, or none.
    if !has_rank && !has_size || has_rank != has_size && is_launched_otherwise(variables) {
        return Ok(None);
    }
    // `env://` has no local size: DeepSpeed, the old torch.distributed.launch and users set LOCAL_RANK alone.
    let is_size_missing = variables.is_set(LOCAL_RANK) && !variables.is_set(LOCAL_WORLD_SIZE);
    let filled =
        |name: &str| (variables.0)(if is_size_missing && name == LOCAL_WORLD_SIZE { WORLD_SIZE } else { name });
    let Some(mut numbers) = Variables(&filled).numbers(&NAMES)? else { return Ok(None) };
    let is_pod = variables.is_set(KUBERNETES) && !variables.is_set(LOCAL_RANK);
    if is_pod {
        numbers = Numbers { local_rank: 0, local_world_size: 1, ..numbers };
    }
    let Numbers { rank, world_size, local_rank, local_world_size } = numbers;

    let pair = (variables.index(GROUP_RANK)?, variables.count(GROUP_WORLD_SIZE)?);
    let alone = if is_pod { (rank, world_size) } else { (0, 1) };
    let (node, node_count) = both(pair, GROUP_RANK, GROUP_WORLD_SIZE)?.unwrap_or(alone);
    below((GROUP_RANK, node), (GROUP_WORLD_SIZE, node_count))?;
    at_most((GROUP_WORLD_SIZE, node_count), (WORLD_SIZE, world_size))?;

    let pair = (variables.text(MASTER_ADDR)?, variables.port(MASTER_PORT)?);
    // A stray partial address does no harm to a single process; two ranks without a complete one would never meet.
    let master = match pair {
        (Some(host), Some(port)) => Some((host, port)),
        _ if world_size == 1 => None,
        (None, None) => return Err(EnvironmentError::NoMaster { world_size }),
        pair => both(pair, MASTER_ADDR, MASTER_PORT)?.and(None),
    };
    let restart_count = variables.number(RESTART_COUNT, 0, usize::MAX)?.unwrap_or(0);
    let place = LaunchedRank {
        rank,
        world_size,
        local_rank,
        local_world_size,
        node,
        node_count,
        master,
        restart_count,
        max_restarts: variables.number(MAX_RESTARTS, 0, usize::MAX)?.unwrap_or(0),
        run_id: variables.text(RUN_ID)?.unwrap_or_default(),
    };
    let (launcher, why) = match is_pod {
        true => (Launcher::Kubeflow, "RANK and WORLD_SIZE without LOCAL_RANK, in Kubernetes: one process per pod"),
        false if variables.is_set(RUN_ID) => (Launcher::Torch, "RANK, WORLD_SIZE and TORCHELASTIC_RUN_ID are set"),
        false => (Launcher::Torch, "RANK and WORLD_SIZE are set"),
    };
    let others = [("OMPI_COMM_WORLD_RANK", "Open MPI's"), ("PMI_RANK", "PMI's"), ("SLURM_PROCID", "Slurm's")];
    let passed: Vec<&str> = others.iter().filter(|(name, _)| variables.is_set(name)).map(|(_, whose)| *whose).collect();
    let passed = if passed.is_empty() { String::new() } else { format!("; {} are ignored", passed.join(" and ")) };
    Ok(Some(Interpretation {
        place: Some(place),
        launcher,
        why: format!("{why}{passed}"),
        is_local_told: is_pod || variables.is_set(LOCAL_WORLD_SIZE),
        more_ports: vec![],
        attempt: restart_count,
        warning: None,
    }))
}

fn is_launched_otherwise(variables: Variables<'_>) -> bool {
    let slurm = variables.is_set("SLURM_STEP_ID") && variables.is_set("SLURM_PROCID");
    slurm || ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "JSM_NAMESPACE_RANK"].iter().any(|name| variables.is_set(name))
}

/// A RANK or WORLD_SIZE that a script exports must equal the launcher's.
pub(super) fn check_leftovers(
    variables: Variables<'_>,
    interpretation: &Interpretation,
) -> Result<(), EnvironmentError> {
    let Some(place) = &interpretation.place else { return Ok(()) };
    let check = |name, given: Option<usize>, bound: (&'static str, usize)| {
        given.map_or(Ok(()), |given| require(given == bound.1, (name, given), "left out, or equal to", bound))
    };
    let Some(names) = interpretation.launcher.names() else { return Ok(()) };
    check(RANK, variables.index(RANK)?, (names.rank, place.rank))?;
    check(WORLD_SIZE, variables.count(WORLD_SIZE)?, (names.world_size, place.world_size))
}
