//! The greatest number of bytes that code holds on the heap, and the number of its allocations.
//!
//! ```
//! let (length, peak) = enmasse_test_support::heap::peak_of(|| vec![0u8; 1000].len());
//! assert_eq!((length, peak), (1000, 1000));
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

static HELD_BY_ALL: AtomicIsize = AtomicIsize::new(0);
static PEAK_OF_ALL: AtomicIsize = AtomicIsize::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count(bytes: isize) {
    let held = HELD_BY_ALL.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK_OF_ALL.fetch_max(held, Ordering::Relaxed);
    // An ending thread no longer has counters.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is forwarded to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        count(layout.size() as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The result of `f`, and the greatest number of bytes that this thread held in addition to those held before. Other
/// threads, such as those of other tests, do not count.
pub fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let value = f();
    (value, (PEAK.get() - before) as usize)
}

/// The result of `f`, and the bytes that this thread holds after it in addition to those held before.
pub fn held_after<T>(f: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get();
    let value = f();
    (value, HELD.get() - before)
}

/// The same as [`peak_of`] for all threads together: for a test program of one test.
pub fn peak_of_all_threads<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD_BY_ALL.load(Ordering::Relaxed);
    PEAK_OF_ALL.store(before, Ordering::Relaxed);
    let value = f();
    (value, (PEAK_OF_ALL.load(Ordering::Relaxed) - before) as usize)
}

/// The number of allocations by all threads since the program started: for a test program of one test.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}
