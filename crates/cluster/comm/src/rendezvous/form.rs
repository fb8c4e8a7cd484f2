//! Forms a group of ranks that can already communicate: exchanges their addresses, chooses the transport, and waits
//! until every rank is ready.
//!
//! The ranks of a job communicate through the store at rank 0. Those of a group split from another use that group's
//! operations. Everything else is the same for both.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::{JoinError, TransportChoice, connect};
use crate::algorithm::AlgorithmChoice;
use crate::cause::host_name;
use crate::error::files_limit;
use crate::group_path::GroupPath;
use crate::locks::{lock, wait_while};
use crate::net::acceptor::{Acceptor, Door};
use crate::net::handshake::{Introduction, Purpose, answer};
use crate::net::link::Link;
use crate::net::refused::Refused;
use crate::operation::Identity;
use crate::token::Token;
use crate::topology::Topology;
use crate::transport::hierarchical::sockets::Sockets;
use crate::transport::hierarchical::{HierarchicalTransport, Links};
use crate::transport::region::Region;
use crate::transport::shared::SharedTransport;
use crate::transport::{Members, Transport};

/// How long a rank waits for a connection before it checks whether any rank still waits for it.
const LOOK: Duration = Duration::from_secs(1);

/// What a rank publishes of one of its options.
type OptionOf = fn(&RankInfo) -> &str;

/// How the ranks of a forming group exchange values.
pub(crate) trait Board {
    /// Publishes this rank's value of a subject, and returns the values of all ranks.
    fn exchange(&self, subject: &str, value: &str) -> Result<Vec<String>, JoinError>;

    /// An error once waiting for connections has become pointless.
    fn go_on_waiting(&self) -> Result<(), JoinError>;

    /// The error for a malformed value.
    fn nonsense(&self, why: &str) -> JoinError;

    /// Tells the other ranks of this rank's error, so that they need not wait for their deadlines. Returns the group's first
    /// cause, or this error if that is the cause.
    fn fail(&self, error: JoinError) -> JoinError;
}

/// Where a rank is, and how others reach it; kept for groups split later from its first group.
#[derive(Clone)]
pub(crate) struct Connectivity {
    pub transport: TransportChoice,
    /// See [`crate::Rendezvous::node`].
    pub node: Option<String>,
    /// See [`crate::GroupOptions::all_reduce`].
    pub all_reduce: AlgorithmChoice,
    /// `None` for ranks that are threads of one process: they open no connections.
    pub network: Option<Network>,
}

/// What a rank needs to connect to others.
#[derive(Clone)]
pub(crate) struct Network {
    pub token: Token,
    /// The address at which other ranks reach this rank.
    pub ip: IpAddr,
    /// The address at which this rank reaches rank 0 of the job.
    pub ip_of_rank_0: IpAddr,
}

impl Connectivity {
    /// The reach of ranks that are threads of one process.
    pub(crate) fn within_process() -> Self {
        let all_reduce = AlgorithmChoice::default();
        Connectivity { transport: TransportChoice::Shared, node: None, all_reduce, network: None }
    }
}

/// A rank's place in the group being formed.
pub(crate) struct Seat<'a> {
    pub rank: usize,
    /// The numbers in the whole job of all ranks of the group.
    pub job_ranks: Vec<usize>,
    pub path: GroupPath,
    pub identity: Identity,
    pub connectivity: &'a Connectivity,
    /// The ranks' meeting address, for messages.
    pub address: &'a str,
    pub deadline: Instant,
}

/// What every rank publishes about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankInfo {
    pub host: String,
    /// The running kernel.
    pub machine: String,
    /// The process namespace and the user: what else must be equal for ranks to open each other's memory.
    pub place: String,
    /// The network namespace, and the node's name if the caller gave one. What has a network of its own is a node of its
    /// own.
    pub network: String,
    pub transport: String,
    /// The algorithm of all-reduces.
    pub all_reduce: String,
}

