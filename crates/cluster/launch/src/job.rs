//! The description of a job to launch.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::time::Duration;

use enmasse_comm::Token;

use crate::assignment::Assignment;
use crate::binding::Binding;
use crate::error::LaunchError;
use crate::logs::Logs;
use crate::signal_names::{STOP_SIGNALS, signal_number};

/// Which process opens the store at `MASTER_ADDR:MASTER_PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The launcher listens, and rank 0 inherits the listening socket ([`crate::STORE_FD`]), so no other program can
    /// take the port. For enmasse's own ranks.
    Inherited,
    /// Rank 0 binds the port, as PyTorch and other programs do. The launcher picks a free port and releases it just
    /// before the workers start. It is none that Linux gives to outgoing connections, but another program may ask for it in between.
    BoundByRankZero,
}

/// Where the workers' output goes. Standard input is `/dev/null`: several readers of one terminal make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Rank 0 inherits both streams, so that a progress bar finds its terminal. The other ranks' standard output is
    /// discarded, and the last lines of their standard error are kept for the failure report.
    RankZero,
    /// Like `RankZero`, but the other ranks' standard error passes through the launcher to its own.
    RankZeroAndErrors,
    /// Every worker's output passes through, as under torchrun: unmarked, or marked according to the job's [`Logs`].
    /// Standard error goes through the launcher, which keeps the last lines for the failure report.
    All,
}

/// The nodes of a job whose ranks are known beforehand, and this node's place among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// This node, from 0.
    pub rank: usize,
    /// The number of nodes. Each has the same number of ranks, so a rank is node rank x local ranks + local rank.
    pub count: usize,
    /// Where rank 0 opens the store: host and port. By default loopback and a free port.
    pub master: Option<(String, u16)>,
}

impl Default for Nodes {
    fn default() -> Self {
        Nodes { rank: 0, count: 1, master: None }
    }
}

/// A program to run as several ranks on this machine.
///
/// ```
/// use enmasse_launch::{Job, launch};
/// let outcome = launch(&Job::new("sh", 2).args(["-c", "test \"$RANK\" -lt \"$WORLD_SIZE\""])).unwrap();
/// assert_eq!(outcome.exit_code(), 0);
/// ```
#[derive(Clone, Debug)]
pub struct Job {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The position of `--local-rank=N` among the arguments, if it is passed.
    pub local_rank_at: Option<usize>,
    /// Variables of every worker, in addition to the inherited ones. The launcher's own variables take precedence.
    pub variables: Vec<(OsString, OsString)>,
    /// The number of ranks on this node.
    pub local_world_size: usize,
    /// The nodes, if this launcher is one of several.
    pub nodes: Nodes,
    /// The name of the job, which must be the same on all its nodes. By default a new name.
    pub run_id: Option<String>,
    /// The role of the ranks (`ROLE_NAME`). By default "default".
    pub role: String,
    /// How many times all ranks are restarted after a failure. By default 0.
    pub max_restarts: usize,
    /// Which process opens the store.
    pub store: Store,
    /// Where output goes.
    pub output: Output,
    /// Which output is kept and shown. By default everything is shown, and nothing kept.
    pub logs: Logs,
    /// The time between asking the other ranks to stop after a failure (SIGTERM) and killing them (SIGKILL). By default
    /// one second.
    pub grace: Duration,
    /// The time between passing on a signal that stops the launcher and SIGKILL, in which ranks may save their state. By
    /// default 30 seconds.
    pub signal_grace: Duration,
    /// The signals that the launcher passes on to all ranks and that end the job. See [`Job::stop_signals`].
    pub stop_signals: Vec<i32>,
    /// The secret that all nodes share. By default a job of one node makes a new secret for each attempt, and launchers
    /// of several nodes pass on none.
    pub token: Option<Token>,
    /// The cores on which each rank may run. By default any.
    pub binding: Binding,
    /// Whether each rank sees only its own GPU, as device 0 of local rank 0.
    pub virtual_local_rank: bool,
}

impl Job {
    /// `local_world_size` processes of `program` on one node. The program opens the store itself, and its output passes
    /// through.
    pub fn new(program: impl Into<OsString>, local_world_size: usize) -> Self {
        Job {
            program: program.into(),
            arguments: Vec::new(),
            local_rank_at: None,
            variables: Vec::new(),
            local_world_size,
            nodes: Nodes::default(),
            run_id: None,
            role: "default".to_owned(),
            max_restarts: 0,
            store: Store::BoundByRankZero,
            output: Output::All,
            logs: Logs::default(),
            grace: Duration::from_secs(1),
            signal_grace: Duration::from_secs(30),
            stop_signals: STOP_SIGNALS.to_vec(),
            token: None,
            binding: Binding::Free,
            virtual_local_rank: false,
        }
    }

    /// Appends arguments.
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Appends `--local-rank=N` with each rank's number, as `torch.distributed.launch` does for scripts that read no
    /// variables.
    pub fn local_rank_argument(mut self) -> Self {
        self.local_rank_at = Some(self.arguments.len());
        self
    }

    /// Sets a variable in every worker, in addition to the inherited ones. The launcher's own variables take
    /// precedence.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Sets the signals, by name, that the launcher passes on to all ranks and that end the job. By default SIGTERM,
    /// SIGINT, SIGHUP and SIGQUIT. SIGUSR1 and SIGUSR2 are always passed on, and do not end the job.
    ///
    /// # Errors
    /// [`LaunchError::Signal`] for a name that is no signal's, or that of one which cannot be handled.
    pub fn stop_signals<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, LaunchError> {
        let number = |name: &str| signal_number(name).ok_or_else(|| LaunchError::Signal(name.to_owned()));
        self.stop_signals = names.into_iter().map(number).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// This node's assignment for an attempt, from 0, of a job whose nodes are known beforehand.
    pub(crate) fn assignment(&self, attempt: usize, run_id: &str) -> Result<Assignment, LaunchError> {
        let (nodes, local) = (&self.nodes, self.local_world_size);
        let sizes = local.checked_mul(nodes.count).zip(local.checked_mul(nodes.rank));
        let (world_size, first_rank) = sizes.filter(|_| local > 0).ok_or(LaunchError::NoRanks)?;
        if nodes.rank >= nodes.count {
            return Err(LaunchError::NodeRank { rank: nodes.rank, count: nodes.count });
        }
        Ok(Assignment {
            node_rank: nodes.rank,
            node_count: nodes.count,
            first_rank,
            world_size,
            local_world_size: local,
            master: nodes.master.clone().unwrap_or_else(|| (Ipv4Addr::LOCALHOST.to_string(), 0)),
            attempt,
            max_restarts: self.max_restarts,
            run_id: run_id.to_owned(),
        })
    }
}
