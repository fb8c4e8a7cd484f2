//! A process that is one rank of a launched job: which launcher assigned it, what contradicts it, and how it joins the
//! others.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use enmasse_comm::{Cause, CauseKind, Group, GroupOptions, JoinError, TransportChoice};
use enmasse_launch::{Interpretation, LaunchedRank, Launcher, process_variable, report_cause};
use enmasse_train::{Devices, LayeredConfig, TransportKind};

use crate::failure::{Failure, failed, usage};
use crate::ranks::automatic;

/// Holds the secret of ranks that were given none, until all have joined.
const TOKEN_FILE: &str = ".token";

/// A rank's place, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The place itself.
    pub place: LaunchedRank,
    interpretation: Interpretation,
}

impl Launched {
    /// The rank's place according to this process's environment.
    pub fn from_environment(layers: &LayeredConfig) -> Result<Option<Self>, Failure> {
        Self::find(process_variable, layers, automatic::visible)
    }

    /// The rank's place according to an environment, where `layers` may request ranks of this process's own, and the machine
    /// shows it a number of GPUs.
    pub fn find(
        environment: impl Fn(&str) -> Option<OsString>,
        layers: &LayeredConfig,
        gpus: impl Fn() -> usize,
    ) -> Result<Option<Self>, Failure> {
        let interpretation = LaunchedRank::interpret(environment).map_err(Failure::usage)?;
        let own_ranks = layers.config().program.devices.as_ref().and_then(Devices::asked);
        match (&interpretation.warning, &interpretation.place) {
            // A user who sets a number of ranks did so on purpose.
            (Some(warning), _) if own_ranks.is_none() => Err(Failure::usage(warning)),
            // A step of one task is a machine to run ranks on, like a batch script.
            (_, Some(place)) if is_slurm(&interpretation) && place.world_size == 1 && own_ranks > Some(1) => Ok(None),
            // So is one of several GPUs, unless the user wants less.
            (_, Some(place))
                if is_slurm(&interpretation) && place.world_size == 1 && is_automatic(layers) && gpus() > 1 =>
            {
                Ok(None)
            }
            (_, Some(place)) => Ok(Some(Launched { place: place.clone(), interpretation })),
            (_, None) => Ok(None),
        }
    }

    /// A place from the command line, which takes precedence over the environment. Only the count of Slurm's restarts
    /// is still read from there.
    pub fn by_arguments(place: LaunchedRank, environment: impl Fn(&str) -> Option<OsString>) -> Self {
        let count = |name: &str| environment(name).filter(|_| name == "SLURM_RESTART_COUNT");
        let attempt = LaunchedRank::interpret(count).map_or(0, |found| found.attempt);
        let interpretation = Interpretation {
            place: Some(LaunchedRank { restart_count: attempt, ..place.clone() }),
            launcher: Launcher::Arguments,
            why: "an address, --rank and --world-size are given".into(),
            is_local_told: false,
            more_ports: vec![],
            attempt,
            warning: None,
        };
        Launched { place, interpretation }
    }

    /// In a launched job a rank is one device: more are requested from the launcher. Under Slurm a number of devices
    /// must equal the number of tasks on each node.
    pub fn check_devices(&self, layers: &LayeredConfig) -> Result<(), Failure> {
        let LaunchedRank { rank, world_size, local_world_size, .. } = self.place;
        let Some(devices) = &layers.config().program.devices else { return Ok(()) };
        let refuse = |why: String| Err(usage!("--devices {devices}: {why}"));
        match (devices.count(), is_slurm(&self.interpretation)) {
            _ if devices.fits_ranks(local_world_size) => Ok(()),
            (count, true) if count == local_world_size => Ok(()),
            (count, true) => refuse(format!(
                "Slurm runs {local_world_size} of the {world_size} tasks of this step on this node, and each is a rank; start \
                 the step with --ntasks-per-node={count}, or leave --devices out"
            )),
            (_, false) => refuse(format!(
                "this process is rank {rank} of {world_size} already (RANK and WORLD_SIZE are set), and a rank is one device; \
                 leave --devices out, or unset them"
            )),
        }
    }

    /// The transport of a setting.
    pub fn transport(&self, kind: TransportKind) -> Result<TransportChoice, Failure> {
        match (kind, self.interpretation.mpi(process_variable)) {
            (TransportKind::Auto, _) => Ok(TransportChoice::Auto),
            (TransportKind::Mpi, Some(family)) => Ok(TransportChoice::Mpi(family)),
            (TransportKind::Mpi, None) => Err(not_of_mpi(self.interpretation.launcher)),
        }
    }