impl RankInfo {
    fn own(connectivity: &Connectivity) -> Result<Self, JoinError> {
        let machine = match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
            // Without its name this machine would count as another one.
            Err(source) if files_limit(&source).is_some() => return Err(JoinError::Thread(source)),
            read => read.unwrap_or_default(),
        };
        let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
        let user = rustix::process::geteuid().as_raw();
        let node = connectivity.node.as_deref().unwrap_or_default();
        Ok(RankInfo {
            host: host_name(),
            machine: machine.trim().to_owned(),
            place: format!("{} {user}", namespace("pid").display()),
            network: format!("{} {}", namespace("net").display(), node.replace('\n', " ")),
            transport: connectivity.transport.to_string(),
            all_reduce: connectivity.all_reduce.to_string(),
        })
    }

    /// Equal for ranks of one node.
    fn node(&self) -> [&str; 3] {
        [&self.machine, &self.place, &self.network]
    }

    pub(crate) fn to_text(&self) -> String {
        [&*self.host, &self.machine, &self.place, &self.network, &self.transport, &self.all_reduce].join("\n")
    }

    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.splitn(6, '\n').map(str::to_owned);
        let mut line = || lines.next();
        let (host, machine, place, network) = (line()?, line()?, line()?, line()?);
        Some(RankInfo { host, machine, place, network, transport: line()?, all_reduce: line()? })
    }
}

/// What ranks that have met are to each other.
pub(crate) struct Formed {
    pub members: Members,
    pub topology: Topology,
    /// The machine of each of them.
    pub hosts: Vec<String>,
    /// How they exchange data, and why some do not share memory: lines for people.
    pub ways: Vec<String>,
    pub transport: Box<dyn Transport>,
    /// Strangers at this rank's own port.
    pub refused: Option<Refused>,
}

/// A connection to each of a rank's peers, and the strangers that came to its port meanwhile.
type Connections = (Vec<(usize, Link)>, Option<Refused>);

/// Which ranks of a forming group share memory.
struct Sharing {
    topology: Topology,
    /// The memory of this rank's node; `None` if the rank is alone there.
    region: Option<Region>,
    /// Why ranks that might do not share memory.
    problems: Vec<String>,
}

