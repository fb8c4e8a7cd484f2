//! Where rank 0 listens, and how the others find out: at an address that all ranks know, at one of several ports, or at
//! an address that rank 0 publishes in the store of torchrun's agent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Instant;

use super::agent_store::AgentStore;
use super::{MeetingPoint, Rendezvous};
use crate::cause::host_name;
use crate::error::JoinError;

/// Where this rank looks for rank 0.
pub(super) enum RankZeroAddress {
    /// At any of these addresses.
    Known(Vec<SocketAddr>),
    /// At the address in the agent's store. It may still be the one from before a restart, so it is read before each
    /// attempt.
    Published {
        store: AgentStore,
        /// The key that rank 0 sets.
        key: String,
    },
}

/// The notice that rank 0 publishes: the attempt it begins, and where it listens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    attempt: u32,
    /// `None` if rank 0 is on the store's machine.
    ip: Option<IpAddr>,
    port: u16,
}

impl Notice {
    pub(crate) fn to_text(&self) -> String {
        let ip = self.ip.map_or("-".to_owned(), |ip| ip.to_string());
        format!("{} {ip} {}", self.attempt, self.port)
    }

    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let attempt = word()?.parse().ok()?;
        let ip = match word()? {
            "-" => None,
            ip => Some(ip.parse().ok()?),
        };
        let notice = Notice { attempt, ip, port: word()?.parse().ok()? };
        word().is_none().then_some(notice)
    }
}

impl Rendezvous {
    /// Where to look for rank 0, or to listen as rank 0. First checks that strangers are kept out; only then asks the
    /// store.
    pub(super) fn rank_zero_address(&self, deadline: Instant) -> Result<RankZeroAddress, JoinError> {
        match self.meeting_point {
            MeetingPoint::Address => {
                let addresses = self.resolve()?;
                self.keep_out_strangers(addresses.iter().all(|address| address.ip().is_loopback()))?;
                Ok(RankZeroAddress::Known(addresses))
            }
            MeetingPoint::AgentStore { .. } => {
                self.keep_out_strangers(self.is_within_machine())?;
                let store = AgentStore::connect(&self.address, deadline).map_err(|error| self.mute(&error))?;
                Ok(RankZeroAddress::Published { store, key: format!("enmasse/{}/rank 0", self.job) })
            }
        }
    }

    fn keep_out_strangers(&self, is_within_machine: bool) -> Result<(), JoinError> {
        if is_within_machine || self.has_token() {
            return Ok(());
        }
        Err(JoinError::TokenRequired { address: self.address.clone() })
    }

    /// Whether all ranks are on the machine of the agent's store: because they were told so, or because its address is
    /// a loopback address.
    fn is_within_machine(&self) -> bool {
        self.names_loopback() || self.meeting_point == MeetingPoint::AgentStore { same_machine: true }
    }

