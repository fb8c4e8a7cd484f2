//! Network interfaces and names: how ranks on several machines would reach each other.

use std::fs::read_to_string;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use crate::bounded::within;
use crate::lists::entries;
use crate::report::{Finding, Section};

/// An unresponsive name service would take longer.
const TIMEOUT: Duration = Duration::from_secs(3);

pub fn section(host: &str) -> Section {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    let routes = parse_routes(&read("/proc/net/route"));
    let addresses = Addresses {
        v4: parse_local_addresses(&read("/proc/net/fib_trie")),
        v6: parse_v6_addresses(&read("/proc/net/if_inet6")),
    };
    let mut findings = vec![loopback(connect_to_loopback().err())];
    findings.extend(interfaces().iter().map(|interface| interface.finding(&addresses, &routes)));
    findings.extend(infiniband());
    findings.push(own_name(host, resolve(host)));
    Section { title: "network", findings }
}

/// Listening is not enough: it works even if the interface is down.
fn connect_to_loopback() -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_secs(1)).map(drop)
}

/// Ranks of one machine meet at this interface.
fn loopback(error: Option<std::io::Error>) -> Finding {
    match error {
        None => Finding::ok("loopback", "127.0.0.1 accepts connections"),
        Some(error) => {
            let remedy = "bring the loopback interface up (ip link set lo up): ranks of one machine meet there";
            Finding::problem("loopback", format!("127.0.0.1 accepts no connections: {error}"), remedy)
        }
    }
}

/// An interface other than loopback.
struct Interface {
    name: String,
    state: String,
    /// Megabits per second, if the kernel knows.
    speed: Option<u64>,
    /// Maximum bytes of a packet.
    mtu: String,
}

fn interfaces() -> Vec<Interface> {
    let root = Path::new("/sys/class/net");
    let mut names: Vec<String> = entries(root).filter(|name| name != "lo").collect();
    names.sort();
    let interface = |name: String| {
        let read = |file: &str| read_to_string(root.join(&name).join(file)).unwrap_or_default().trim().to_owned();
        // Virtual interfaces report -1, or nothing.
        Interface { state: read("operstate"), speed: read("speed").parse().ok(), mtu: read("mtu"), name }
    };
    names.into_iter().map(interface).collect()
}

impl Interface {
    fn finding(&self, addresses: &Addresses, routes: &[Route]) -> Finding {
        let own = addresses.of(&self.name, routes);
        let list: Vec<String> = own.iter().map(IpAddr::to_string).collect();
        let mut text = match list.is_empty() {
            true => "no address".to_owned(),
            false => list.join(" "),
        };
        text.push_str(&format!(", {}", if self.state.is_empty() { "state unknown" } else { &self.state }));
        if let Some(speed) = self.speed {
            text.push_str(&format!(", {speed} Mbit/s"));
        }
        text.push_str(&format!(", packets of {} bytes", self.mtu));
        if routes.iter().any(|route| route.name == self.name && route.is_default()) {
            text.push_str(", default route");
        }
        let finding = match self.speed {
            Some(speed @ 1..1000) if !list.is_empty() => {
                let remedy =
                    "gradients of resnet34 are 87 MB per step and rank: use a faster interface between machines";
                Finding::note(&self.name, format!("{text}: {speed} Mbit/s is slow"), remedy)
            }
            _ => Finding::ok(&self.name, text),
        };
        finding.fact("addresses", list).fact("state", &*self.state).fact("mbit_per_second", self.speed)
    }
}

/// Addresses of this machine.
struct Addresses {
    v4: Vec<Ipv4Addr>,
    v6: Vec<(String, Ipv6Addr)>,
}

impl Addresses {
    /// The addresses of an interface. The kernel's table of IPv4 addresses does not name the interface, so the routes
    /// decide.
    fn of(&self, name: &str, routes: &[Route]) -> Vec<IpAddr> {
        let is_own = |address: &Ipv4Addr| {
            let holding = routes.iter().filter(|route| !route.is_default() && route.holds(*address));
            holding.max_by_key(|route| route.mask).is_some_and(|route| route.name == name)
        };
        let v6 = self.v6.iter().filter(|(of, _)| of == name).map(|(_, address)| IpAddr::V6(*address));
        self.v4.iter().copied().filter(is_own).map(IpAddr::V4).chain(v6).collect()
    }
}

/// A line of `/proc/net/route`.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    name: String,
    network: u32,
    mask: u32,
}

impl Route {
    fn is_default(&self) -> bool {
        self.mask == 0
    }

    fn holds(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask == self.network
    }
}

fn parse_routes(text: &str) -> Vec<Route> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // In network byte order, read as if in this machine's.
        let number = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok().map(u32::to_be);
        Some(Route { name: (*fields.first()?).to_owned(), network: number(1)?, mask: number(7)? })
    };
    text.lines().skip(1).filter_map(route).collect()
}

/// The host's own addresses in `/proc/net/fib_trie`, without loopback addresses.
fn parse_local_addresses(text: &str) -> Vec<Ipv4Addr> {
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last.filter(|address: &Ipv4Addr| !address.is_loopback() && !found.contains(address)));
        }
    }
    found
}

/// `fd000000000000000000000000000002 04 40 00 82     eth0`; without addresses that are valid on one link only.
fn parse_v6_addresses(text: &str) -> Vec<(String, Ipv6Addr)> {
    let address = |line: &str| {
        let mut fields = line.split_whitespace();
        let address = Ipv6Addr::from(u128::from_str_radix(fields.next()?, 16).ok()?);
        let name = fields.nth(4)?.to_owned();
        (!address.is_loopback() && !address.is_unicast_link_local()).then_some((name, address))
    };
    text.lines().filter_map(address).collect()
}

