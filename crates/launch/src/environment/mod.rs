//! The environment variables through which a rank learns its place, by any launcher.
//!
//! Reading is pure: it takes a lookup, so that every combination can be tested without touching the process. Launchers start
//! each other (torchrun under srun, mpirun in an allocation), and the inner one's ranks see the outer one's variables too; so
//! they are asked in the order of [`Launcher`], innermost first.

use std::ffi::OsString;

mod clusters;
mod error;
mod mpi;
mod node_list;
mod ports;
mod rendezvous;
mod slurm;
#[cfg(test)]
mod tests;
mod torch;
mod variables;

pub use error::EnvironmentError;
pub use node_list::NodeListError;
use variables::{Numbers, Variables};

/// The rank among all ranks, from 0.
pub const RANK: &str = "RANK";
/// The number of ranks.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// The rank among those of its machine, from 0.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// The number of ranks on this machine.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// The machine among all machines, from 0.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// The number of machines.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// The host of rank 0.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// The port on which rank 0 opens the store.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// How often the launcher has started the ranks again.
pub const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// Restart limit.
pub const MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// The name of the job.
pub const RUN_ID: &str = "TORCHELASTIC_RUN_ID";

/// A rank's place in a launched job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchedRank {
    /// The rank among all ranks.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The rank among those of its node.
    pub local_rank: usize,
    /// The number of ranks on its node.
    pub local_world_size: usize,
    /// The node among all nodes (`GROUP_RANK`).
    pub node: usize,
    /// The number of nodes (`GROUP_WORLD_SIZE`).
    pub node_count: usize,
    /// Where rank 0 opens the store: host and port. Always there when `world_size` is above 1.
    pub master: Option<(String, u16)>,
    /// How often the launcher has started the ranks again.
    pub restart_count: usize,
    /// Restart limit.
    pub max_restarts: usize,
    /// The name of the job; empty when the launcher gave none.
    pub run_id: String,
}

/// Who launched this process. They are asked in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Explicit arguments, which nothing overrides.
    Arguments,
    /// RANK and WORLD_SIZE: torchrun, `enmasse launch`, or a person.
    Torch,
    /// RANK and WORLD_SIZE of a Kubeflow PyTorchJob, which count pods of one process each.
    Kubeflow,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A process manager of the PMI family: MPICH's or Intel's mpiexec (hydra).
    Pmi,
    /// A task of a Slurm step: srun.
    Slurm,
    /// jsrun, on a cluster with LSF.
    Lsf,
    /// Nobody.
    Nobody,
}

/// What the variables mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpretation {
    /// This process's place; `None` for a process that is alone.
    pub place: Option<LaunchedRank>,
    /// Who gave it.
    pub launcher: Launcher,
    /// One sentence: which variables decided, and what of the others was passed over.
    pub why: String,
    /// Whether the launcher told the local numbers. Otherwise `place` takes all ranks to share one machine.
    pub is_local_told: bool,
    /// Ports that rank 0 tries in this order where the master's is taken. Empty where somebody chose the port.
    pub more_ports: Vec<u16>,
    /// How often the job was started before, be it by requeueing: also known where `place` is `None`.
    pub attempt: usize,
    /// Why `place` should not be `None`: the variables ask for several processes, of which this is none.
    pub warning: Option<EnvironmentError>,
}

impl Launcher {
    /// What it is called in messages.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Arguments => "the command line",
            Launcher::Torch => "torchrun",
            Launcher::Kubeflow => "Kubeflow",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "PMI (mpiexec)",
            Launcher::Slurm => "Slurm",
            Launcher::Lsf => "LSF",
            Launcher::Nobody => "nobody",
        }
    }

    /// Its variables for the rank and the number of ranks, where they are not RANK and WORLD_SIZE.
    fn own_numbers(self) -> Option<(&'static str, &'static str)> {
        match self {
            Launcher::OpenMpi => Some(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
            Launcher::Pmi => Some(("PMI_RANK", "PMI_SIZE")),
            Launcher::Slurm => Some(("SLURM_PROCID", "SLURM_NTASKS")),
            Launcher::Lsf => Some(("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")),
            Launcher::Arguments | Launcher::Torch | Launcher::Kubeflow | Launcher::Nobody => None,
        }
    }
}

impl LaunchedRank {
    /// This process's place; `None` for a process that is alone, and an error for one that should not be: a batch script that
    /// forgot its srun. Blank counts as not set.
    pub fn from_environment() -> Result<Option<Self>, EnvironmentError> {
        Self::from_lookup(process_variable)
    }

    /// The same from any source of variables.
    ///
    /// ```
    /// use enmasse_launch::LaunchedRank;
    /// let rank = LaunchedRank::from_lookup(|name| match name {
    ///     "RANK" => Some("0".into()),
    ///     "WORLD_SIZE" => Some("1".into()),
    ///     _ => None,
    /// });
    /// assert_eq!(rank.unwrap().unwrap().local_world_size, 1);
    /// assert_eq!(LaunchedRank::from_lookup(|_| None), Ok(None));
    /// ```
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, EnvironmentError> {
        let interpretation = Self::interpret(lookup)?;
        match interpretation.warning {
            Some(warning) => Err(warning),
            None => Ok(interpretation.place),
        }
    }

