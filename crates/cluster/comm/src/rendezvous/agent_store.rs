//! A minimal client of PyTorch's TCPStore, which torchrun's agent runs for its workers.
//!
//! Under torchrun MASTER_ADDR and MASTER_PORT are the address of this store, so rank 0 opens a port of its own and
//! publishes it there. A query is one byte followed by its arguments. Texts and values follow their length of 64 bits.
//! All numbers are in the machine's byte order; the magic number at the start proves that it is the same on both sides:
//!
//! ```text
//! VALIDATE magic (u32)               no answer
//! SET      key, value                no answer
//! GET      key                       value; a missing key ends the connection
//! ADD      key, amount (i64)         the sum (i64); a missing key counts as 0
//! CHECK    number of keys, keys      0 if all keys exist, else 1
//! ```
//!
//! The store requires no secret: its content is only a hint where to look, and the token decides.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::net::{connect, left};

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const ADD: u8 = 4;
const CHECK: u8 = 5;
const MAGIC: u32 = 0x3C85_F7CE;
const READY: u8 = 0;
/// Size limit of a value, in bytes.
const VALUE_LIMIT: u64 = 1024;
/// Pause between two attempts to reach the store.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection to the agent's store.
#[derive(Debug)]
pub(crate) struct AgentStore {
    stream: TcpStream,
    deadline: Instant,
}

