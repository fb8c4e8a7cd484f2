//! Forms a group of ranks that can already communicate: exchanges their addresses, chooses the transport, and waits
//! until every rank is ready.
//!
//! The ranks of a job communicate through the store at rank 0. Those of a group split from another use that group's
//! operations. Everything else is the same for both.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{JoinError, TransportChoice, connect};
use crate::cause::host_name;
use crate::group_path::GroupPath;
use crate::net::acceptor::Acceptor;
use crate::net::handshake::{Introduction, Purpose, answer};
use crate::net::link::Link;
use crate::operation::Identity;
use crate::token::Token;
use crate::transport::region::Region;
use crate::transport::shared::SharedTransport;
use crate::transport::tcp::TcpTransport;
use crate::transport::{Members, Transport};

/// How long a rank waits for a connection before it checks whether any rank still waits for it.
const LOOK: Duration = Duration::from_secs(1);

/// How the ranks of a forming group exchange values.
pub(crate) trait Board {
    /// Publishes this rank's value of a subject, and returns the values of all ranks.
    fn exchange(&self, subject: &str, value: &str) -> Result<Vec<String>, JoinError>;

    /// An error once waiting for connections has become pointless.
    fn go_on_waiting(&self) -> Result<(), JoinError>;

    /// The error for a malformed value.
    fn nonsense(&self, why: &str) -> JoinError;
}

/// Where a rank is, and how others reach it; kept for groups split later from its first group.
#[derive(Clone)]
pub(crate) struct Reach {
    pub transport: TransportChoice,
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

impl Reach {
    /// The reach of ranks that are threads of one process.
    pub(crate) fn within_process() -> Self {
        Reach { transport: TransportChoice::Shared, network: None }
    }
}

/// A rank's place in the group being formed.
pub(crate) struct Seat<'a> {
    pub rank: usize,
    /// The numbers in the whole job of all ranks of the group.
    pub job_ranks: Vec<usize>,
    pub path: GroupPath,
    pub identity: Identity,
    pub reach: &'a Reach,
    /// The ranks' meeting address, for messages.
    pub address: &'a str,
    pub deadline: Instant,
}

/// The card that every rank publishes about itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub host: String,
    /// Equal for ranks that can share memory: the running kernel, the process namespace, and the user.
    pub place: String,
    pub transport: String,
}

impl Card {
    fn own(transport: TransportChoice) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let user = rustix::process::geteuid().as_raw();
        Card {
            host: host_name(),
            place: format!("{} {} {user}", boot.trim(), namespace.display()),
            transport: format!("{transport:?}").to_lowercase(),
        }
    }

    fn to_text(&self) -> String {
        format!("{}\n{}\n{}", self.host, self.place, self.transport)
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.splitn(3, '\n').map(str::to_owned);
        Some(Card { host: lines.next()?, place: lines.next()?, transport: lines.next()? })
    }
}

/// What ranks that have met are to each other.
pub(crate) struct Formed {
    pub members: Members,
    /// The machine of each of them.
    pub hosts: Vec<String>,
    pub transport: Box<dyn Transport>,
}

