//! How ranks find each other and form a group.
//!
//! Rank 0 listens at an address that all ranks know. The others connect, prove the token, and introduce themselves.
//! Through the store at rank 0 they learn of each other, agree on a transport, and wait until every rank is ready.
//!
//! That takes four or five exchanges, however many ranks there are. In each, a rank sends rank 0 its value and gets all values
//! in one answer. So rank 0 handles one request a rank and exchange, and sends each rank a few tens of bytes for every rank and
//! node. It has a connection to every rank in any case, to notice when one dies, so a tree of ranks for these exchanges would
//! save it little, and a rank that dies in the tree would hide those below it.

use std::fmt;
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cause::host_name;
use crate::control::Control;
use crate::error::JoinError;
use crate::failure::Failure;
use crate::flight::FlightRecorder;
use crate::group::{Group, GroupState};
use crate::group_path::GroupPath;
use crate::mpi::MpiFamily;
use crate::net::handshake::{Introduction, Purpose};
use crate::operation::Identity;
use crate::options::{GroupOptions, deadline_after};
use crate::server::Server;
use crate::store::{Store, StoreError};
use crate::token::Token;

pub(crate) mod agent_store;
mod by_mpi;
mod connect;
mod environment;
pub(crate) mod form;
mod meeting;
pub(crate) mod rank_zero_address;

use form::{Board, Connectivity, Formed, Network, Seat};
use meeting::Meeting;
use rank_zero_address::RankZeroAddress;

/// How long ranks wait for all to join unless something else is set: as long as torchrun's nodes.
const JOIN_TIMEOUT: Duration = Duration::from_secs(600);

/// The transport that carries the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportChoice {
    /// Shared memory among the ranks of a node, and TCP between nodes.
    #[default]
    Auto,
    /// Shared memory among all ranks, or an error.
    Shared,
    /// TCP, even between processes of one machine.
    Tcp,
    /// As [`TransportChoice::Auto`], with the MPI library in place of TCP. An mpirun of that family has started the ranks,
    /// with the same numbers. MPI can start once in a process, and so can a job that uses it.
    Mpi(MpiFamily),
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportChoice::Auto => f.write_str("auto"),
            TransportChoice::Shared => f.write_str("shared"),
            TransportChoice::Tcp => f.write_str("tcp"),
            TransportChoice::Mpi(family) => write!(f, "mpi ({family})"),
        }
    }
}

/// How the other ranks find rank 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeetingPoint {
    /// Rank 0 listens at the address.
    #[default]
    Address,
    /// The address is that of torchrun's agent's store. Rank 0 opens a port of its own and publishes it there.
    AgentStore {
        /// Whether all ranks are on one machine; they then meet on loopback.
        same_machine: bool,
    },
}

/// The information that a rank needs to join its group. All ranks must agree on everything but their rank and the
/// listener.
///
/// ```no_run
/// use enmasse_comm::Rendezvous;
/// // RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun and `enmasse launch` set them.
/// let group = Rendezvous::from_environment()?.join()?;
/// // Or everything explicitly.
/// let group = Rendezvous::tcp("tcp://10.0.0.1:23456", 3, 8)?.join()?;
/// # Ok::<(), enmasse_comm::JoinError>(())
/// ```
#[derive(Debug)]
pub struct Rendezvous {
    /// This rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Where rank 0 listens: host and port. Loopback unless set otherwise.
    pub address: String,
    /// Ports that rank 0 tries, in this order, if the address's own port is taken. The others look for rank 0 at all of
    /// them.
    pub more_ports: Vec<u16>,
    /// The meaning of the address.
    pub meeting_point: MeetingPoint,
    /// Rank 0 only: a socket that already listens at `address`, so that no other program can take the port in the
    /// meantime.
    pub listener: Option<TcpListener>,
    /// The group's secret. Without a token or token file, only loopback addresses are used, with [`Token::of_user`].
    pub token: Option<Token>,
    /// Used if no token is given: a file that rank 0 creates, readable only by its user, and removes when all ranks
    /// have joined.
    pub token_file: Option<PathBuf>,
    /// The job's name. Ranks of two jobs that meet by mistake fail with an error.
    pub job: String,
    /// The attempt of the job, counted by restarts. Ranks left over from an earlier attempt are refused.
    pub attempt: u32,
    /// How long to wait for all ranks.
    pub join_timeout: Duration,
    /// A rank that sends nothing for this long is declared silent. Every rank sends four times as often. Time in which
    /// the listening rank was stopped itself does not count.
    pub heartbeat: Duration,
    /// The transport that carries the operations.
    pub transport: TransportChoice,
    /// Ranks with different names here count as ranks of different nodes, and share no memory. Without names, ranks are on
    /// one node if they have the same machine, container, network and user.
    pub node: Option<String>,
    /// Further options.
    pub options: GroupOptions,
}