impl AgentStore {
    /// Connects, retrying until the deadline. Later queries have the same deadline.
    pub fn connect(address: &str, deadline: Instant) -> io::Result<Self> {
        loop {
            let attempt = Self::attempt(address, deadline);
            if attempt.is_ok() || Instant::now() + PAUSE >= deadline {
                return attempt;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn attempt(address: &str, deadline: Instant) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for target in address.to_socket_addrs()? {
            match connect(&target, left(deadline)?) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let mut store = AgentStore { stream, deadline };
                    store.send(VALIDATE, &[&MAGIC.to_ne_bytes()])?;
                    return Ok(store);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The address at which the store's machine reaches this process; a loopback address if both are on one machine.
    pub fn local_ip(&self) -> io::Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip())
    }

    /// The store's address.
    pub fn peer_ip(&self) -> io::Result<IpAddr> {
        Ok(self.stream.peer_addr()?.ip())
    }

    pub fn set(&mut self, key: &str, value: &str) -> io::Result<()> {
        let (key, value) = (text(key), text(value));
        self.send(SET, &[&key, &value])
    }

    /// The value of a key; `None` if it is not set.
    pub fn get(&mut self, key: &str) -> io::Result<Option<String>> {
        let key = text(key);
        self.send(CHECK, &[&1u64.to_ne_bytes(), &key])?;
        if self.read::<1>()? != [READY] {
            return Ok(None);
        }
        self.send(GET, &[&key])?;
        let length = u64::from_ne_bytes(self.read()?);
        if length > VALUE_LIMIT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it holds a value that no rank could have set"));
        }
        let mut value = vec![0; length as usize];
        self.stream.read_exact(&mut value)?;
        Ok(Some(String::from_utf8_lossy(&value).into_owned()))
    }

    /// Adds to a number that begins at 0, and returns the sum.
    pub fn add(&mut self, key: &str, amount: i64) -> io::Result<i64> {
        let key = text(key);
        self.send(ADD, &[&key, &amount.to_ne_bytes()])?;
        self.read().map(i64::from_ne_bytes)
    }

    fn send(&mut self, query: u8, arguments: &[&[u8]]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(left(self.deadline)?))?;
        self.stream.write_all(&[&[query], &*arguments.concat()].concat())
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// The encoding of a text or value.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_ne_bytes()[..], text.as_bytes()].concat()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::io::BufRead;
    use std::net::{SocketAddr, TcpListener};
    use std::process::{Command, Stdio};
    use std::sync::{Arc, Mutex};

    /// A plain imitation of the store, for tests without PyTorch.
    pub fn play_store() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let values = Arc::<Mutex<HashMap<Vec<u8>, Vec<u8>>>>::default();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, values) = (stream.unwrap(), values.clone());
                // The thread ends when its client disconnects.
                std::thread::spawn(move || serve(stream, &values));
            }
        });
        address
    }

    fn serve(mut stream: TcpStream, values: &Mutex<HashMap<Vec<u8>, Vec<u8>>>) -> io::Result<()> {
        fn number(stream: &mut TcpStream) -> io::Result<u64> {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes).map(|()| u64::from_ne_bytes(bytes))
        }
        fn bytes(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; number(stream)? as usize];
            stream.read_exact(&mut bytes).map(|()| bytes)
        }
        loop {
            let mut query = [0];
            stream.read_exact(&mut query)?;
            match query[0] {
                VALIDATE => {
                    let mut magic = [0; 4];
                    stream.read_exact(&mut magic)?;
                    assert_eq!(u32::from_ne_bytes(magic), MAGIC);
                }
                SET => {
                    let (key, value) = (bytes(&mut stream)?, bytes(&mut stream)?);
                    values.lock().unwrap().insert(key, value);
                }
                GET => {
                    let key = bytes(&mut stream)?;
                    let Some(value) = values.lock().unwrap().get(&key).cloned() else { return Ok(()) };
                    stream.write_all(&[&(value.len() as u64).to_ne_bytes()[..], &value].concat())?;
                }
                ADD => {
                    let key = bytes(&mut stream)?;
                    let amount = number(&mut stream)? as i64;
                    let mut values = values.lock().unwrap();
                    let text = values.get(&key).cloned().unwrap_or(b"0".to_vec());
                    let sum = String::from_utf8(text).unwrap().parse::<i64>().unwrap() + amount;
                    values.insert(key, sum.to_string().into_bytes());
                    stream.write_all(&sum.to_ne_bytes())?;
                }
                CHECK => {
                    let keys: Vec<_> =
                        (0..number(&mut stream)?).map(|_| bytes(&mut stream)).collect::<Result<_, _>>()?;
                    let values = values.lock().unwrap();
                    let is_missing = keys.iter().any(|key| !values.contains_key(key));
                    stream.write_all(&[u8::from(is_missing)])?;
                }
                other => panic!("query {other}"),
            }
        }
    }

    /// Checks that hold for the imitation and for PyTorch's own store.
    fn check(address: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut first = AgentStore::connect(address, deadline).unwrap();
        let mut second = AgentStore::connect(address, deadline).unwrap();
        assert_eq!(first.get("place").unwrap(), None);
        first.set("place", "here").unwrap();
        // Setting has no answer, so another connection sees the value a little later.
        let mut until = |key: &str, expected: Option<Option<&str>>| loop {
            let found = second.get(key).ok();
            if found.as_ref().map(Option::as_deref) == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{key} is {found:?}");
            std::thread::yield_now();
        };
        until("place", Some(Some("here")));
        first.set("place", "").unwrap();
        until("place", Some(Some("")));
        first.set("long", &"x".repeat(VALUE_LIMIT as usize + 1)).unwrap();
        until("long", None);
        let mut third = AgentStore::connect(address, deadline).unwrap();
        assert_eq!((first.add("count", 1).unwrap(), third.add("count", 2).unwrap()), (1, 3));
        assert_eq!(third.get("count").unwrap().as_deref(), Some("3"));
    }

    #[test]
    fn the_protocol() {
        check(&play_store().to_string());
    }

    #[test]
    fn the_protocol_as_pytorch_speaks_it() {
        let Some(interpreter) = test_support::pytorch() else { return };
        for backend in ["True", "False"] {
            let script = format!(
                "import sys, torch.distributed as d\n\
                 s = d.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False, use_libuv={backend})\n\
                 print(s.port, flush=True)\n\
                 sys.stdin.read()"
            );
            let mut command = Command::new(&interpreter);
            command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut python = command.spawn().unwrap();
            let mut port = String::new();
            io::BufReader::new(python.stdout.take().unwrap()).read_line(&mut port).unwrap();
            check(&format!("127.0.0.1:{}", port.trim()));
            drop(python.stdin.take());
            assert!(python.wait().unwrap().success());
        }
    }
}