/// InfiniBand and RoCE ports, which TCP reaches only through their interfaces.
fn infiniband() -> Option<Finding> {
    let mut devices: Vec<String> = entries("/sys/class/infiniband").collect();
    devices.sort();
    let text = format!("{}; enmasse uses TCP over their network interfaces", devices.join(" "));
    (!devices.is_empty()).then(|| Finding::ok("InfiniBand", text).fact("devices", devices))
}

/// The addresses of a name, or the reason why there are none.
fn resolve(host: &str) -> Result<Vec<IpAddr>, String> {
    let name = host.to_owned();
    // The library call has no deadline.
    let addresses = within(TIMEOUT, move || {
        let addresses = (name.as_str(), 0).to_socket_addrs().map_err(|error| error.to_string())?;
        Ok(addresses.map(|address| address.ip()).collect())
    });
    addresses.unwrap_or_else(|| Err(format!("no answer within {} s", TIMEOUT.as_secs())))
}

fn own_name(host: &str, addresses: Result<Vec<IpAddr>, String>) -> Finding {
    let remedy = "with several machines, set --master-addr to the master's address rather than its name";
    match addresses {
        Ok(mut list) => {
            list.sort_unstable();
            list.dedup();
            let texts: Vec<String> = list.iter().map(IpAddr::to_string).collect();
            let text = format!("{host} is {}", texts.join(" "));
            let finding = match list.iter().all(IpAddr::is_loopback) {
                true => Finding::note("own name", format!("{text}, which no other machine can reach"), remedy),
                false => Finding::ok("own name", text),
            };
            finding.fact("addresses", texts)
        }
        Err(error) => Finding::note("own name", format!("{host} has no address: {error}"), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
ib0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
torn\t00
";
    const TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
        |-- 127.0.0.1
           /32 host LOCAL
           |-- 192.0.2.2
              /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
        |-- 10.1.2.3
           /32 host LOCAL
Local:
           |-- 192.0.2.2
              /32 host LOCAL
     |-- nonsense
        /32 host LOCAL
";
    const V6: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
fd000000000000000000000000000002 04 40 00 82     eth0
zz 04 40 00 82 eth0
";

    #[test]
    fn addresses_by_interface() {
        let routes = parse_routes(ROUTES);
        assert_eq!(routes.len(), 3);
        let addresses = Addresses { v4: parse_local_addresses(TRIE), v6: parse_v6_addresses(V6) };
        let check = |name: &str, expected: &[&str]| {
            let found: Vec<String> = addresses.of(name, &routes).iter().map(IpAddr::to_string).collect();
            assert_eq!(found, expected, "{name}");
        };
        check("eth0", &["192.0.2.2", "fd00::2"]);
        check("ib0", &["10.1.2.3"]);
        check("lo", &[]);
        assert!(
            parse_routes("").is_empty() && parse_local_addresses("").is_empty() && parse_v6_addresses("").is_empty()
        );
    }

    #[test]
    fn interfaces_with_and_without() {
        let routes = parse_routes(ROUTES);
        let addresses = Addresses { v4: parse_local_addresses(TRIE), v6: Vec::new() };
        let check = |name: &str, state: &str, speed, status: Status, expected: &str| {
            let interface = Interface { name: name.to_owned(), state: state.to_owned(), speed, mtu: "1500".to_owned() };
            let found = interface.finding(&addresses, &routes);
            assert_eq!((found.status, found.text.as_str()), (status, expected));
        };
        let text = "192.0.2.2, up, 10000 Mbit/s, packets of 1500 bytes, default route";
        check("eth0", "up", Some(10_000), Status::Ok, text);
        let text = "192.0.2.2, up, 100 Mbit/s, packets of 1500 bytes, default route: 100 Mbit/s is slow";
        check("eth0", "up", Some(100), Status::Note, text);
        check("eth7", "", None, Status::Ok, "no address, state unknown, packets of 1500 bytes");
        check("eth7", "down", Some(10), Status::Ok, "no address, down, 10 Mbit/s, packets of 1500 bytes");
    }

    #[test]
    fn names() {
        let check = |addresses: Result<Vec<&str>, &str>, status: Status, expected: &str| {
            let addresses = addresses.map(|list| list.iter().map(|text| text.parse().unwrap()).collect());
            let found = own_name("node1", addresses.map_err(str::to_owned));
            assert_eq!((found.status, found.text.as_str()), (status, expected));
        };
        check(Ok(vec!["10.0.0.1", "10.0.0.1"]), Status::Ok, "node1 is 10.0.0.1");
        check(Ok(vec!["127.0.1.1", "10.0.0.1"]), Status::Ok, "node1 is 10.0.0.1 127.0.1.1");
        check(Ok(vec!["127.0.1.1"]), Status::Note, "node1 is 127.0.1.1, which no other machine can reach");
        check(Err("unknown"), Status::Note, "node1 has no address: unknown");
        assert_eq!(loopback(None).status, Status::Ok);
        assert_eq!(loopback(Some(std::io::ErrorKind::AddrNotAvailable.into())).status, Status::Problem);
        assert!(resolve("localhost").unwrap().iter().all(IpAddr::is_loopback));
    }
}
