//! mpirun and mpiexec: Open MPI's variables, and those of the PMI family (MPICH, Intel MPI).

use std::ffi::OsString;

use enmasse_comm::MpiFamily;

use super::ancestor::launcher_without;
use super::variables::Names;
use super::{EnvironmentError, Interpretation, Job, Launcher, Variables};

pub(super) const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    world_size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
pub(super) const PMI: Names = Names {
    rank: "PMI_RANK",
    world_size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_world_size: "MPI_LOCALNRANKS",
};
/// A pseudo-variable: the result of [`stand_in`].
const LOCAL_LAUNCHER: &str = "ENMASSE_LOCAL_LAUNCHER";

pub(super) fn read_open_mpi(variables: Variables<'_>) -> Result<Option<Interpretation>, EnvironmentError> {
    let Some(numbers) = variables.numbers(&OPEN_MPI)? else { return Ok(None) };
    // Version 5 names the job by PMIx, version 4 by the address of its daemon: "2063204352.0;tcp://...".
    let name = match variables.text("PMIX_NAMESPACE")? {
        Some(name) => name,
        None => {
            let daemon = variables.text("OMPI_MCA_orte_hnp_uri")?.unwrap_or_default();
            daemon.split(';').next().unwrap_or_default().to_owned()
        }
    };
    let job = Job::by_block(Launcher::OpenMpi, &OPEN_MPI, numbers, name, "mpirun -x MASTER_ADDR=HOST");
    job.interpret(variables).map(Some)
}

pub(super) fn read_pmi(variables: Variables<'_>) -> Result<Option<Interpretation>, EnvironmentError> {
    if is_srun_with_pmi(variables)? {
        return Ok(None);
    }
    let Some(numbers) = variables.numbers(&PMI)? else { return Ok(None) };
    // MPICH's launcher names no job. The process that started all ranks of a machine is a common name only if they
    // share the machine; otherwise the token tells jobs apart.
    let name = match variables.text("PMI_JOBID")? {
        None if numbers.share_a_node() => variables.text(LOCAL_LAUNCHER)?,
        name => name,
    };
    let name = name.unwrap_or_default();
    let job = Job::by_block(Launcher::Pmi, &PMI, numbers, name, "mpiexec -genv MASTER_ADDR HOST");
    job.interpret(variables).map(Some)
}

/// `srun --mpi=pmi2` sets the variables of both, which agree, and Slurm's carry more. Under mpiexec inside a step,
/// Slurm's variables are those of mpiexec's own daemon. mpiexec's ranks are recognised by their local numbers.
fn is_srun_with_pmi(variables: Variables<'_>) -> Result<bool, EnvironmentError> {
    if !variables.is_set("SLURM_STEP_ID") || variables.is_set(PMI.local_rank) {
        return Ok(false);
    }
    let rank = variables.index("SLURM_PROCID")?;
    Ok(rank.is_some() && rank == variables.index(PMI.rank)?)
}

impl Interpretation {
    /// The MPI whose mpirun has started this process, or Slurm in its place (`srun --mpi`); `None` if none has.
    pub fn mpi(&self, lookup: impl Fn(&str) -> Option<OsString>) -> Option<MpiFamily> {
        match self.launcher {
            Launcher::OpenMpi => Some(MpiFamily::OpenMpi),
            Launcher::Pmi => Some(MpiFamily::Mpich),
            Launcher::Slurm if lookup("PMIX_RANK").is_some() => Some(MpiFamily::OpenMpi),
            Launcher::Slurm if lookup(PMI.rank).is_some() => Some(MpiFamily::Mpich),
            Launcher::Slurm
            | Launcher::Arguments
            | Launcher::Torch
            | Launcher::Kubeflow
            | Launcher::Lsf
            | Launcher::Nobody => None,
        }
    }
}

/// For a rank of mpiexec: the process that started the ranks of this machine.
pub(super) fn stand_in(name: &str) -> Option<OsString> {
    if name != LOCAL_LAUNCHER || std::env::var_os(PMI.rank).is_none() {
        return None;
    }
    Some(format!("process {}", launcher_without(PMI.rank)?).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::LaunchedRank;

    #[test]
    fn the_launcher_tells_the_family() {
        let check = |variables: &str, expected: Option<MpiFamily>| {
            let find = |name: &str| {
                let mut pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
                pairs.find(|(key, _)| *key == name).map(|(_, value)| value.into())
            };
            let found = LaunchedRank::interpret(find).unwrap().mpi(find);
            assert_eq!(found, expected, "{variables}");
        };
        let open_mpi = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
                        OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=0";
        let hydra = "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2";
        let step = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODEID=0 \
                    SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=n1 SLURM_LOCALID=0";
        check(open_mpi, Some(MpiFamily::OpenMpi));
        check(hydra, Some(MpiFamily::Mpich));
        check(step, None);
        check(&format!("{step} PMIX_RANK=0"), Some(MpiFamily::OpenMpi));
        check(&format!("{step} PMI_RANK=0 PMI_SIZE=2"), Some(MpiFamily::Mpich));
        check(&format!("{open_mpi} RANK=0 WORLD_SIZE=1"), None);
        check("", None);
    }
}