impl Rendezvous {
    /// A rendezvous at an explicit address, `tcp://HOST:PORT`, with defaults for everything else.
    ///
    /// # Errors
    /// The address is none, or `rank` is no rank of `world_size`.
    pub fn tcp(address: &str, rank: usize, world_size: usize) -> Result<Self, JoinError> {
        let malformed = |why: &str| JoinError::Address { address: address.into(), why: why.into() };
        let plain = address.strip_prefix("tcp://").ok_or_else(|| malformed("it does not begin with tcp://"))?;
        let (host, port) = plain.rsplit_once(':').ok_or_else(|| malformed("the port is missing"))?;
        if host.is_empty() {
            return Err(malformed("the host is missing"));
        }
        port.parse::<u16>().map_err(|_| malformed("the port is not a number up to 65535"))?;
        if rank >= world_size {
            return Err(JoinError::Rank { rank, world_size });
        }
        Ok(Rendezvous {
            rank,
            world_size,
            address: plain.to_owned(),
            more_ports: vec![],
            meeting_point: MeetingPoint::Address,
            listener: None,
            token: None,
            token_file: None,
            job: String::new(),
            attempt: 0,
            join_timeout: JOIN_TIMEOUT,
            heartbeat: Duration::from_secs(5),
            transport: TransportChoice::Auto,
            node: None,
            options: GroupOptions::default(),
        })
    }

    /// Joins the group; returns when all ranks are ready. A world size of 1 opens no connection.
    ///
    /// # Errors
    /// A rank does not come in time, is refused or fails, or a token is missing: [`JoinError`] says which.
    pub fn join(mut self) -> Result<Group, JoinError> {
        if self.rank >= self.world_size {
            return Err(JoinError::Rank { rank: self.rank, world_size: self.world_size });
        }
        if self.world_size == 1 {
            return Ok(Group::single());
        }
        let deadline = deadline_after(self.join_timeout);
        let rank_zero_address = self.rank_zero_address(deadline)?;
        let secret = self.secret()?;
        let failure = Arc::new(Failure::default());
        let recorder = FlightRecorder::default();
        let rank = self.rank;
        let entrance = if rank == 0 {
            self.open(rank_zero_address, secret, &failure, &recorder)
        } else {
            self.enter(rank_zero_address, &secret, deadline, &failure, &recorder)
        };
        let entrance = entrance.map_err(|error| error.of_rank_here(rank))?;
        let Entrance { ip, store_ip: ip_of_rank_0, .. } = entrance;
        let network = Network { token: entrance.token.clone(), ip, ip_of_rank_0 };
        let node = self.node.clone();
        let all_reduce = self.options.all_reduce;
        let connectivity = Connectivity { transport: self.transport, node, all_reduce, network: Some(network) };
        let job_ranks = (0..self.world_size).collect();
        let path = GroupPath::default();
        let address = &*self.address;
        let identity = self.identity();
        let seat = Seat { rank, job_ranks, path, identity, connectivity: &connectivity, address, deadline };
        let refusals = entrance.liveness.server.as_ref().and_then(Server::refusals);
        let meeting = Meeting {
            rendezvous: &self,
            store: &entrance.store,
            failure: &failure,
            deadline,
            refusals: refusals.as_deref(),
        };
        let Formed { members, topology, hosts, ways, transport, refused } =
            seat.form(&meeting).map_err(|error| meeting.fail(error))?;
        failure.set_hosts(hosts);
        let mut liveness = entrance.liveness;
        let refused_by_server = liveness.server.as_mut().and_then(Server::shut_the_door);
        for refused in [refused_by_server, refused].into_iter().flatten() {
            failure.refused(rank, refused);
        }
        log::debug!("rank {rank} of {} has joined the group at {}", self.world_size, self.address);
        let group_state =
            GroupState::new(failure.clone(), recorder, self.options, connectivity, Some(Arc::new(liveness)));
        Group::new((members, topology), Some(transport), ways, group_state.clone()).map_err(|error| meeting.fail(error))
    }

