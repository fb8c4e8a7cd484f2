//! What ranks settle through the store: who is here, what carries the operations, and that everybody is ready.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Entrance, JoinError, Members, Purpose, Rendezvous, Store, StoreError, TransportChoice, connect};
use crate::cause::host_name;
use crate::failure::Failure;
use crate::net::acceptor::{Acceptor, Admit};
use crate::net::handshake::answer;
use crate::transport::Transport;
use crate::transport::region::Region;
use crate::transport::shared::SharedTransport;
use crate::transport::tcp::TcpTransport;

/// How long a rank that lost the store waits to hear why by its control connection.
const GRACE: Duration = Duration::from_secs(1);

/// What every rank tells of itself.
#[derive(Debug, PartialEq, Eq)]
struct Card {
    host: String,
    /// Equal where memory can be shared: the running kernel, the process namespace, and the user.
    place: String,
    transport: String,
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

/// A rank's conversation through the store.
struct Meeting<'a> {
    rendezvous: &'a Rendezvous,
    store: &'a Store,
    failure: &'a Failure,
    deadline: Instant,
}

impl Rendezvous {
    /// Everything between reaching rank 0 and the first operation.
    pub(super) fn form(
        &self,
        entrance: &Entrance,
        deadline: Instant,
        failure: &Arc<Failure>,
    ) -> Result<(Members, Box<dyn Transport>), JoinError> {
        let meeting = Meeting { rendezvous: self, store: &entrance.store, failure, deadline };
        meeting.tell("card", &Card::own(self.transport).to_text())?;
        let cards = meeting.hear_all("card")?;
        let cards = cards.iter().map(|text| Card::from_text(text)).collect::<Option<Vec<_>>>();
        let cards = cards.ok_or_else(|| meeting.nonsense("a malformed card"))?;
        if let Some(rank) = cards.iter().position(|card| card.transport != cards[0].transport) {
            let why = format!(
                "the transport is {} on rank 0 and {} on rank {rank}: start all ranks with the same options",
                cards[0].transport, cards[rank].transport
            );
            return Err(JoinError::Refused { rank: self.rank, address: self.address.clone(), why });
        }
        let hosts = cards.iter().map(|card| card.host.clone()).collect();
        let members = Members { rank: self.rank, hosts, identity: self.identity() };

        let region = match self.transport {
            TransportChoice::Tcp => Err("not asked for".into()),
            _ => meeting.share(&cards)?,
        };
        let transport: Box<dyn Transport> = match region {
            Ok(region) => Box::new(SharedTransport::new(Arc::new(region), members.clone())),
            Err(why) if self.transport == TransportChoice::Shared => return Err(JoinError::NotShared { why }),
            Err(_) => {
                let streams = meeting.connect_all(entrance)?;
                let transport = TcpTransport::new(members.clone(), streams);
                Box::new(transport.map_err(|source| JoinError::Thread { source })?)
            }
        };
        meeting.tell("ready", "")?;
        meeting.hear_all("ready")?;
        Ok((members, transport))
    }
}

