//! loom's atomics and locks, a futex made of them, and an account of who uses the slots.
//!
//! Between two operations of loom a thread runs alone, so what this module keeps for itself needs no order.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use loom::cell::UnsafeCell;
use loom::sync::atomic;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64};

/// Bytes whose uses are told apart. All parts of slots that different ranks use begin at cache lines.
const LINE: usize = 64;

/// A word that begins with 0. loom lets a sequentially consistent load return the initial value although a later
/// sequentially consistent store has come before it, unless the initial value is from such a store, too.
pub(crate) struct AtomicU32(atomic::AtomicU32);

impl Default for AtomicU32 {
    fn default() -> Self {
        let word = atomic::AtomicU32::new(0);
        word.store(0, SeqCst);
        AtomicU32(word)
    }
}

impl Deref for AtomicU32 {
    type Target = atomic::AtomicU32;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Locks without deadlines: a thread that nobody notifies is a deadlock, which loom reports.
pub(crate) mod locks {
    use std::sync::PoisonError;
    use std::time::Duration;

    use loom::sync::MutexGuard;
    pub(crate) use loom::sync::{Condvar, Mutex};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_for<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
        condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_while<'a, T>(
        condition: &Condvar,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
        mut so: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while so(&mut guard) {
            guard = wait_for(condition, guard, limit);
        }
        guard
    }
}

/// The kernel's part: it compares the word and begins to sleep in one step.
pub(crate) mod futex {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Duration;

    use loom::thread::{Thread, current, park, yield_now};

    use super::AtomicU32;
    use crate::locks::lock;

    #[derive(Default)]
    struct Kernel {
        /// Who sleeps, and at which word's address.
        asleep: Vec<(usize, Thread)>,
        limits_end: bool,
    }

    loom::lazy_static! {
        static ref KERNEL: Mutex<Kernel> = Mutex::default();
    }

    /// To be called before a model's threads begin. Otherwise the first one to sleep would be ordered before later ones.
    pub(crate) fn boot() {
        *lock(&KERNEL) = Kernel::default();
    }

    /// Sleeps while the word has this value. The limit is over when [`end_limits`] is called, and not before.
    pub(crate) fn wait(word: &AtomicU32, value: u32, _: Duration) {
        if word.load(SeqCst) != value {
            return;
        }
        let mut kernel = lock(&KERNEL);
        if kernel.limits_end {
            drop(kernel);
            return yield_now();
        }
        kernel.asleep.push((std::ptr::from_ref(word).addr(), current()));
        drop(kernel);
        park();
    }

    pub(crate) fn wake(word: &AtomicU32) {
        let address = std::ptr::from_ref(word).addr();
        lock(&KERNEL).asleep.extract_if(.., |(at, _)| *at == address).for_each(|(_, thread)| thread.unpark());
    }

    /// Lets the limits of all sleeps end, of later ones too.
    pub(crate) fn end_limits() {
        let mut kernel = lock(&KERNEL);
        kernel.limits_end = true;
        kernel.asleep.drain(..).for_each(|(_, thread)| thread.unpark());
    }
}

/// Control words, in memory of loom's own.
pub(crate) struct Words<T>(Vec<T>);

impl<T: Default> Words<T> {
    /// As many words as there are at `first` in an ordinary build.
    ///
    /// # Safety
    /// None is needed here.
    pub(crate) unsafe fn at(_first: *mut u8, len: usize) -> Self {
        Words((0..len).map(|_| T::default()).collect())
    }

    pub(crate) fn get(&self, place: usize) -> &T {
        &self.0[place]
    }
}

/// Who uses which line of the slots. loom reports two uses that nothing orders, if one of them writes.
#[derive(Clone)]
pub(crate) struct Accesses {
    first: usize,
    lines: Arc<[UnsafeCell<()>]>,
}

impl Accesses {
    pub(crate) fn new(first: *const u8, bytes: usize) -> Self {
        Accesses { first: first.addr(), lines: (0..bytes.div_ceil(LINE)).map(|_| UnsafeCell::new(())).collect() }
    }

    pub(crate) fn reads<T>(&self, from: *const T, len: usize) {
        self.lines_of(from, len).iter().for_each(|line| line.with(|_| ()));
    }

    pub(crate) fn writes<T>(&self, to: *const T, len: usize) {
        self.lines_of(to, len).iter().for_each(|line| line.with_mut(|_| ()));
    }

    fn lines_of<T>(&self, at: *const T, len: usize) -> &[UnsafeCell<()>] {
        let start = at.addr() - self.first;
        let end = start + len * size_of::<T>();
        if len == 0 { &[] } else { &self.lines[start / LINE..end.div_ceil(LINE)] }
    }
}
