//! The store at rank 0, through which ranks exchange values before they have a transport.
//!
//! A rank gives its value of a subject and gets the values of all ranks: one request and one answer for each rank, however
//! many ranks there are. Ranks of one node mostly give equal values, which an answer carries once. Values are given once,
//! and waiting for them has a deadline. Rank 0 uses its store directly, the others over a connection.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use thiserror::Error;

use crate::locks::{lock, wait_while};
use crate::net::configure;
use crate::net::link::{FRAME_LIMIT, Link};

/// Length limit of a subject, in bytes.
const SUBJECT_LIMIT: usize = 255;
/// Size limit of an answer, in bytes, counted as if no two values were equal.
const ANSWER_LIMIT: usize = 1 << 20;
/// Limit of subjects. Forming a group has fewer than ten.
const SUBJECTS_LIMIT: usize = 64;
/// Bytes that an answer needs for a value in addition: its length and its number.
const VALUE_COST: usize = 8;

const EXCHANGE: u8 = 1;
const MISSING: u8 = 2;
const VALUES: u8 = 3;
const LATE: u8 = 4;
const FAILED: u8 = 5;

/// Reasons why the store failed.
#[derive(Debug, Error)]
pub(crate) enum StoreError {
    /// These ranks have not given their values in time.
    #[error("ranks {0:?} gave no value in time")]
    Late(Vec<usize>),
    /// The store has ended, or is full.
    #[error("{0}")]
    Failed(String),
    /// The connection to it broke.
    #[error("connection to rank 0 lost: {0}")]
    Io(#[from] io::Error),
}

/// The values, in rank 0's process.
pub(crate) struct Values {
    world_size: usize,
    state: Mutex<State>,
    /// Notified when a subject is complete, and not for each value: every rank waits for the last one.
    complete: Condvar,
}

#[derive(Default)]
struct State {
    subjects: HashMap<String, Subject>,
    /// The reason, once waiting has become pointless.
    ended: Option<String>,
}

struct Subject {
    /// By rank.
    given: Vec<Option<Vec<u8>>>,
    /// Bytes of the answer so far.
    bytes: usize,
    /// The answer to every rank, once all have given their values.
    answer: Option<Arc<[u8]>>,
}

impl Subject {
    fn missing(&self) -> Vec<usize> {
        let given = self.given.iter().enumerate();
        given.filter(|(_, value)| value.is_none()).map(|(rank, _)| rank).collect()
    }
}

impl Values {
    pub(crate) fn new(world_size: usize) -> Self {
        Values { world_size, state: Mutex::default(), complete: Condvar::new() }
    }

    /// Sets a rank's value of a subject.
    pub(crate) fn give(&self, rank: usize, subject: &str, value: &[u8]) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if let Some(why) = &state.ended {
            return Err(StoreError::Failed(why.clone()));
        }
        let is_new = !state.subjects.contains_key(subject);
        if subject.len() > SUBJECT_LIMIT || (is_new && state.subjects.len() >= SUBJECTS_LIMIT) {
            return Err(StoreError::Failed(format!("the store cannot take another subject, {subject:?}")));
        }
        let new = || Subject { given: vec![None; self.world_size], bytes: 0, answer: None };
        let all = state.subjects.entry(subject.to_owned()).or_insert_with(new);
        let Some(given) = all.given.get_mut(rank) else {
            return Err(StoreError::Failed(format!("rank {rank} is not one of {}", self.world_size)));
        };
        match given {
            Some(known) if known == value => return Ok(()),
            Some(_) => {
                let why =
                    format!("rank {rank} gave a value of {subject:?}, and then another one: values are given once");
                return Err(StoreError::Failed(why));
            }
            None if all.bytes + VALUE_COST + value.len() > ANSWER_LIMIT => {
                let why = format!("the store cannot take a value of {} bytes for {subject:?}", value.len());
                return Err(StoreError::Failed(why));
            }
            None => *given = Some(value.to_owned()),
        }
        all.bytes += VALUE_COST + value.len();
        if all.given.iter().all(Option::is_some) {
            let given: Vec<_> = all.given.iter().flatten().map(Vec::as_slice).collect();
            all.answer = Some(to_answer(&given).into());
            self.complete.notify_all();
        }
        Ok(())
    }

