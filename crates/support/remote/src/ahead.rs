//! Reading ahead: what is about to be read is fetched before it is needed, several pieces at a
//! time, in the order of use.
//!
//! A loader says in which order its tasks will need which bytes (its source's `needs`, and
//! `Locality::extent`). A thread hands the missing pieces to those that fetch, and the cache and its
//! locks do the rest. Nothing depends on it but time. A piece that could not be fetched is left to
//! the thread that needs it, whose attempts and errors are its own.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Object;
use crate::cache::PIECE;
use crate::lock;
use crate::retry::pause;

/// Requests under way at a time. If each takes 50 ms, they are more than 300 MB/s.
const REQUESTS: usize = 16;

/// Limit of the bytes that are fetched ahead. The cache may set a lower one.
const MAX: u64 = 256 << 20;

/// Turns that are looked at ahead. Where all is in the cache, that is the only limit.
const FAR: usize = 4096;

/// Bytes of an object.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The object.
    pub object: Arc<Object>,
    /// The bytes, which must lie in it.
    pub bytes: Range<u64>,
}

/// Fetches ahead until it is dropped. No request begins after that; those under way still end.
#[derive(Debug)]
pub struct Ahead(Turns);

impl Ahead {
    /// Memory that it takes, in bytes: that of all requests.
    pub const BYTES: u64 = REQUESTS as u64 * PIECE;

    /// Fetches what will be read: `needs` gives, for each turn in order, these bytes. It is asked on a thread of its own. Where the
    /// system refuses threads, nothing is fetched ahead.
    pub fn start(needs: impl Iterator<Item = Vec<Extent>> + Send + 'static) -> Self {
        let turns = Turns::default();
        let own = turns.clone();
        // Without a thread nobody asks.
        let _ = thread::Builder::new().name("ahead".to_owned()).spawn(move || plan(needs, &own));
        Ahead(turns)
    }

    /// What tells it that turns begin.
    pub fn turns(&self) -> Turns {
        self.0.clone()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        lock(&self.0.0.state).is_over = true;
        self.0.0.changed.notify_all();
    }
}

/// The turns that have begun. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    begun: usize,
    /// The number of turns for which somebody waits.
    awaited: usize,
    is_over: bool,
}

impl Turns {
    /// The next turn begins: what it needs is no longer ahead.
    pub fn advance(&self) {
        let mut state = lock(&self.0.state);
        state.begun += 1;
        if state.begun == state.awaited {
            self.0.changed.notify_all();
        }
    }

    /// How many have begun, as soon as these have; `None` once reading ahead is over.
    fn reached(&self, turns: usize) -> Option<usize> {
        let mut state = lock(&self.0.state);
        state.awaited = turns;
        let waiting = self.0.changed.wait_while(state, |state| state.begun < turns && !state.is_over);
        state = waiting.unwrap_or_else(PoisonError::into_inner);
        (!state.is_over).then_some(state.begun)
    }

    /// Waits so long, or until reading ahead is over; whether it goes on.
    fn goes_on_after(&self, time: Duration) -> bool {
        let waiting = self.0.changed.wait_timeout_while(lock(&self.0.state), time, |state| !state.is_over);
        !waiting.unwrap_or_else(PoisonError::into_inner).0.is_over
    }
}

/// A piece of an object.
#[derive(Clone, Debug)]
struct Piece {
    object: Arc<Object>,
    number: u64,
}

impl PartialEq for Piece {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.object, &other.object) && self.number == other.number
    }
}

impl Extent {
    /// The pieces in which it lies.
    fn pieces(self) -> impl Iterator<Item = Piece> {
        let numbers = self.object.pieces_of(self.bytes);
        numbers.map(move |number| Piece { object: self.object.clone(), number })
    }
}

/// Hands out the missing pieces, in order, as far ahead as they may be.
fn plan(needs: impl Iterator<Item = Vec<Extent>>, turns: &Turns) -> Option<()> {
    let mut fetchers = None;
    // The pieces that were handed out for turns that have not begun, with their turns.
    let mut ahead: VecDeque<(usize, Piece)> = VecDeque::new();
    let mut begun = 0;
    let of_turn = |(turn, extents): (usize, Vec<Extent>)| {
        extents.into_iter().flat_map(Extent::pieces).map(move |piece| (turn, piece))
    };
    for (turn, piece) in needs.enumerate().flat_map(of_turn) {
        if turn >= begun + FAR {
            begun = turns.reached(turn - FAR / 2)?;
        }
        if ahead.iter().any(|(_, other)| *other == piece) || piece.object.has(piece.number) {
            continue;
        }
        begun = turns.reached(0)?;
        // Once its turn has begun, another thread fetches it.
        while turn >= begun {
            while ahead.front().is_some_and(|(first, _)| *first < begun) {
                ahead.pop_front();
            }
            if (ahead.len() as u64) < piece.object.room_ahead().min(MAX) / PIECE {
                ahead.push_back((turn, piece.clone()));
                fetchers.get_or_insert_with(|| start(turns)).send(piece).ok()?;
                break;
            }
            begun = turns.reached(1 + ahead.front().map_or(turn, |(first, _)| *first))?;
        }
    }
    Some(())
}

/// Starts the threads that fetch the pieces that are sent.
fn start(turns: &Turns) -> SyncSender<Piece> {
    // A piece is handed over when a thread takes it.
    let (send, pieces) = sync_channel(0);
    let pieces = Arc::new(Mutex::new(pieces));
    for number in 0..REQUESTS {
        let (pieces, turns) = (pieces.clone(), turns.clone());
        let thread = thread::Builder::new().name(format!("ahead-{number}"));
        if thread.spawn(move || fetch_all(&pieces, &turns)).is_err() {
            break;
        }
    }
    send
}

/// Fetches pieces until no more come, or reading ahead is over. After a fault the thread rests.
fn fetch_all(pieces: &Mutex<Receiver<Piece>>, turns: &Turns) {
    let mut faults = 0;
    loop {
        let next = lock(pieces).recv();
        let Ok(Piece { object, number }) = next else { return };
        if !turns.goes_on_after(Duration::ZERO) {
            return;
        }
        match object.fetch_ahead(number) {
            true => faults = 0,
            false => {
                faults += 1;
                if !turns.goes_on_after(pause(faults)) {
                    return;
                }
            }
        }
    }
}