impl Meeting<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Sets this rank's value of a subject.
    fn tell(&self, subject: &str, value: &str) -> Result<(), JoinError> {
        let key = format!("{subject}/{}", self.rendezvous.rank);
        self.store.set(&key, value.as_bytes()).map_err(|error| self.lost(error))
    }

    /// One rank's value of a subject.
    fn hear(&self, subject: &str, rank: usize) -> Result<String, JoinError> {
        match self.store.wait(&format!("{subject}/{rank}"), self.left()) {
            Ok(value) => Ok(String::from_utf8_lossy(&value).into_owned()),
            Err(StoreError::Late(_)) => Err(self.missing(subject)),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Every rank's value of a subject.
    fn hear_all(&self, subject: &str) -> Result<Vec<String>, JoinError> {
        (0..self.rendezvous.world_size).map(|rank| self.hear(subject, rank)).collect()
    }

    /// The deadline has passed: who has not told?
    fn missing(&self, subject: &str) -> JoinError {
        let Rendezvous { world_size, address, join_timeout, .. } = self.rendezvous;
        let told = |rank: &usize| self.store.wait(&format!("{subject}/{rank}"), Duration::ZERO).is_ok();
        JoinError::Missing {
            missing: (0..*world_size).filter(|rank| !told(rank)).collect(),
            world_size: *world_size,
            address: address.clone(),
            seconds: join_timeout.as_secs_f64(),
        }
    }

    /// The store ended: because the group did, which the control connection tells.
    fn lost(&self, error: StoreError) -> JoinError {
        if self.failure.fails_within(GRACE)
            && let Some(cause) = self.failure.cause()
        {
            return JoinError::Cause(cause);
        }
        self.nonsense(&error.to_string())
    }

    fn nonsense(&self, why: &str) -> JoinError {
        JoinError::Store { address: self.rendezvous.address.clone(), why: why.to_owned() }
    }

    /// Shared memory for all ranks, or the reason why all of them do without.
    fn share(&self, cards: &[Card]) -> Result<Result<Region, String>, JoinError> {
        if let Some(rank) = cards.iter().position(|card| card.place != cards[0].place) {
            let why = format!("rank {rank} is on another machine, in another container or of another user than rank 0");
            return Ok(Err(why));
        }
        let (rank, ranks) = (self.rendezvous.rank, cards.len());
        // Rank 0 keeps the file open until all have mapped it. Afterwards only the mappings hold it, so that it vanishes
        // with the last rank, however that ends.
        let (region, _file) = if rank == 0 {
            match Region::create(ranks) {
                Ok((region, file)) => {
                    self.tell("memory", &Region::path_of(&file))?;
                    (Ok(region), Some(file))
                }
                Err(error) => {
                    self.tell("memory", "")?;
                    (Err(error.to_string()), None)
                }
            }
        } else {
            let path = self.hear("memory", 0)?;
            (
                Region::open(Path::new(&path), ranks)
                    .map_err(|error| format!("rank {rank} cannot map {path}: {error}")),
                None,
            )
        };
        self.tell("mapped", region.as_ref().err().map_or("", String::as_str))?;
        let problems = self.hear_all("mapped")?;
        match problems.into_iter().find(|problem| !problem.is_empty()) {
            Some(problem) => Ok(Err(problem)),
            None => Ok(region),
        }
    }

    /// A connection to every other rank: this rank connects to those below it, and those above connect to it.
    fn connect_all(&self, entrance: &Entrance) -> Result<Vec<(usize, TcpStream)>, JoinError> {
        let Rendezvous { rank, world_size, .. } = *self.rendezvous;
        let (identity, expected) = (self.rendezvous.identity(), world_size - 1 - rank);
        let (sender, receiver) = mpsc::channel();
        let sender = Mutex::new(sender);
        let admit: Arc<Admit> = Arc::new(move |stream, who| {
            let ours = who.purpose == Purpose::Data && who.identity == identity && who.world_size == world_size;
            let refusal = (!ours || who.rank <= rank).then(|| format!("rank {rank} expects another rank"));
            if answer(&stream, refusal.as_deref()).is_ok()
                && refusal.is_none()
                && let Ok(sender) = sender.lock()
            {
                let _ = sender.send((who.rank, stream));
            }
        });
        let thread = |source| JoinError::Thread { source };
        let listener = TcpListener::bind((entrance.ip, 0)).map_err(thread)?;
        let acceptor = Acceptor::start(listener, entrance.token.clone(), admit).map_err(thread)?;
        self.tell("address", &acceptor.address().to_string())?;

        let mut streams = vec![];
        for other in 0..rank {
            let text = self.hear("address", other)?;
            let mut address: SocketAddr = text.parse().map_err(|_| self.nonsense("a malformed address"))?;
            if address.ip().is_unspecified() {
                // Rank 0 was handed a socket that listens everywhere: it is where this rank reached it.
                address.set_ip(entrance.store_ip);
            }
            let introduction = self.rendezvous.introduction(Purpose::Data);
            let stream = connect::to_rank(address, &entrance.token, &introduction, self.deadline)
                .map_err(|why| JoinError::Refused { rank, address: text, why })?;
            streams.push((other, stream));
        }
        while streams.len() < rank + expected {
            match receiver.recv_timeout(self.left().min(GRACE)) {
                Ok((other, _)) if streams.iter().any(|(known, _)| *known == other) => {}
                Ok(connection) => streams.push(connection),
                Err(_) if self.failure.is_stopping() => return Err(self.lost(StoreError::Late("address".into()))),
                Err(_) if self.left().is_zero() => return Err(self.missing("ready")),
                Err(_) => {}
            }
        }
        Ok(streams)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_round_trip() {
        let card = Card::own(TransportChoice::Tcp);
        assert_eq!(Card::from_text(&card.to_text()), Some(card));
        assert_eq!(Card::from_text("host\nplace"), None);
    }

    /// What ranks 1 and 2 of 3 make of the path that rank 0, played by the test, tells them.
    fn share(path: &str, cards: [&'static str; 3]) -> Vec<Result<(), String>> {
        let values = Arc::<crate::store::KeyValues>::default();
        for (key, value) in [("memory/0", path), ("mapped/0", "")] {
            Store::Here(values.clone()).set(key, value.as_bytes()).unwrap();
        }
        let ranks = [1, 2].map(|rank| {
            let store = Store::Here(values.clone());
            std::thread::spawn(move || {
                let rendezvous = &Rendezvous::tcp("tcp://127.0.0.1:1", rank, 3).unwrap();
                let deadline = Instant::now() + Duration::from_secs(20);
                let meeting = Meeting { rendezvous, store: &store, failure: &Failure::default(), deadline };
                let card = |place: &str| Card { host: "h".into(), place: place.into(), transport: "auto".into() };
                meeting.share(&cards.map(card)).unwrap().map(drop)
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