    /// The answer with all values of a subject.
    fn all(&self, subject: &str, limit: Duration) -> Result<Arc<[u8]>, StoreError> {
        let answer = |state: &State| state.subjects.get(subject)?.answer.clone();
        let is_open = |state: &mut State| answer(state).is_none() && state.ended.is_none();
        let state = wait_while(&self.complete, lock(&self.state), limit, is_open);
        match (answer(&state), &state.ended) {
            (Some(answer), _) => Ok(answer),
            (None, Some(why)) => Err(StoreError::Failed(why.clone())),
            (None, None) => {
                let missing = state.subjects.get(subject).map(Subject::missing);
                Err(StoreError::Late(missing.unwrap_or_else(|| (0..self.world_size).collect())))
            }
        }
    }

    /// Ends all waits with this reason: missing values will not be given any more.
    pub(crate) fn end(&self, why: String) {
        lock(&self.state).ended.get_or_insert(why);
        self.complete.notify_all();
    }

    /// Answers requests of `rank`'s connection until it closes.
    pub(crate) fn serve(&self, link: &Link, rank: usize) -> io::Result<()> {
        loop {
            // The store's connections may be quiet for any length of time: liveness belongs to the control connection.
            link.stream().set_read_timeout(None)?;
            let frame = link.receive(FRAME_LIMIT)?;
            let request = Request::from_bytes(&frame.payload).ok_or(io::ErrorKind::InvalidData)?;
            let answer = match frame.kind {
                EXCHANGE => self
                    .give(rank, request.subject, request.value)
                    .and_then(|()| self.all(request.subject, request.limit)),
                MISSING => self.all(request.subject, request.limit),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            match answer {
                Ok(values) => link.send(VALUES, &values)?,
                Err(StoreError::Late(missing)) => {
                    let ranks: Vec<u8> = missing.iter().flat_map(|&rank| (rank as u32).to_le_bytes()).collect();
                    link.send(LATE, &ranks)?;
                }
                Err(error) => link.send(FAILED, error.to_string().as_bytes())?,
            }
        }
    }
}

/// A rank's access to the store.
pub(crate) enum Store {
    /// In the process that has the store, for this rank: rank 0.
    Here(Arc<Values>, usize),
    /// Of every other rank.
    There(Link),
}

impl Store {
    /// Gives this rank's value of a subject, and returns those of all `ranks`, as soon as all have given theirs.
    pub(crate) fn exchange(
        &self,
        subject: &str,
        value: &[u8],
        ranks: usize,
        limit: Duration,
    ) -> Result<Vec<String>, StoreError> {
        let request = Request { limit, subject, value };
        let answer = match self {
            Store::Here(values, rank) => {
                values.give(*rank, subject, value)?;
                from_answer(&values.all(subject, limit)?, ranks)
            }
            Store::There(link) => from_answer(&ask(link, EXCHANGE, &request)?, ranks),
        };
        answer.ok_or_else(|| StoreError::Failed(format!("a malformed answer about {subject:?}")))
    }

    /// The ranks that have not given their values of a subject so far.
    pub(crate) fn missing(&self, subject: &str) -> Result<Vec<usize>, StoreError> {
        let request = Request { limit: Duration::ZERO, subject, value: &[] };
        let answered = match self {
            Store::Here(values, _) => values.all(subject, request.limit).map(drop),
            Store::There(link) => ask(link, MISSING, &request).map(drop),
        };
        match answered {
            Ok(()) => Ok(vec![]),
            Err(StoreError::Late(missing)) => Ok(missing),
            Err(error) => Err(error),
        }
    }
}

/// The answer to a request over a connection.
fn ask(link: &Link, kind: u8, request: &Request) -> Result<Vec<u8>, StoreError> {
    // The answer comes in time if rank 0 is alive. If it is not, the control connection reports it sooner than
    // this.
    configure(link.stream(), request.limit.saturating_add(Duration::from_secs(10)))?;
    link.send(kind, &request.to_bytes())?;
    let answer = link.receive(FRAME_LIMIT).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time"),
        _ => error,
    })?;
    match answer.kind {
        VALUES => Ok(answer.payload),
        LATE => {
            let (ranks, _) = answer.payload.as_chunks();
            Err(StoreError::Late(ranks.iter().map(|rank| u32::from_le_bytes(*rank) as usize).collect()))
        }
        _ => Err(StoreError::Failed(String::from_utf8_lossy(&answer.payload).into_owned())),
    }
}

