//! The standard library's atomics and locks, and the kernel's futex.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Locks for code that models run too.
pub(crate) mod locks {
    pub(crate) use std::sync::{Condvar, Mutex};

    pub(crate) use crate::locks::{lock, wait_for, wait_while};
}

/// Sleeping until a word changes.
pub(crate) mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::{Timespec, futex};

    /// Sleeps while the word has this value, for at most `limit`. May return earlier.
    pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Duration) {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // Interrupted, timed out, or changed in the meantime: the caller checks again.
        let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
    }

    /// Wakes all that sleep.
    pub(crate) fn wake(word: &AtomicU32) {
        // Only a bad address could fail here. Sleepers check again after a while in any case.
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// Control words in memory that ranks share.
pub(crate) struct Words<T> {
    first: *const T,
    len: usize,
}

impl<T> Words<T> {
    /// The words that begin at `first`.
    ///
    /// # Safety
    /// The memory is aligned for `len` words, zeroed at creation, and outlives this. A word consists of atomics.
    pub(crate) unsafe fn at(first: *mut u8, len: usize) -> Self {
        Words { first: first.cast_const().cast(), len }
    }

    pub(crate) fn get(&self, place: usize) -> &T {
        assert!(place < self.len);
        // SAFETY: guaranteed by the constructor's caller.
        unsafe { &*self.first.add(place) }
    }
}

/// Who uses which part of the slots, of which only models keep account.
#[derive(Clone)]
pub(crate) struct Accesses;

impl Accesses {
    /// Of so many bytes from `first`.
    pub(crate) fn new(_first: *const u8, _bytes: usize) -> Self {
        Accesses
    }

    /// Notes that this thread reads `len` elements now.
    pub(crate) fn reads<T>(&self, _from: *const T, _len: usize) {}

    /// Notes that this thread writes `len` elements now.
    pub(crate) fn writes<T>(&self, _to: *const T, _len: usize) {}
}