    /// Whether the address is a loopback address on every machine, rather than a name that happens to resolve to one
    /// here.
    fn names_loopback(&self) -> bool {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host.trim_matches(['[', ']']));
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The addresses on which rank 0 listens, given the resolved ones. Many machines resolve their own name to a
    /// loopback address (127.0.1.1), where the others could not reach rank 0. With a token it may listen on all
    /// addresses instead.
    fn doors(&self, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        let is_misled = !self.names_loopback() && addresses.iter().all(|address| address.ip().is_loopback());
        let door = |address: &SocketAddr| match is_misled && self.has_token() {
            true => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()),
            false => *address,
        };
        addresses.iter().map(door).collect()
    }

    /// The address on which another rank than 0 listens, given the one from which it has reached rank 0. Where that is a loopback
    /// address for the same reason, this is all addresses, as for rank 0. The others then reach it where they have reached rank 0,
    /// which is on this machine.
    pub(super) fn own_door(&self, ip: IpAddr) -> IpAddr {
        let is_misled = !self.is_within_machine() && ip.is_loopback();
        if is_misled && self.has_token() { Ipv4Addr::UNSPECIFIED.into() } else { ip }
    }

    fn has_token(&self) -> bool {
        self.token.is_some() || self.token_file.is_some()
    }

    /// As rank 0: listens, and publishes the address where needed.
    pub(super) fn listen(&mut self, rank_zero_address: &mut RankZeroAddress) -> Result<TcpListener, JoinError> {
        if let Some(listener) = self.listener.take() {
            return Ok(listener);
        }
        match rank_zero_address {
            RankZeroAddress::Known(addresses) => {
                TcpListener::bind(&self.doors(addresses)[..]).map_err(|source| JoinError::Bind {
                    address: match &self.more_ports[..] {
                        [] => self.address.clone(),
                        ports => {
                            let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
                            format!("{}, nor on any of the ports {}", self.address, ports.join(", "))
                        }
                    },
                    source,
                })
            }
            RankZeroAddress::Published { store, key } => {
                let (listener, notice) = open_and_count(store, key, self.is_within_machine(), self.attempt)
                    .map_err(|error| self.mute(&error))?;
                self.attempt = notice.attempt;
                store.set(key, &notice.to_text()).map_err(|error| self.mute(&error))?;
                Ok(listener)
            }
        }
    }

    /// As another rank: the addresses to try now. Under torchrun the attempt is the one that rank 0 has begun, since
    /// each agent counts its restarts separately.
    pub(super) fn targets(&mut self, rank_zero_address: &mut RankZeroAddress) -> Result<Vec<SocketAddr>, String> {
        let is_within_machine = self.is_within_machine();
        let (store, key) = match rank_zero_address {
            RankZeroAddress::Known(addresses) => return Ok(addresses.clone()),
            RankZeroAddress::Published { store, key } => (store, key),
        };
        let told = |error: io::Error| format!("the store of torchrun's agent does not answer: {error}");
        let text = store.get(key).map_err(told)?.ok_or("it has not published where it listens")?;
        let notice = Notice::from_text(&text).ok_or("the store of torchrun's agent holds a malformed address")?;
        self.attempt = notice.attempt;
        let ip = match notice.ip {
            _ if is_within_machine => Ipv4Addr::LOCALHOST.into(),
            Some(ip) => ip,
            None => store.peer_ip().map_err(told)?,
        };
        Ok(vec![SocketAddr::new(ip, notice.port)])
    }

    /// The addresses of the name, first with the first port and then with the others.
    fn resolve(&self) -> Result<Vec<SocketAddr>, JoinError> {
        if let Some(address) = self.listener.as_ref().and_then(|listener| listener.local_addr().ok()) {
            return Ok(vec![address]);
        }
        let malformed = |why: String| JoinError::Address { address: self.address.clone(), why };
        let first: Vec<_> = self.address.to_socket_addrs().map_err(|error| malformed(error.to_string()))?.collect();
        if first.is_empty() {
            return Err(malformed("the name has no address".into()));
        }
        let more = self.more_ports.iter().flat_map(|port| first.iter().map(|a| SocketAddr::new(a.ip(), *port)));
        Ok(first.iter().copied().chain(more).collect())
    }

    fn mute(&self, why: &io::Error) -> JoinError {
        JoinError::AgentStore { address: self.address.clone(), why: why.to_string() }
    }
}

/// Opens a port on this machine, and counts the attempts that the agents have begun.
fn open_and_count(
    store: &mut AgentStore,
    key: &str,
    same_machine: bool,
    attempt: u32,
) -> io::Result<(TcpListener, Notice)> {
    let own = store.local_ip()?;
    let (bind, ip): (IpAddr, _) = match own {
        _ if same_machine => (Ipv4Addr::LOCALHOST.into(), None),
        // The store is on this machine, under whatever name the others use for it.
        own if own.is_loopback() => (Ipv4Addr::UNSPECIFIED.into(), None),
        own => (own, Some(own)),
    };
    let listener = TcpListener::bind((bind, 0))?;
    // Agents start each worker in a session of its own, in which one program may run after another.
    let session = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| session_in(&stat)).unwrap_or(0);
    let begun = count(store, key, &format!("{} {session}", host_name()))?;
    let port = listener.local_addr()?.port();
    Ok((listener, Notice { attempt: attempt.max(begun), ip, port }))
}