impl Seat<'_> {
    /// Every step from ranks that can communicate to the first operation.
    pub(crate) fn form(&self, board: &dyn Board) -> Result<Formed, JoinError> {
        let choice = self.connectivity.transport;
        let infos = board.exchange("card", &RankInfo::own(self.connectivity)?.to_text())?;
        let infos = infos.iter().map(|text| RankInfo::from_text(text)).collect::<Option<Vec<_>>>();
        let infos = infos.ok_or_else(|| board.nonsense("a malformed description"))?;
        let options: [(&str, OptionOf); 2] =
            [("the transport", |info| &info.transport), ("the algorithm of all-reduces", |info| &info.all_reduce)];
        for (what, option) in options {
            if let Some(rank) = infos.iter().position(|info| option(info) != option(&infos[0])) {
                let [first, other] = [0, rank].map(|rank| (option(&infos[rank]), self.job_ranks[rank]));
                let why = format!(
                    "{what} is {} on rank {} and {} on rank {}: start all ranks with the same options",
                    first.0, first.1, other.0, other.1
                );
                let rank = self.job_ranks[self.rank];
                return Err(JoinError::Refused { rank, address: self.address.to_owned(), why });
            }
        }
        let members =
            Members { rank: self.rank, job_ranks: self.job_ranks.clone(), identity: self.identity, path: self.path };

        let Sharing { topology, region, problems } = match choice {
            TransportChoice::Tcp => Sharing { topology: Topology::apart(infos.len()), region: None, problems: vec![] },
            TransportChoice::Auto | TransportChoice::Shared | TransportChoice::Mpi(_) => self.share(board, &infos)?,
        };
        let topology = topology.connected_for(self.connectivity.all_reduce);
        let mut way = topology.describe("TCP");
        let mut refused = None;
        let network = self.connectivity.network.as_ref().filter(|_| choice != TransportChoice::Shared);
        let transport: Box<dyn Transport> = match (region, network) {
            (Some(region), _) if topology.nodes().len() == 1 => {
                board.exchange("ready", "")?;
                if let TransportChoice::Mpi(_) = choice {
                    way += ", and MPI, which is for several nodes, is not used";
                }
                Box::new(SharedTransport::new(Arc::new(region), members.clone()))
            }
            (_, None) => {
                let other = topology.nodes().get(1).map_or(0, |node| self.job_ranks[node[0]]);
                let apart = format!(
                    "rank {other} is on another machine, in another container or of another user than rank {}",
                    self.job_ranks[0]
                );
                return Err(JoinError::NotShared(problems.into_iter().next().unwrap_or(apart)));
            }
            (region, Some(network)) => {
                let layout = HierarchicalTransport::layout(&topology, topology.node_of(self.rank));
                let region = region.map_or_else(|| Region::private(layout), Ok).map_err(JoinError::SharedMemory)?;
                let links: Box<dyn Links> = match choice {
                    TransportChoice::Mpi(family) => {
                        let hosts: Vec<_> = infos.iter().map(|info| &*info.host).collect();
                        let (links, library) = self.connect_by_mpi(board, family, &topology, &hosts)?;
                        way = topology.describe(&library);
                        links
                    }
                    _ => {
                        let (links, strangers) = self.connect_all(board, network, &topology)?;
                        refused = strangers;
                        Box::new(Sockets::new(links, topology.nodes().len()).map_err(JoinError::Thread)?)
                    }
                };
                let transport = HierarchicalTransport::new(members.clone(), topology.clone(), Arc::new(region), links);
                Box::new(transport.map_err(JoinError::SharedMemory)?)
            }
        };
        let ways = [way].into_iter().chain(problems).collect();
        let hosts = infos.into_iter().map(|info| info.host).collect();
        Ok(Formed { members, topology, hosts, ways, transport, refused })
    }

    /// Shared memory for the ranks of each node. The ranks of a node share it all or not at all.
    fn share(&self, board: &dyn Board, infos: &[RankInfo]) -> Result<Sharing, JoinError> {
        let nodes: Vec<_> = infos.iter().map(RankInfo::node).collect();
        let topology = Topology::new(&nodes);
        let mut problems = self.strangers(infos);
        if topology.nodes().len() == infos.len() {
            return Ok(Sharing { topology, region: None, problems });
        }
        let local_peers = &topology.nodes()[topology.node_of(self.rank)];
        let layout = match topology.nodes().len() {
            1 => SharedTransport::layout(infos.len()),
            _ => HierarchicalTransport::layout(&topology, topology.node_of(self.rank)),
        };
        // The first rank of a node keeps the file open until all have mapped it. Afterwards only the mappings hold it, so
        // the memory disappears with the last rank, however that rank ends.
        let created = match (local_peers[0] == self.rank && local_peers.len() > 1).then(|| Region::create(layout)) {
            // A rank that lacks a descriptor for memory lacks those for connections, too.
            Some(Err(source)) if files_limit(&source).is_some() => return Err(JoinError::SharedMemory(source)),
            created => created,
        };
        let path = match &created {
            Some(Ok((_, file))) => Region::path_of(file),
            Some(Err(_)) | None => String::new(),
        };
        let told = board.exchange("memory", &path)?;
        let path = told.get(local_peers[0]).map_or("", String::as_str);
        let region = match &created {
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(error.to_string()),
            None if local_peers.len() == 1 => Ok(None),
            None => match Region::open(Path::new(path), layout) {
                Err(source) if files_limit(&source).is_some() => return Err(JoinError::SharedMemory(source)),
                opened => opened
                    .map(Some)
                    .map_err(|error| format!("rank {} cannot map {path}: {error}", self.job_ranks[self.rank])),
            },
        };
        let told = board.exchange("mapped", region.as_ref().err().map_or("", String::as_str))?;
        let is_told = |rank: &usize| told.get(*rank).is_some_and(|problem| !problem.is_empty());
        let fails = |rank: usize| topology.nodes()[topology.node_of(rank)].iter().any(is_told);
        problems.extend(told.iter().filter(|problem| !problem.is_empty()).cloned());
        let created = || created.and_then(Result::ok).map(|(region, _)| region);
        let region = if fails(self.rank) { None } else { region.ok().flatten().or_else(created) };
        // The ranks of a node where that failed become nodes of their own.
        let names = (0..infos.len()).map(|rank| (nodes[rank], fails(rank).then_some(rank)));
        Ok(Sharing { topology: Topology::new(&names.collect::<Vec<_>>()), region, problems })
    }

    /// Says which ranks of one machine cannot open each other's memory, and why.
    fn strangers(&self, infos: &[RankInfo]) -> Vec<String> {
        let mut firsts = HashMap::new();
        let stranger = |rank: usize| {
            let first = *firsts.entry(&infos[rank].machine).or_insert(rank);
            (infos[first].place != infos[rank].place).then(|| {
                let [rank, first] = [rank, first].map(|rank| self.job_ranks[rank]);
                format!("rank {rank} is in another container or of another user than rank {first} on the same machine")
            })
        };
        (0..infos.len()).filter_map(stranger).collect()
    }

    /// Connects this rank to all its peers, once all ranks have theirs: it connects to the lower ones, and accepts connections
    /// from the higher ones.
    fn connect_all(&self, board: &dyn Board, network: &Network, topology: &Topology) -> Result<Connections, JoinError> {
        let job_rank = self.job_ranks[self.rank];
        // A rank that looks for another group of the job holds another token.
        let token = match self.path.is_whole_job() {
            true => network.token.clone(),
            false => network.token.derive(format!("group {}", self.path).as_bytes()),
        };
        let (lower, higher): (Vec<_>, Vec<_>) = topology.peers_of(self.rank).partition(|&peer| peer < self.rank);
        let gate = Arc::new(Gate {
            own: Introduction {
                purpose: Purpose::Data,
                rank: job_rank,
                target: job_rank,
                world_size: self.job_ranks.len(),
                identity: self.identity,
                host: host_name(),
            },
            expected: higher.into_iter().map(|place| (self.job_ranks[place], place)).collect(),
            arrived: Mutex::default(),
            changed: Condvar::new(),
        });
        let listener = TcpListener::bind((network.ip, 0)).map_err(JoinError::Thread)?;
        let acceptor = Acceptor::start(listener, token.clone(), self.job_ranks.len(), gate.clone());
        let acceptor = acceptor.map_err(JoinError::Thread)?;
        // Ranks that meet a closed socket would blame themselves, so they hear of an error before the acceptor is dropped.
        let links = self.links(board, network, &token, &gate, &lower, acceptor.address);
        let links = links.map_err(|error| board.fail(error.beside(acceptor.refusals.so_far())))?;
        Ok((links, acceptor.close()))
    }

    /// The connections to `lower` ranks and those that come through the gate, once all ranks have theirs. This rank listens
    /// at `address`.
    fn links(
        &self,
        board: &dyn Board,
        network: &Network,
        token: &Token,
        gate: &Gate,
        lower: &[usize],
        address: SocketAddr,
    ) -> Result<Vec<(usize, Link)>, JoinError> {
        let addresses = board.exchange("address", &address.to_string())?;
        let mut links = vec![];
        // The nearest first, so that not all ranks knock at the same door.
        for &other in lower.iter().rev() {
            let text = addresses.get(other).ok_or_else(|| board.nonsense("a missing address"))?;
            let mut address: SocketAddr = text.parse().map_err(|_| board.nonsense("a malformed address"))?;
            if address.ip().is_unspecified() {
                // Rank 0 of the job, or a rank on its machine, listens on all addresses: use the one that reached rank 0.
                address.set_ip(network.ip_of_rank_0);
            }
            let introduction = Introduction { target: self.job_ranks[other], ..gate.own.clone() };
            let link = connect::to_rank(address, token, &introduction, self.deadline, || board.go_on_waiting())?
                .map_err(|why| JoinError::Refused { rank: gate.own.rank, address: text.clone(), why })?;
            links.push((other, link));
        }
        while !gate.is_done(self.left().min(LOOK)) {
            if let Some(source) = lock(&gate.arrived).refused.take() {
                return Err(JoinError::Thread(source));
            }
            board.go_on_waiting()?;
        }
        // Until every rank has its connections, one that heard no answer may come again.
        board.exchange("ready", "")?;
        links.extend(std::mem::take(&mut lock(&gate.arrived).links));
        Ok(links)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// The door for the connections of a group's data, which come from the higher ones of a rank's peers.
struct Gate {
    /// This rank's introduction, to itself. Those of the others differ in the rank and the host.
    own: Introduction,
    /// The places in the group of those that are expected, by their numbers in the job.
    expected: BTreeMap<usize, usize>,
    arrived: Mutex<Arrived>,
    changed: Condvar,
}

#[derive(Default)]
struct Arrived {
    /// By places in the group.
    links: BTreeMap<usize, Link>,
    /// The kernel's refusal of a thread or a descriptor for one more.
    refused: Option<io::Error>,
}

impl Door for Gate {
    /// Answers a rank, and keeps its latest connection: a rank that comes again has given up the one before. The answer
    /// is sent under the lock, so a thread that knows of it finds the connection here.
    fn admit(&self, link: Link, who: Introduction) {
        let wanted = Introduction { rank: who.rank, host: who.host.clone(), ..self.own.clone() };
        let Some(&place) = self.expected.get(&who.rank).filter(|_| who == wanted) else {
            // The end of the connection tells the other side as much.
            let _ = answer(&link, Some(&format!("rank {} expects another rank", self.own.rank)));
            return;
        };
        let mut arrived = lock(&self.arrived);
        if answer(&link, None).is_ok() {
            arrived.links.insert(place, link);
            self.changed.notify_one();
        }
    }

    /// A rank that waits to be accepted would wait until its deadline.
    fn has_no_room(&self, refusal: io::Error) {
        lock(&self.arrived).refused = Some(refusal);
        self.changed.notify_one();
    }
}

impl Gate {
    /// Whether all have arrived; waits at most `limit`, and ends early if one is refused.
    fn is_done(&self, limit: Duration) -> bool {
        let wait = |arrived: &mut Arrived| arrived.links.len() < self.expected.len() && arrived.refused.is_none();
        wait_while(&self.changed, lock(&self.arrived), limit, wait).links.len() >= self.expected.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::rendezvous::{Meeting, Rendezvous, Store};

    #[test]
    fn cards_round_trip() {
        let info =
            RankInfo::own(&Connectivity { node: Some("a\nb".into()), ..Connectivity::within_process() }).unwrap();
        assert!(info.network.ends_with(" a b"), "{info:?}");
        assert_eq!(RankInfo::from_text(&info.to_text()), Some(info));
        assert_eq!(RankInfo::from_text("host\nmachine\nplace\nnetwork"), None);
    }

    /// What a rank publishes: the machine, the place there, and the network.
    fn info([machine, place, network]: [&str; 3]) -> RankInfo {
        let [machine, place, network] = [machine, place, network].map(str::to_owned);
        let (transport, all_reduce) = ("auto".into(), "tree".into());
        RankInfo { host: "h".into(), machine, place, network, transport, all_reduce }
    }

    /// The node of each rank, whether it has memory, and the problems, as ranks 1 and 2 of 3 see them for the path that rank
    /// 0, played by the test, publishes.
    fn share(path: &str, infos: [[&'static str; 3]; 3]) -> Vec<(Vec<usize>, bool, Vec<String>)> {
        let values = Arc::new(crate::store::Values::new(3));
        values.give(0, "memory", path.as_bytes()).unwrap();
        values.give(0, "mapped", b"").unwrap();
        let ranks = [1, 2].map(|rank| {
            let store = Store::Here(values.clone(), rank);
            std::thread::spawn(move || {
                let rendezvous = &Rendezvous::tcp("tcp://127.0.0.1:1", rank, 3).unwrap();
                let deadline = Instant::now() + Duration::from_secs(60);
                let failure = &Failure::default();
                let meeting = Meeting { rendezvous, store: &store, failure, deadline, refusals: None };
                let connectivity = &Connectivity::within_process();
                let identity = Identity::default();
                let path = GroupPath::default();
                let seat = Seat { rank, job_ranks: vec![0, 1, 2], path, identity, connectivity, address: "", deadline };
                let Sharing { topology, region, problems } = seat.share(&meeting, &infos.map(info)).unwrap();
                ((0..3).map(|rank| topology.node_of(rank)).collect(), region.is_some(), problems)
            })
        });
        ranks.map(|rank| rank.join().unwrap()).into()
    }

    #[test]
    fn the_ranks_of_a_node_share_memory_or_none_does() {
        let all = SharedTransport::layout(3);
        let (_region, file) = Region::create(all).unwrap();
        let here = ["m", "p", "n"];
        assert_eq!(share(&Region::path_of(&file), [here; 3]), vec![(vec![0, 0, 0], true, vec![]); 2]);
        for (nodes, has_memory, problems) in share("/proc/self/fd/99999", [here; 3]) {
            assert_eq!((nodes, has_memory, problems.len()), (vec![0, 1, 2], false, 2));
            assert!(problems[0].starts_with("rank 1 cannot map /proc/self/fd/99999: "), "{problems:?}");
        }
        // Ranks of other machines, and of one that is made to look like several, have no problem.
        for there in [["other", "p", "n"], ["m", "p", "other"]] {
            let of_two = HierarchicalTransport::layout(&Topology::new(&[0, 0, 1]), 0);
            let (_region, file) = Region::create(of_two).unwrap();
            let found = share(&Region::path_of(&file), [here, here, there]);
            assert_eq!(found, [(vec![0, 0, 1], true, vec![]), (vec![0, 0, 1], false, vec![])]);
            // Where the memory is not there, rank 2 does not change its ways.
            let found = share("", [here, here, there]).into_iter().map(|(nodes, has_memory, _)| (nodes, has_memory));
            assert_eq!(found.collect::<Vec<_>>(), vec![(vec![0, 1, 2], false); 2]);
        }
        let apart = share("", [here, ["m", "q", "n"], ["other", "p", "n"]]);
        let why = "rank 1 is in another container or of another user than rank 0 on the same machine".to_owned();
        assert_eq!(apart, vec![(vec![0, 1, 2], false, vec![why]); 2]);
    }
}