    /// What the variables mean, and why. Performs no IO.
    pub fn interpret(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Interpretation, EnvironmentError> {
        let variables = Variables(&lookup);
        let found = [torch::read, mpi::read_open_mpi, mpi::read_pmi, slurm::read, clusters::read_lsf]
            .into_iter()
            .find_map(|read| read(variables).transpose());
        match found.transpose()? {
            Some(interpretation) => {
                torch::check_leftovers(variables, &interpretation)?;
                Ok(interpretation)
            }
            None => nobody(variables),
        }
    }

    /// The variables that tell a process it is this rank, as torchrun sets them.
    ///
    /// `TORCHELASTIC_USE_AGENT_STORE=False` says that rank 0 opens the store itself. A worker without `OMP_NUM_THREADS`
    /// among several would take every core, so `omp_is_set` decides whether it gets one thread.
    pub(crate) fn variables(&self, omp_is_set: bool) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            (RANK, self.rank.to_string()),
            (WORLD_SIZE, self.world_size.to_string()),
            (LOCAL_RANK, self.local_rank.to_string()),
            (LOCAL_WORLD_SIZE, self.local_world_size.to_string()),
            (GROUP_RANK, self.node.to_string()),
            (GROUP_WORLD_SIZE, self.node_count.to_string()),
            // One role: every rank trains.
            ("ROLE_NAME", "default".into()),
            ("ROLE_RANK", self.rank.to_string()),
            ("ROLE_WORLD_SIZE", self.world_size.to_string()),
            (RESTART_COUNT, self.restart_count.to_string()),
            (MAX_RESTARTS, self.max_restarts.to_string()),
            (RUN_ID, self.run_id.clone()),
            ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
        ];
        if let Some((host, port)) = &self.master {
            variables.extend([(MASTER_ADDR, host.clone()), (MASTER_PORT, port.to_string())]);
        }
        if !omp_is_set && self.world_size > 1 {
            variables.push(("OMP_NUM_THREADS", "1".into()));
        }
        variables
    }
}

/// A variable of this process. MPICH's launcher names no job; its process stands in, so that the ranks of one job on one machine
/// agree on something that no other job there has.
pub fn process_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).or_else(|| mpi::stand_in(name))
}

/// What remains when no launcher has left its mark: a process that is alone, and perhaps should not be.
fn nobody(variables: Variables<'_>) -> Result<Interpretation, EnvironmentError> {
    let interpretation = Interpretation {
        place: None,
        launcher: Launcher::Nobody,
        why: "no launcher has set its variables: one process, alone".into(),
        is_local_told: true,
        more_ports: vec![],
        attempt: slurm::attempt(variables)?,
        warning: None,
    };
    let unlaunched = match slurm::without_srun(variables)? {
        None => clusters::without_launcher(variables)?,
        found => found,
    };
    Ok(match unlaunched {
        Some((why, warning)) => Interpretation { why, warning, ..interpretation },
        None => interpretation,
    })
}

/// A place in a job whose launcher tells numbers but no meeting point. MASTER_ADDR and MASTER_PORT say it, where a person has
/// set them. Otherwise rank 0 is looked for on `host`, or on this machine where all ranks share it, and at a port that follows
/// from the job's name.
struct Job<'a> {
    launcher: Launcher,
    numbers: Numbers,
    /// The node of this rank, and the number of nodes.
    nodes: (usize, usize),
    /// Unique among the jobs that may share a machine.
    name: String,
    attempt: usize,
    host: Option<&'a str>,
    /// How this launcher's ranks are given a variable.
    how: &'static str,
    why: String,
}

impl Job<'_> {
    fn interpret(self, variables: Variables<'_>) -> Result<Interpretation, EnvironmentError> {
        let Numbers { rank, world_size, local_rank, local_world_size } = self.numbers;
        let own_machine = self.numbers.share_a_node().then_some("127.0.0.1");
        let host = match variables.text(MASTER_ADDR)? {
            Some(host) => host,
            None => match own_machine.or(self.host) {
                Some(host) => host.to_owned(),
                None => return Err(EnvironmentError::NoHost { launcher: self.launcher.name(), how: self.how }),
            },
        };
        let (port, more_ports) = match variables.port(MASTER_PORT)? {
            Some(port) => (port, vec![]),
            None => ports::of_job(&self.name, self.attempt),
        };
        let place = LaunchedRank {
            rank,
            world_size,
            local_rank,
            local_world_size,
            node: self.nodes.0,
            node_count: self.nodes.1,
            master: (world_size > 1).then_some((host, port)),
            restart_count: self.attempt,
            max_restarts: 0,
            run_id: self.name,
        };
        Ok(Interpretation {
            place: Some(place),
            launcher: self.launcher,
            why: self.why,
            is_local_told: true,
            more_ports,
            attempt: self.attempt,
            warning: None,
        })
    }
}
