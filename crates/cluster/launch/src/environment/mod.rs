//! The environment variables, of any launcher, through which a rank learns its place.
//!
//! Parsing is pure: it takes a lookup function, so every combination can be tested without touching
//! the process. Launchers start each other (torchrun under srun, mpirun in an allocation), and the
//! inner launcher's ranks see the outer one's variables too. So the launchers are tried in the
//! order of [`Launcher`], innermost first. [`Interpretation`] says which launcher decided and why,
//! and leads to a `Rendezvous`. Under torchrun ranks meet through its agent's store, elsewhere at
//! ports derived from the job's name.

use std::ffi::OsString;

mod ancestor;
mod clusters;
mod error;
mod mpi;
pub(crate) mod node_list;
pub(crate) mod ports;
mod rendezvous;
mod slurm;
#[cfg(test)]
mod tests;
mod torch;
mod variables;

pub use ancestor::launcher_without;
pub use error::EnvironmentError;
pub use node_list::NodeListError;
use variables::{Names, Numbers, Variables};

/// The rank among all ranks, from 0.
pub const RANK: &str = "RANK";
/// The number of ranks.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// The rank's number on its machine, from 0.
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
/// How many times the launcher has restarted the ranks.
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
    /// The rank's number on its node.
    pub local_rank: usize,
    /// The number of ranks on its node.
    pub local_world_size: usize,
    /// The node among all nodes (`GROUP_RANK`).
    pub node: usize,
    /// The number of nodes (`GROUP_WORLD_SIZE`).
    pub node_count: usize,
    /// Where rank 0 opens the store: host and port. Always set if `world_size` is above 1.
    pub master: Option<(String, u16)>,
    /// How many times the launcher has restarted the ranks.
    pub restart_count: usize,
    /// Restart limit.
    pub max_restarts: usize,
    /// The name of the job; empty if the launcher gave none.
    pub run_id: String,
}

/// The launcher of this process. They are tried in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Explicit arguments, which take precedence over everything.
    Arguments,
    /// RANK and WORLD_SIZE: set by torchrun, `enmasse launch`, or the user.
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
    /// No launcher.
    Nobody,
}

/// The interpretation of the variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpretation {
    /// This process's place; `None` for a single process.
    pub place: Option<LaunchedRank>,
    /// The launcher that assigned it.
    pub launcher: Launcher,
    /// One sentence: which variables decided, and which others were ignored.
    pub why: String,
    /// Whether the launcher gave the local numbers. Otherwise `place` assumes that all ranks share one machine.
    pub is_local_told: bool,
    /// Ports that rank 0 tries, in this order, if the master's port is taken. Empty if the user chose the port.
    pub more_ports: Vec<u16>,
    /// How many times the job was restarted, including requeueing. Known even if `place` is `None`.
    pub attempt: usize,
    /// Why `place` should not be `None`: the variables request several processes, and this process is none of them.
    pub warning: Option<EnvironmentError>,
}

impl Launcher {
    /// The launcher's name in messages.
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

    /// Its variables, if they are not torchrun's.
    fn names(self) -> Option<&'static Names> {
        match self {
            Launcher::OpenMpi => Some(&mpi::OPEN_MPI),
            Launcher::Pmi => Some(&mpi::PMI),
            Launcher::Slurm => Some(&slurm::NAMES),
            Launcher::Lsf => Some(&clusters::LSF),
            Launcher::Arguments | Launcher::Torch | Launcher::Kubeflow | Launcher::Nobody => None,
        }
    }
}

impl LaunchedRank {
    /// This process's place; `None` for a single process. A blank variable counts as not set.
    ///
    /// # Errors
    /// The variables contradict each other, or one of them is missing or malformed. Or the process should not run
    /// alone: a batch script without srun.
    pub fn from_environment() -> Result<Option<Self>, EnvironmentError> {
        Self::from_lookup(process_variable)
    }

    /// The same from any source of variables.
    ///
    /// # Errors
    /// Those of [`from_environment`](Self::from_environment).
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

    /// Interprets the variables, and says why. Performs no IO.
    ///
    /// # Errors
    /// The variables contradict each other, or one of them is missing or malformed.
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

    /// The variables that tell a process that it is this rank, as torchrun sets them.
    ///
    /// `TORCHELASTIC_USE_AGENT_STORE=False` says that rank 0 opens the store itself. One of several workers without
    /// `OMP_NUM_THREADS` would use every core, so it gets one thread unless `omp_is_set`.
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

/// A variable of this process. MPICH's launcher names no job. Its process serves as the name, so that the ranks
/// of one job on one machine agree on a name that no other job there has.
pub fn process_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).or_else(|| mpi::stand_in(name))
}

/// What a process is without a launcher: a single one, possibly by mistake.
struct Alone {
    why: String,
    warning: Option<EnvironmentError>,
}

/// The result without any launcher's variables.
fn nobody(variables: Variables<'_>) -> Result<Interpretation, EnvironmentError> {
    let alone = match slurm::without_srun(variables)? {
        None => clusters::without_launcher(variables)?,
        found => found,
    };
    let why = "no launcher has set its variables: a single process";
    let Alone { why, warning } = alone.unwrap_or_else(|| Alone { why: why.into(), warning: None });
    Ok(Interpretation {
        place: None,
        launcher: Launcher::Nobody,
        why,
        is_local_told: true,
        more_ports: vec![],
        attempt: slurm::attempt(variables)?,
        warning,
    })
}

/// A place in a job whose launcher gives numbers but no meeting point. MASTER_ADDR and MASTER_PORT give it, if the user
/// has set them. Otherwise rank 0 is looked for on `host`, or on this machine if all ranks share it, at a port derived
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
    /// How to pass a variable to this launcher's ranks.
    how: &'static str,
    why: String,
}

impl Job<'_> {
    /// A job whose ranks fill one node after another.
    fn by_block(launcher: Launcher, names: &Names, numbers: Numbers, name: String, how: &'static str) -> Self {
        let why = format!("{} and {} are set", names.rank, names.world_size);
        Job { launcher, numbers, nodes: numbers.nodes_by_block(), name, attempt: 0, host: None, how, why }
    }

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
