//! The key-value store at rank 0, through which ranks find each other before they have a transport.
//!
//! Keys are written once. Waiting for a key has a deadline. Rank 0 uses its store directly, the others over a
//! connection.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thiserror::Error;

use crate::locks::{lock, wait_while};
use crate::net::configure;
use crate::net::link::{FRAME_LIMIT, Link};

/// Length limit of a key, in bytes.
const KEY_LIMIT: usize = 255;
/// Size limit of a value, in bytes.
const VALUE_LIMIT: usize = 1 << 20;
/// Size limit of all keys and values together, in bytes.
const STORE_LIMIT: usize = 64 << 20;
/// Bytes charged per entry in addition, so that the number of small entries is limited too.
const ENTRY_COST: usize = 128;

const SET: u8 = 1;
const WAIT: u8 = 2;
const DONE: u8 = 3;
const VALUE: u8 = 4;
const LATE: u8 = 5;
const FAILED: u8 = 6;

/// Reasons why the store failed.
#[derive(Debug, Error)]
pub(crate) enum StoreError {
    /// No rank has set the key in time.
    #[error("no rank set {0:?} in time")]
    Late(String),
    /// The store has ended, or is full.
    #[error("{0}")]
    Failed(String),
    /// The connection to it broke.
    #[error("connection to rank 0 lost: {0}")]
    Io(#[from] io::Error),
}

/// The values, in rank 0's process.
#[derive(Default)]
pub(crate) struct KeyValues {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Each key's value, with the rank that set it.
    values: HashMap<String, (usize, Vec<u8>)>,
    bytes: usize,
    /// The reason, once waiting has become pointless.
    ended: Option<String>,
}

impl KeyValues {
    fn set(&self, rank: usize, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if let Some(why) = &state.ended {
            return Err(StoreError::Failed(why.clone()));
        }
        match state.values.get(key) {
            Some((_, known)) if known == value => return Ok(()),
            Some((first, _)) => {
                return Err(StoreError::Failed(format!(
                    "rank {rank} set {key:?}, to which rank {first} has given another value: keys are written once"
                )));
            }
            None => {}
        }
        let cost = ENTRY_COST + key.len() + value.len();
        if key.len() > KEY_LIMIT || value.len() > VALUE_LIMIT || state.bytes + cost > STORE_LIMIT {
            return Err(StoreError::Failed(format!(
                "the store cannot take a value of {} bytes for {key:?}",
                value.len()
            )));
        }
        state.bytes += cost;
        state.values.insert(key.to_owned(), (rank, value.to_owned()));
        self.changed.notify_all();
        Ok(())
    }

    fn wait(&self, key: &str, limit: Duration) -> Result<Vec<u8>, StoreError> {
        let is_open = |state: &mut State| !state.values.contains_key(key) && state.ended.is_none();
        let state = wait_while(&self.changed, lock(&self.state), limit, is_open);
        match (state.values.get(key), &state.ended) {
            (Some((_, value)), _) => Ok(value.clone()),
            (None, Some(why)) => Err(StoreError::Failed(why.clone())),
            (None, None) => Err(StoreError::Late(key.to_owned())),
        }
    }