    /// Joins the other ranks. Ranks that were given no token find one in the run folder, if they know the folder.
    pub fn join(
        &self,
        folder: Option<&Path>,
        heartbeat: Duration,
        transport: TransportChoice,
        options: GroupOptions,
    ) -> Result<Option<Group>, Failure> {
        let variable = |name: &str| std::env::var(name).ok();
        let Some(mut rendezvous) = self.interpretation.rendezvous(&variable).map_err(Failure::error)? else {
            return Ok(None);
        };
        rendezvous.heartbeat = heartbeat;
        rendezvous.transport = transport;
        rendezvous.options = options;
        if rendezvous.token.is_none()
            && let Some(folder) = folder
        {
            if rendezvous.rank == 0 {
                std::fs::create_dir_all(folder)
                    .map_err(|error| failed!("cannot create {}: {error}", folder.display()))?;
            }
            rendezvous.token_file = Some(folder.join(TOKEN_FILE));
        }
        let rank = rendezvous.rank;
        rendezvous.join().map(Some).map_err(|error| match error {
            JoinError::TokenRequired { .. } => {
                failed!("{error}, or name a run folder that all nodes see (--out DIR)")
            }
            other => {
                let cause = match &other {
                    JoinError::Cause(cause) => cause.clone(),
                    own => Cause::new(CauseKind::Error, own.to_string()).of_rank(rank).into(),
                };
                // The launcher prints it, once for all ranks.
                if report_cause(&cause) { Failure::Told(1) } else { Failure::error(other) }
            }
        })
    }
}

/// Why there is no MPI for the ranks of this launcher.
pub fn not_of_mpi(launcher: Launcher) -> Failure {
    usage!(
        "--transport mpi needs ranks that mpirun, mpiexec or srun --mpi=pmix has started, and {} has started these: mpirun \
         -n 4 enmasse train ..., or leave it out",
        launcher.name()
    )
}

/// Whether the devices are the program's choice.
fn is_automatic(layers: &LayeredConfig) -> bool {
    let devices = layers.config().program.devices.as_ref();
    devices.map_or(layers.given_device_kind().is_none(), Devices::is_undecided)
}

fn is_slurm(interpretation: &Interpretation) -> bool {
    interpretation.launcher == Launcher::Slurm
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of variables and `--devices`: the rank, no rank, or the message.
    fn check(variables: &str, devices: Option<&str>, expected: Result<Option<usize>, &str>) {
        check_beside(0, variables, devices, expected);
    }

    /// The same on a machine with this number of GPUs.
    fn check_beside(gpus: usize, variables: &str, devices: Option<&str>, expected: Result<Option<usize>, &str>) {
        let mut layers = LayeredConfig::new();
        if let Some(devices) = devices {
            layers.argument("devices", devices).unwrap();
        }
        let environment = |name: &str| {
            let mut pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.into())
        };
        let found = Launched::find(environment, &layers, || gpus).and_then(|launched| match launched {
            Some(launched) => launched.check_devices(&layers).map(|()| Some(launched.place.rank)),
            None => Ok(None),
        });
        match expected {
            Ok(rank) => assert_eq!(found, Ok(rank), "{variables} {devices:?}"),
            Err(part) => {
                let message = found.unwrap_err().message().to_owned();
                assert!(message.contains(part), "{variables} {devices:?}: {message}");
            }
        }
    }

    #[test]
    fn tasks_of_slurm_against_devices() {
        let step = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NTASKS=4 \
                    SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=node[1-2]";
        check(step, None, Ok(Some(3)));
        check(step, Some("cpu:1"), Ok(Some(3)));
        check(step, Some("cpu:2"), Ok(Some(3)));
        check(step, Some("cpu:4"), Err("2 of the 4 tasks of this step on this node"));
        check(step, Some("cpu:4"), Err("start the step with --ntasks-per-node=4, or leave --devices out"));
        // A single task with a node to itself.
        let one = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1";
        check(one, None, Ok(Some(0)));
        check(one, Some("cpu:4"), Ok(None));
        // It trained on one of its four GPUs.
        check_beside(4, one, None, Ok(None));
        check_beside(4, one, Some("auto"), Ok(None));
        check_beside(4, one, Some("cpu:1"), Ok(Some(0)));
        check_beside(1, one, None, Ok(Some(0)));
        check_beside(4, step, None, Ok(Some(3)));
        // A batch script.
        let batch = "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4";
        check(batch, None, Err("SLURM_NTASKS is 4, but no launcher started this process"));
        check(batch, Some("cpu:4"), Ok(None));
        check("SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=1", None, Ok(None));
    }

    #[test]
    fn ranks_of_others_against_devices() {
        let torch = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1";
        check(torch, Some("cpu:1"), Ok(Some(1)));
        check(torch, Some("cpu:2"), Err("this process is rank 1 of 2 already"));
        check("RANK=0 WORLD_SIZE=1", Some("cpu:2"), Err("this process is rank 0 of 1 already"));
    }
}