/// A question about a subject. On the wire: the milliseconds that the rank waits (4 bytes, little-endian), the subject's
/// length (1 byte), the subject and the value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    limit: Duration,
    subject: &'a str,
    value: &'a [u8],
}

impl<'a> Request<'a> {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let milliseconds = u32::try_from(self.limit.as_millis()).unwrap_or(u32::MAX);
        [&milliseconds.to_le_bytes()[..], &[self.subject.len() as u8], self.subject.as_bytes(), self.value].concat()
    }

    pub(crate) fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (milliseconds, rest) = bytes.split_first_chunk()?;
        let (&length, rest) = rest.split_first()?;
        let (subject, value) = rest.split_at_checked(length.into())?;
        let limit = Duration::from_millis(u32::from_le_bytes(*milliseconds).into());
        Some(Request { limit, subject: std::str::from_utf8(subject).ok()?, value })
    }
}

/// The values of all ranks on the wire, all numbers in 4 bytes, little-endian: how many different ones there are; each of
/// them after its length; and for each rank the number of its own.
pub(crate) fn to_answer(given: &[&[u8]]) -> Vec<u8> {
    let mut numbers = HashMap::new();
    let mut different = vec![];
    let mut number_of = |value| {
        *numbers.entry(value).or_insert_with(|| {
            different.push(value);
            different.len() as u32 - 1
        })
    };
    let of_ranks: Vec<u8> = given.iter().flat_map(|&value| number_of(value).to_le_bytes()).collect();
    let mut answer = (different.len() as u32).to_le_bytes().to_vec();
    for value in different {
        answer.extend((value.len() as u32).to_le_bytes());
        answer.extend(value);
    }
    [answer, of_ranks].concat()
}