impl Seat<'_> {
    /// Every step from ranks that can communicate to the first operation.
    pub(crate) fn form(&self, board: &dyn Board) -> Result<Formed, JoinError> {
        let choice = self.reach.transport;
        let cards = board.exchange("card", &Card::own(choice).to_text())?;
        let cards = cards.iter().map(|text| Card::from_text(text)).collect::<Option<Vec<_>>>();
        let cards = cards.ok_or_else(|| board.nonsense("a malformed card"))?;
        if let Some(rank) = cards.iter().position(|card| card.transport != cards[0].transport) {
            let why = format!(
                "the transport is {} on rank {} and {} on rank {}: start all ranks with the same options",
                cards[0].transport, self.job_ranks[0], cards[rank].transport, self.job_ranks[rank]
            );
            let rank = self.job_ranks[self.rank];
            return Err(JoinError::Refused { rank, address: self.address.to_owned(), why });
        }
        let members =
            Members { rank: self.rank, job_ranks: self.job_ranks.clone(), identity: self.identity, path: self.path };

        let region = match choice {
            TransportChoice::Tcp => Err("not requested".into()),
            TransportChoice::Auto | TransportChoice::Shared => self.share(board, &cards)?,
        };
        let network = self.reach.network.as_ref().filter(|_| choice != TransportChoice::Shared);
        let transport: Box<dyn Transport> = match (region, network) {
            (Ok(region), _) => {
                board.exchange("ready", "")?;
                Box::new(SharedTransport::new(Arc::new(region), members.clone()))
            }
            (Err(why), None) => return Err(JoinError::NotShared { why }),
            (Err(_), Some(network)) => {
                let links = self.connect_all(board, network)?;
                let transport = TcpTransport::new(members.clone(), links);
                Box::new(transport.map_err(|source| JoinError::Thread { source })?)
            }
        };
        let hosts = cards.into_iter().map(|card| card.host).collect();
        Ok(Formed { members, hosts, transport })
    }

    /// Shared memory for all ranks, or the reason why none of them uses it.
    fn share(&self, board: &dyn Board, cards: &[Card]) -> Result<Result<Region, String>, JoinError> {
        let [first, own] = [self.job_ranks[0], self.job_ranks[self.rank]];
        if let Some(rank) = cards.iter().position(|card| card.place != cards[0].place) {
            let rank = self.job_ranks[rank];
            let why =
                format!("rank {rank} is on another machine, in another container or of another user than rank {first}");
            return Ok(Err(why));
        }
        let ranks = cards.len();
        // The first rank keeps the file open until all have mapped it. Afterwards only the mappings hold it, so the
        // memory disappears with the last rank, however that rank ends.
        let created = (self.rank == 0).then(|| Region::create(ranks));
        let path = match &created {
            Some(Ok((_, file))) => Region::path_of(file),
            Some(Err(_)) | None => String::new(),
        };
        let told = board.exchange("memory", &path)?;
        let path = told.first().map_or("", String::as_str);
        let region = match &created {
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(error.to_string()),
            None => Region::open(Path::new(path), ranks)
                .map(Some)
                .map_err(|error| format!("rank {own} cannot map {path}: {error}")),
        };
        let problems = board.exchange("mapped", region.as_ref().err().map_or("", String::as_str))?;
        if let Some(problem) = problems.into_iter().find(|problem| !problem.is_empty()) {
            return Ok(Err(problem));
        }
        Ok(match (region, created) {
            (Ok(Some(region)), _) | (Ok(None), Some(Ok((region, _)))) => Ok(region),
            (Err(problem), _) => Err(problem),
            (Ok(None), _) => Err("no memory was created".to_owned()),
        })
    }

    /// A connection to every other rank, once all ranks have theirs: this rank connects to the lower ones, and accepts
    /// connections from the higher ones.
    fn connect_all(&self, board: &dyn Board, network: &Network) -> Result<Vec<(usize, Link)>, JoinError> {
        let (rank, ranks, identity) = (self.rank, self.job_ranks.len(), self.identity);
        let job_rank = self.job_ranks[rank];
        // A rank that looks for another group of the job holds another token.
        let token = match self.path.is_whole_job() {
            true => network.token.clone(),
            false => network.token.derive(format!("group {}", self.path).as_bytes()),
        };
        let arrivals = Arc::<Arrivals>::default();
        let (job_ranks, arrived) = (self.job_ranks.clone(), arrivals.clone());
        let door = Arc::new(move |link: Link, who: Introduction| {
            let ours = who.purpose == Purpose::Data && who.identity == identity && who.world_size == ranks;
            let higher = job_ranks.iter().skip(rank + 1).position(|&other| other == who.rank);
            let other = higher.filter(|_| ours && who.target == job_rank).map(|higher| rank + 1 + higher);
            match other {
                Some(other) => arrived.admit(other, link),
                // The end of the connection tells the other side as much.
                None => drop(answer(&link, Some(&format!("rank {job_rank} expects another rank")))),
            }
        });
        let thread = |source| JoinError::Thread { source };
        let listener = TcpListener::bind((network.ip, 0)).map_err(thread)?;
        let acceptor = Acceptor::start(listener, token.clone(), ranks, door).map_err(thread)?;
        let addresses = board.exchange("address", &acceptor.address().to_string())?;

        let mut links = vec![];
        let (purpose, host) = (Purpose::Data, host_name());
        let mut introduction = Introduction { purpose, rank: job_rank, target: 0, world_size: ranks, identity, host };
        for (other, text) in addresses.iter().enumerate().take(rank) {
            let mut address: SocketAddr = text.parse().map_err(|_| board.nonsense("a malformed address"))?;
            if address.ip().is_unspecified() {
                // Rank 0 of the job was given a socket that listens on all addresses: use the one at which this rank
                // reached it.
                address.set_ip(network.ip_of_rank_0);
            }
            introduction.target = self.job_ranks[other];
            let link = connect::to_rank(address, &token, &introduction, self.deadline, || board.go_on_waiting())?
                .map_err(|why| JoinError::Refused { rank: job_rank, address: text.clone(), why })?;
            links.push((other, link));
        }
        while !arrivals.are(ranks - rank - 1, self.left().min(LOOK)) {
            board.go_on_waiting()?;
        }
        // Until every rank has its connections, one that heard no answer may come again.
        board.exchange("ready", "")?;
        drop(acceptor);
        links.extend(std::mem::take(&mut *arrivals.links()));
        Ok(links)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// Connections from higher ranks, by their places in the group.
#[derive(Default)]
struct Arrivals {
    links: Mutex<BTreeMap<usize, Link>>,
    changed: Condvar,
}

impl Arrivals {
    /// Answers a rank, and keeps its latest connection: a rank that comes again has given up the one before. The answer
    /// is sent under the lock, so a thread that knows of it finds the connection here.
    fn admit(&self, other: usize, link: Link) {
        let mut links = self.links();
        if answer(&link, None).is_ok() {
            links.insert(other, link);
            self.changed.notify_one();
        }
    }

    /// Whether so many have arrived within `limit`.
    fn are(&self, expected: usize, limit: Duration) -> bool {
        let few = |links: &mut BTreeMap<_, _>| links.len() < expected;
        let waited = self.changed.wait_timeout_while(self.links(), limit, few).unwrap_or_else(PoisonError::into_inner);
        !waited.1.timed_out()
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<usize, Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::rendezvous::{Meeting, Rendezvous, Store};

    #[test]
    fn cards_round_trip() {
        let card = Card::own(TransportChoice::Tcp);
        assert_eq!(Card::from_text(&card.to_text()), Some(card));
        assert_eq!(Card::from_text("host\nplace"), None);
    }

    /// The results of ranks 1 and 2 of 3 for the path that rank 0, played by the test, publishes.
    fn share(path: &str, cards: [&'static str; 3]) -> Vec<Result<(), String>> {
        let values = Arc::<crate::store::KeyValues>::default();
        for (key, value) in [("memory/0", path), ("mapped/0", "")] {
            Store::Here(values.clone()).set(key, value.as_bytes()).unwrap();
        }
        let ranks = [1, 2].map(|rank| {
            let store = Store::Here(values.clone());
            std::thread::spawn(move || {
                let rendezvous = &Rendezvous::tcp("tcp://127.0.0.1:1", rank, 3).unwrap();
                let deadline = Instant::now() + Duration::from_secs(60);
                let meeting = Meeting { rendezvous, store: &store, failure: &Failure::default(), deadline };
                let (reach, identity, path) = (&Reach::within_process(), Identity::default(), GroupPath::default());
                let seat = Seat { rank, job_ranks: vec![0, 1, 2], path, identity, reach, address: "", deadline };
                let card = |place: &str| Card { host: "h".into(), place: place.into(), transport: "auto".into() };
                seat.share(&meeting, &cards.map(card)).unwrap().map(drop)
            })
        });
        ranks.map(|rank| rank.join().unwrap()).into()
    }

    #[test]
    fn all_ranks_share_memory_or_none_does() {
        let (_region, file) = Region::create(3).unwrap();
        assert_eq!(share(&Region::path_of(&file), ["here"; 3]), [Ok(()), Ok(())]);
        for result in share("/proc/self/fd/99999", ["here"; 3]) {
            let why = result.unwrap_err();
            assert!(why.starts_with("rank 1 cannot map /proc/self/fd/99999: "), "{why}");
        }
        for result in share("", ["here", "here", "there"]) {
            assert!(result.unwrap_err().starts_with("rank 2 is on another machine"));
        }
    }
}