    fn identity(&self) -> Identity {
        Identity::of_job(&self.job, self.attempt)
    }

    fn introduction(&self, purpose: Purpose) -> Introduction {
        let identity = self.identity();
        let host = host_name();
        Introduction { purpose, rank: self.rank, target: 0, world_size: self.world_size, identity, host }
    }

    /// Where the group's secret is. Only groups on loopback get here without a token and a token file.
    fn secret(&self) -> Result<Secret, JoinError> {
        Ok(match (&self.token, &self.token_file) {
            (Some(token), _) => Secret::Known(token.clone()),
            (None, Some(path)) => Secret::InFile(path.clone()),
            (None, None) => Secret::Known(Token::of_user()?),
        })
    }

    /// Rank 0's first step: listens.
    fn open(
        &mut self,
        mut rank_zero_address: RankZeroAddress,
        secret: Secret,
        failure: &Arc<Failure>,
        recorder: &FlightRecorder,
    ) -> Result<Entrance, JoinError> {
        let listener = self.listen(&mut rank_zero_address)?;
        let (token, token_file) = match secret {
            Secret::Known(token) => (token, None),
            Secret::InFile(path) => {
                let token = Token::generate().and_then(|token| token.write_file(&path).map(|()| token));
                let token = token.map_err(|source| JoinError::TokenFile { path: path.clone(), source })?;
                (token, Some(Removed(path)))
            }
        };
        let ip = listener.local_addr().map_err(JoinError::Thread)?.ip();
        let identity = self.identity();
        let heartbeat = self.heartbeat;
        let server = Server::start(listener, token.clone(), identity, self.world_size, heartbeat, failure, recorder)?;
        let store = server.store();
        let liveness = Liveness { server: Some(server), control: None };
        Ok(Entrance { store, token, ip, store_ip: ip, liveness, _token_file: token_file })
    }

    /// Every other rank's first step: connects to rank 0.
    fn enter(
        &mut self,
        mut rank_zero_address: RankZeroAddress,
        secret: &Secret,
        deadline: Instant,
        failure: &Arc<Failure>,
        recorder: &FlightRecorder,
    ) -> Result<Entrance, JoinError> {
        let (control, token) =
            connect::to_rank_0(self, secret, &mut rank_zero_address, Purpose::Control, deadline, failure)?;
        let ip = self.own_door(control.stream().local_addr().map_err(JoinError::Thread)?.ip());
        let reached = control.stream().peer_addr().map_err(JoinError::Thread)?;
        let store_ip = reached.ip();
        let control = Control::start(control, self.address.clone(), failure, recorder, self.heartbeat)
            .map_err(JoinError::Thread)?;
        let mut there = RankZeroAddress::Known(vec![reached]);
        let (store, _) = connect::to_rank_0(self, secret, &mut there, Purpose::Store, deadline, failure)
            .map_err(|error| failure.cause().map_or(error, JoinError::Cause))?;
        let store = Store::There(store);
        let liveness = Liveness { server: None, control: Some(control) };
        Ok(Entrance { store, token, ip, store_ip, liveness, _token_file: None })
    }
}

/// Where the group's secret is.
enum Secret {
    Known(Token),
    /// In a file that rank 0 writes, which may not have happened yet.
    InFile(PathBuf),
}

/// A rank's part in monitoring that all ranks are alive, held as long as the group exists. Dropping it says goodbye.
pub(crate) struct Liveness {
    /// Of rank 0.
    server: Option<Server>,
    /// Of every other rank.
    #[expect(dead_code, reason = "held for its drop")]
    control: Option<Control>,
}

/// A rank's resources once it is in contact with rank 0.
struct Entrance {
    store: Store,
    token: Token,
    /// The address at which other ranks reach this rank.
    ip: IpAddr,
    /// The address at which this rank reaches rank 0.
    store_ip: IpAddr,
    liveness: Liveness,
    _token_file: Option<Removed>,
}

/// A file that is removed on drop.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
