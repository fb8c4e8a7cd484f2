//! Pages that were read lately, shared by all threads: a page holds many images, and each would
//! read it anew.
//!
//! A page is read and decompressed whole, by one thread while others wait, and kept with others up
//! to a limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Page;

/// Which page: the number of its group of rows, and its own there.
type Key = (u32, u32);

/// The pages that were used last, up to a number of bytes. A page that is larger stays until the next one comes.
#[derive(Debug, Default)]
pub struct PageCache {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Key, Slot>,
    bytes: usize,
    /// Uses as yet.
    clock: u64,
}

/// A page, or the place of one that a thread is reading.
#[derive(Debug, Default)]
struct Slot {
    page: Arc<Mutex<Option<Arc<Page>>>>,
    bytes: usize,
    used: u64,
}

impl PageCache {
    /// An empty cache for `limit` bytes.
    pub fn new(limit: usize) -> Self {
        PageCache { limit, state: Mutex::default() }
    }

    /// The page with this key. If it is not there, one thread calls `read`, and others that need it wait.
    ///
    /// # Errors
    /// That of `read`. The page is not kept then, and the next call reads it again.
    pub fn get<E>(&self, key: Key, read: impl FnOnce() -> Result<Page, E>) -> Result<Arc<Page>, E> {
        let page = self.slot(key);
        let mut held = lock(&page);
        if let Some(page) = held.as_ref() {
            return Ok(page.clone());
        }
        let found = match read() {
            Ok(page) => Arc::new(page),
            Err(error) => {
                lock(&self.state).slots.remove(&key);
                return Err(error);
            }
        };
        *held = Some(found.clone());
        drop(held);
        self.count(key, found.size());
        Ok(found)
    }

    fn slot(&self, key: Key) -> Arc<Mutex<Option<Arc<Page>>>> {
        let mut state = lock(&self.state);
        state.clock += 1;
        let now = state.clock;
        let slot = state.slots.entry(key).or_default();
        slot.used = now;
        slot.page.clone()
    }

    /// Notes the size of a page that was read, and drops those that were not used for the longest time.
    fn count(&self, key: Key, bytes: usize) {
        let mut state = lock(&self.state);
        let Some(slot) = state.slots.get_mut(&key) else { return };
        slot.bytes = bytes;
        state.bytes += bytes;
        while state.bytes > self.limit {
            let others = state.slots.iter().filter(|(other, slot)| **other != key && slot.bytes > 0);
            let Some((&oldest, _)) = others.min_by_key(|(_, slot)| slot.used) else { break };
            state.bytes -= state.slots.remove(&oldest).map_or(0, |slot| slot.bytes);
        }
    }
}

/// Locks even if a holder panicked: the guarded state is consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Head, Kind};
    use crate::{Codec, Column, PhysicalType};

    /// A page of one text.
    fn page(bytes: usize) -> Page {
        let head = [0x15, 4, 0x15, 0, 0x15, 0, 0x2C, 0x15, 2, 0x15, 0, 0, 0];
        let mut head = Head::parse(&head).unwrap();
        head.unpacked = bytes + 4;
        let text = [&(bytes as u32).to_le_bytes()[..], &vec![7; bytes]].concat();
        let column = Column {
            name: String::new(),
            field: None,
            physical: PhysicalType::Bytes,
            is_text: false,
            levels: 0,
            list: None,
        };
        head.kind = Kind::Dictionary;
        Page::decode(&head, text, &column, Codec::None, None).unwrap()
    }

    #[test]
    fn the_page_of_the_oldest_use_is_dropped() {
        let cache = PageCache::new(page(100).size() * 2);
        let mut reads = Vec::new();
        let mut use_all = |keys: &[u32], bytes: usize, expected: &[u32]| {
            for &key in keys {
                let found = cache.get((0, key), || {
                    reads.push(key);
                    Ok::<_, ()>(page(bytes))
                });
                assert_eq!(found.unwrap().value(0).unwrap().len(), bytes);
            }
            assert_eq!(std::mem::take(&mut reads), expected);
        };
        use_all(&[1, 2, 1, 2], 100, &[1, 2]);
        use_all(&[1, 3, 1, 3], 100, &[3]);
        use_all(&[2], 100, &[2]);
        // Larger than all of the cache.
        use_all(&[4, 4], 1000, &[4]);
        use_all(&[2, 4], 1000, &[2, 4]);
    }

    #[test]
    fn a_page_that_cannot_be_read_is_tried_again() {
        let cache = PageCache::new(1000);
        assert_eq!(cache.get((0, 0), || Err("gone")).unwrap_err(), "gone");
        assert_eq!(cache.get((0, 0), || Ok::<_, ()>(page(3))).unwrap().len(), 1);
    }
}