    /// Ends all waits with this reason: missing keys will not be set any more.
    pub(crate) fn end(&self, why: String) {
        lock(&self.state).ended.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Answers requests of `rank`'s connection until it closes.
    pub(crate) fn serve(&self, link: &Link, rank: usize) -> io::Result<()> {
        loop {
            // The store's connections may be quiet for any length of time: liveness belongs to the control connection.
            link.stream().set_read_timeout(None)?;
            let request = link.receive(FRAME_LIMIT)?;
            let (key, rest) = split_key(&request.payload).ok_or(io::ErrorKind::InvalidData)?;
            let answer = match (request.kind, <[u8; 4]>::try_from(rest)) {
                (SET, _) => self.set(rank, key, rest).map(|()| (DONE, vec![])),
                (WAIT, Ok(limit)) => {
                    self.wait(key, Duration::from_millis(u32::from_le_bytes(limit).into())).map(|value| (VALUE, value))
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            let (kind, payload) = answer.unwrap_or_else(|error| match error {
                StoreError::Late(_) => (LATE, vec![]),
                error => (FAILED, error.to_string().into_bytes()),
            });
            link.send(kind, &payload)?;
        }
    }
}

/// A rank's access to the store.
pub(crate) enum Store {
    /// Of rank 0.
    Here(Arc<KeyValues>),
    /// Of every other rank.
    There(Link),
}

impl Store {
    /// Sets `key` for all ranks. A key that has another value already is an error.
    pub(crate) fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        match self {
            Store::Here(values) => values.set(0, key, value),
            Store::There(link) => request(link, SET, key, value, Duration::ZERO).map(drop),
        }
    }

    /// The value of `key`, as soon as a rank has set it.
    pub(crate) fn wait(&self, key: &str, limit: Duration) -> Result<Vec<u8>, StoreError> {
        match self {
            Store::Here(values) => values.wait(key, limit),
            Store::There(link) => {
                let milliseconds = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
                request(link, WAIT, key, &milliseconds.to_le_bytes(), limit)
            }
        }
    }
}

/// The answer to a request over a connection.
fn request(link: &Link, kind: u8, key: &str, value: &[u8], limit: Duration) -> Result<Vec<u8>, StoreError> {
    // The answer comes in time if rank 0 is alive. If it is not, the control connection reports it sooner than
    // this.
    configure(link.stream(), limit.saturating_add(Duration::from_secs(10)))?;
    let mut payload = vec![key.len() as u8];
    payload.extend(key.as_bytes());
    payload.extend(value);
    link.send(kind, &payload)?;
    let answer = link.receive(FRAME_LIMIT).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time"),
        _ => error,
    })?;
    match answer.kind {
        DONE | VALUE => Ok(answer.payload),
        LATE => Err(StoreError::Late(key.to_owned())),
        _ => Err(StoreError::Failed(String::from_utf8_lossy(&answer.payload).into_owned())),
    }
}

/// Splits a request into its key and the rest.
pub(crate) fn split_key(payload: &[u8]) -> Option<(&str, &[u8])> {
    let (&length, rest) = payload.split_first()?;
    let (key, rest) = rest.split_at_checked(length.into())?;
    Some((std::str::from_utf8(key).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::record::{Cipher, Inbound, Outbound};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn waiting_for_a_value_works_locally_and_remotely() {
        let values = Arc::new(KeyValues::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = |stream, [own, other]: [u8; 2]| {
            let cipher = Cipher::of_processor();
            Link::new(stream, Outbound::new(cipher, [own; 32]), Inbound::new(cipher, [other; 32], "link".into()))
        };
        let there = Store::There(link(TcpStream::connect(listener.local_addr().unwrap()).unwrap(), [1, 2]));
        let serving = thread::spawn({
            let values = values.clone();
            move || values.serve(&link(listener.accept().unwrap().0, [2, 1]), 3).is_err()
        });
        let here = Store::Here(values.clone());
        let waiting = thread::spawn(move || {
            let value = there.wait("a", LIMIT).unwrap();
            there.set("b", &vec![7; VALUE_LIMIT]).unwrap();
            assert!(matches!(there.set("c", &vec![7; VALUE_LIMIT + 1]), Err(StoreError::Failed(_))));
            assert!(matches!(there.wait("nothing", Duration::ZERO), Err(StoreError::Late(_))));
            (there, value)
        });
        here.set("a", b"1").unwrap();
        assert_eq!(here.wait("b", LIMIT).unwrap(), vec![7; VALUE_LIMIT]);
        let (there, value) = waiting.join().unwrap();
        assert_eq!(value, b"1");
        // A key could be overwritten, by any rank and at any time.
        here.set("a", b"1").unwrap();
        there.set("a", b"1").unwrap();
        let overwritten = |store: &Store, key| store.set(key, b"2").unwrap_err().to_string();
        let expected = "rank 3 set \"a\", to which rank 0 has given another value: keys are written once";
        assert_eq!(overwritten(&there, "a"), expected);
        let expected = "rank 0 set \"b\", to which rank 3 has given another value: keys are written once";
        assert_eq!(overwritten(&here, "b"), expected);
        values.end("over".into());
        for store in [&here, &there] {
            assert_eq!(store.wait("nothing", LIMIT).unwrap_err().to_string(), "over");
            assert_eq!(store.wait("a", LIMIT).unwrap(), b"1");
        }
        drop(there);
        assert!(serving.join().unwrap());
    }

    #[test]
    fn the_store_is_bounded() {
        let values = KeyValues::default();
        let filled =
            (0..STORE_LIMIT / VALUE_LIMIT + 1).all(|i| values.set(0, &i.to_string(), &vec![0; VALUE_LIMIT]).is_ok());
        assert!(!filled);
        assert!(values.set(0, &"k".repeat(KEY_LIMIT + 1), b"").is_err());
    }
}