/// The session of a process, from its `stat` file: the fourth field after the name, which is in parentheses. It is 0 if
/// the session leader is outside the container; rustix's `getsid` does not support that value.
fn session_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// How often rank 0 has been restarted. The agents' own numbers do not tell: each counts the failures of its own
/// workers, and does not count restarts caused by another agent's workers.
fn count(store: &mut AgentStore, key: &str, worker: &str) -> io::Result<u32> {
    let (known, starts) = (format!("{key}/worker"), format!("{key}/starts"));
    let is_known = store.get(&known)?.as_deref() == Some(worker);
    let starts = store.add(&starts, i64::from(!is_known))?;
    store.set(&known, worker)?;
    Ok(u32::try_from(starts - 1).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::agent_store::tests::play_store;
    use super::*;
    use std::time::Duration;

    #[test]
    fn notices_round_trip() {
        for ip in [None, Some("10.0.0.1"), Some("fe80::1")] {
            let notice = Notice { attempt: 3, ip: ip.map(|ip| ip.parse().unwrap()), port: 7 };
            assert_eq!(Notice::from_text(&notice.to_text()), Some(notice));
        }
        for text in ["", "1", "1 -", "1 - x", "x - 1", "1 host 2", "1 - 65536", "1 - 2 3"] {
            assert_eq!(Notice::from_text(text), None, "{text}");
        }
    }

    fn ranks(address: &SocketAddr, restarts: [u32; 3]) -> Vec<Rendezvous> {
        let rank = |rank: usize| {
            let mut rendezvous = Rendezvous::tcp(&format!("tcp://{address}"), rank, 3).unwrap();
            rendezvous.meeting_point = MeetingPoint::AgentStore { same_machine: true };
            rendezvous.attempt = restarts[rank];
            rendezvous.join_timeout = Duration::from_secs(60);
            rendezvous
        };
        (0..3).map(rank).collect()
    }

    #[test]
    fn a_host_name_that_resolves_to_loopback_is_replaced() {
        let check = |name: &str, token: bool, found: &str, expected: &str| {
            let mut rank = Rendezvous::tcp(&format!("tcp://{name}:5"), 0, 2).unwrap();
            rank.token = token.then(|| crate::Token::from_bytes([1; 32]));
            let [found, expected] = [found, expected].map(|ip| ip.parse().unwrap());
            assert_eq!(rank.doors(&[SocketAddr::new(found, 5)]), [SocketAddr::new(expected, 5)], "{name} {token}");
            // Regression test: the other ranks of such a machine told all others a loopback address.
            assert_eq!(rank.own_door(found), expected, "{name} {token}");
        };
        check("node1", true, "127.0.1.1", "0.0.0.0");
        check("node1", true, "10.0.0.1", "10.0.0.1");
        // Without a token no other machine is let in.
        check("node1", false, "127.0.1.1", "127.0.1.1");
        for name in ["localhost", "127.0.0.1", "[::1]"] {
            check(name, true, "127.0.0.1", "127.0.0.1");
        }
    }

    /// The store outlives the ranks, and holds the address of the previous ones.
    #[test]
    fn ranks_meet_through_the_store_again_and_again() {
        let store = play_store();
        for (round, restarts) in [[0, 0, 0], [0, 1, 0], [1, 1, 0], [5, 1, 1]].into_iter().enumerate() {
            let joining = ranks(&store, restarts).into_iter().map(|rank| std::thread::spawn(|| rank.join()));
            let groups: Vec<_> = joining.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
            // Rank 0's attempt counts, and all of these ranks are in one session.
            let expected = [0, 0, 1, 5][round];
            for group in groups {
                assert_eq!(group.unwrap().attempt(), expected, "round {round}");
            }
        }
    }

    #[test]
    fn sessions_are_read() {
        for (stat, expected) in
            [("77 (a) b) S 1 76 70 0", Some(70)), ("1 (sh) S 0 0 0 0", Some(0)), ("77 (sh) S 1", None)]
        {
            assert_eq!(session_in(stat), expected, "{stat}");
        }
    }

    /// As in a container whose first process was started by the runtime outside.
    #[test]
    fn ranks_meet_in_a_session_led_from_outside() {
        let inside = |program: &str| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--pid", "--fork", "--mount-proc", program]);
            command
        };
        if !inside("true").status().is_ok_and(|status| status.success()) {
            println!("skipped: unshare cannot make a process namespace here");
            return;
        }
        let mut command = inside(std::env::current_exe().unwrap().to_str().unwrap());
        let name = "rendezvous::rank_zero_address::tests::ranks_meet_through_the_store_again_and_again";
        let output = command.args(["--exact", name]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn starts_of_rank_0_are_counted_and_its_programs_are_not() {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut store = AgentStore::connect(&play_store().to_string(), deadline).unwrap();
        for (worker, expected) in [("a 1", 0), ("a 1", 0), ("a 2", 1), ("b 2", 2), ("b 2", 2), ("a 1", 3)] {
            assert_eq!(count(&mut store, "job", worker).unwrap(), expected, "{worker}");
        }
        assert_eq!(count(&mut store, "another", "a 1").unwrap(), 0);
    }

    #[test]
    fn an_address_without_a_store_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        for mut rank in ranks(&address, [0; 3]) {
            rank.join_timeout = Duration::from_millis(100);
            let error = rank.join().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("the store of torchrun's agent at {address} does not answer")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_taken_port_is_skipped() {
        // Two ports of programs that accept connections without an answer, and then a free one.
        let taken: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut ports: Vec<u16> = taken.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let refuse = |listener: TcpListener| {
            std::thread::spawn(move || listener.incoming().for_each(drop));
        };
        taken.into_iter().for_each(refuse);
        let rank = |rank: usize, ports: &[u16]| {
            let mut rendezvous = Rendezvous::tcp(&format!("tcp://127.0.0.1:{}", ports[0]), rank, 2).unwrap();
            rendezvous.more_ports = ports[1..].to_vec();
            rendezvous.join_timeout = Duration::from_secs(60);
            rendezvous
        };
        let error = rank(0, &ports).join().unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{}, nor on any of the ports {}", ports[0], ports[1])), "{error}");
        // Below the ports that the kernel gives to other tests.
        let first = 20_000 + (std::process::id() % 10_000) as u16;
        let mut candidates = first..first + 1_000;
        ports.extend(candidates.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()));
        let joining = [0, 1].map(|number| {
            let rank = rank(number, &ports);
            std::thread::spawn(|| rank.join())
        });
        // Neither leaves before both have joined.
        let groups = joining.map(|rank| rank.join().unwrap().unwrap());
        assert_eq!(groups.map(|group| group.world_size()), [2, 2]);
    }
}
