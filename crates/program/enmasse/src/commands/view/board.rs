//! What is computed for pages, by number: it changes while clients wait for it, and the oldest makes room.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use maud::Markup;

use super::{SILENCE, event};
use crate::web::Stream;

/// A part of a page that changes until it is final.
pub trait Part: Clone + Send + 'static {
    fn markup(&self) -> Markup;

    /// Whether it stays as it is.
    fn is_final(&self) -> bool;
}

struct Entry<T> {
    number: u64,
    value: T,
    /// Counts the changes.
    version: u64,
}

/// The latest values.
pub struct Board<T> {
    most: usize,
    entries: Mutex<VecDeque<Entry<T>>>,
    changed: Condvar,
}

impl<T: Part> Board<T> {
    /// Keeps at most so many values.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Board { most, entries: Mutex::default(), changed: Condvar::new() })
    }

    /// Adds a value, in place of one with the same number.
    pub fn put(&self, number: u64, value: T) {
        let mut entries = self.entries();
        entries.retain(|entry| entry.number != number);
        entries.push_back(Entry { number, value, version: 0 });
        while entries.len() > self.most {
            entries.pop_front();
        }
    }

    pub fn get(&self, number: u64) -> Option<T> {
        self.entries().iter().find(|entry| entry.number == number).map(|entry| entry.value.clone())
    }

    /// Changes a value, if it is still there.
    pub fn change(&self, number: u64, change: impl FnOnce(&mut T)) {
        if let Some(entry) = self.entries().iter_mut().find(|entry| entry.number == number) {
            change(&mut entry.value);
            entry.version += 1;
        }
        self.changed.notify_all();
    }

    /// The part as events, now and after each change, until it is final.
    pub fn events(self: &Arc<Self>, number: u64) -> Stream {
        let board = self.clone();
        Box::new(move |stream: &mut dyn Write| {
            let mut shown = None;
            while let Some((value, version)) = board.after(number, shown) {
                if shown == Some(version) {
                    stream.write_all(b": still here\n\n")?;
                    continue;
                }
                shown = Some(version);
                stream.write_all(event(&value.markup().into_string()).as_bytes())?;
                if value.is_final() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// A value and its version, which is another one than `shown`, or the same after a while.
    fn after(&self, number: u64, shown: Option<u64>) -> Option<(T, u64)> {
        let is_shown = |entries: &mut VecDeque<Entry<T>>| {
            entries.iter().any(|entry| entry.number == number && Some(entry.version) == shown)
        };
        let waited = self.changed.wait_timeout_while(self.entries(), SILENCE, is_shown);
        let (entries, _) = waited.unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|entry| entry.number == number).map(|entry| (entry.value.clone(), entry.version))
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