/// The values of so many ranks; `None` if the answer is malformed.
pub(crate) fn from_answer(answer: &[u8], ranks: usize) -> Option<Vec<String>> {
    fn number(bytes: &mut &[u8]) -> Option<usize> {
        let (number, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_le_bytes(*number) as usize)
    }
    let mut rest = answer;
    let mut different = vec![];
    for _ in 0..number(&mut rest)? {
        let length = number(&mut rest)?;
        let (value, after) = rest.split_at_checked(length)?;
        different.push(String::from_utf8_lossy(value));
        rest = after;
    }
    let values = (0..ranks).map(|_| different.get(number(&mut rest)?).map(|value| value.clone().into_owned()));
    let values = values.collect::<Option<Vec<_>>>()?;
    rest.is_empty().then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::record::{Cipher, Inbound, Outbound};
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(60);

    /// The store of two ranks as rank 0 and as rank 1 see it, and the thread that serves rank 1, which says whether its
    /// connection ended.
    fn stores() -> (Arc<Values>, [Store; 2], thread::JoinHandle<bool>) {
        let values = Arc::new(Values::new(2));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = |stream, [own, other]: [u8; 2]| {
            let cipher = Cipher::of_processor();
            Link::new(stream, Outbound::new(cipher, [own; 32]), Inbound::new(cipher, [other; 32], "link".into()))
        };
        let there = Store::There(link(TcpStream::connect(listener.local_addr().unwrap()).unwrap(), [1, 2]));
        let serving = thread::spawn({
            let values = values.clone();
            move || values.serve(&link(listener.accept().unwrap().0, [2, 1]), 1).is_err()
        });
        (values.clone(), [Store::Here(values, 0), there], serving)
    }

    #[test]
    fn every_rank_gets_the_values_of_all() {
        let (_, stores, serving) = stores();
        let ranks = stores.map(|store| {
            thread::spawn(move || {
                let own = if let Store::Here(..) = store { "here" } else { "there" };
                let exchange = |subject| store.exchange(subject, own.as_bytes(), 2, LIMIT).unwrap();
                let found = ["a", "b", "a"].map(exchange);
                let other = store.exchange("a", b"another", 2, LIMIT).unwrap_err().to_string();
                (found, other)
            })
        });
        for (rank, found) in ranks.map(|rank| rank.join().unwrap()).into_iter().enumerate() {
            let values = ["here".to_owned(), "there".to_owned()];
            let other = format!("rank {rank} gave a value of \"a\", and then another one: values are given once");
            assert_eq!(found, ([values.clone().into(), values.clone().into(), values.into()], other));
        }
        assert!(serving.join().unwrap());
    }

    #[test]
    fn missing_ranks_are_named_and_the_end_is_told() {
        let (values, [here, there], serving) = stores();
        let late = |store: &Store, subject: &str| match store.exchange(subject, b"", 2, Duration::ZERO) {
            Err(StoreError::Late(missing)) => missing,
            other => panic!("{other:?}"),
        };
        assert_eq!([here.missing("a").unwrap(), there.missing("a").unwrap()], [[0, 1], [0, 1]]);
        assert_eq!((late(&here, "a"), late(&there, "b")), (vec![1], vec![0]));
        assert_eq!([here.missing("a").unwrap(), there.missing("a").unwrap()], [[1], [1]]);
        assert_eq!(there.exchange("a", b"x", 2, LIMIT).unwrap(), ["", "x"]);
        assert!(here.missing("a").unwrap().is_empty() && there.missing("a").unwrap().is_empty());
        values.end("over".into());
        for store in [&here, &there] {
            assert_eq!(store.exchange("c", b"", 2, LIMIT).unwrap_err().to_string(), "over");
            assert_eq!(store.missing("b").unwrap_err().to_string(), "over");
        }
        drop((here, there));
        assert!(serving.join().unwrap());
    }

    #[test]
    fn the_store_is_bounded() {
        let values = Values::new(3);
        let failed = |rank, subject: &str, bytes: usize| values.give(rank, subject, &vec![0; bytes]).is_err();
        let most = ANSWER_LIMIT - VALUE_COST;
        assert_eq!(
            [failed(0, "a", most + 1), failed(0, "a", most - 9), failed(1, "a", 2), failed(1, "a", 1)],
            [true, false, true, false]
        );
        assert!(failed(3, "a", 0) && failed(0, &"s".repeat(SUBJECT_LIMIT + 1), 0));
        assert_eq!((1..=SUBJECTS_LIMIT).filter(|subject| failed(0, &subject.to_string(), 0)).count(), 1);
    }

    proptest! {
        #[test]
        fn answers_carry_equal_values_once(given in prop::collection::vec("[ab]{0,3}", 0..40)) {
            let bytes: Vec<_> = given.iter().map(String::as_bytes).collect();
            let answer = to_answer(&bytes);
            prop_assert!(answer.len() <= 4 + 15 * (4 + 3) + 4 * given.len());
            prop_assert_eq!(from_answer(&answer, given.len()), Some(given.clone()));
            prop_assert_eq!(from_answer(&answer, given.len() + 1), None);
            prop_assert!(given.is_empty() || from_answer(&answer, given.len() - 1).is_none());
        }

        #[test]
        fn malformed_answers_and_requests_are_noticed(bytes in prop::collection::vec(any::<u8>(), 0..60), ranks in 0usize..9) {
            if let Some(request) = Request::from_bytes(&bytes) {
                prop_assert_eq!(request.to_bytes(), bytes.clone());
            }
            if let Some(values) = from_answer(&bytes, ranks) {
                prop_assert_eq!(values.len(), ranks);
            }
        }
    }
}
