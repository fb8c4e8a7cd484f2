//! The memory that the ranks of a node share: for each rank, control words and slots for staging data.
//!
//! Within a process it is ordinary memory. Between processes it is a memory file that never had a name, so nothing
//! remains however the ranks end. Every rank computes the sizes for itself; they are never read from the region.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{self, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::process::geteuid;
use rustix::thread::sched_getcpu;

use super::slot::Slot;
use crate::element::Element;
use crate::memory::Mapping;
use crate::operation::HEADER_WORDS;
use crate::sync::{Accesses, AtomicU32, AtomicU64, Words, futex};

/// Slots in which each rank stages data: one being filled, one being read, and slack for a late rank.
pub(crate) const SLOTS: usize = 4;
/// Nobody can shrink the file, which would kill a process that touches the missing pages, or take this back.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Headers kept per rank. Two suffice: a rank publishes operation s + 2 only after all ranks have compared those of s.
const HEADERS: usize = 2;

/// One rank's control words. Only the owner writes them (except `waiters`); every rank reads them.
///
/// The counters grow over the life of the group and never decrease.
#[repr(C, align(128))]
#[cfg_attr(all(loom, test), derive(Default))]
pub(crate) struct Counters {
    /// Operations whose header is published.
    pub entered: AtomicU64,
    /// Chunks whose data lies in the owner's slot.
    pub staged: AtomicU64,
    /// Chunks in which the owner's slot holds the result of its piece.
    pub reduced: AtomicU64,
    /// Chunks after which the owner no longer reads any other rank's slot.
    pub consumed: AtomicU64,
    /// Operations that all ranks have joined with which the owner has a connection.
    pub heard: AtomicU64,
    /// Watched operations that the owner has joined.
    pub watched: AtomicU64,
    /// Set when the owner leaves.
    pub left: AtomicU32,
    /// The processor on which the owner ran when it last published something. A hint, on which nothing but time depends.
    processor: atomic::AtomicU32,
    /// Changes along with every other word; waiting ranks sleep on it.
    event: AtomicU32,
    /// Number of threads that sleep, or are about to.
    waiters: AtomicU32,
    headers: [[AtomicU64; HEADER_WORDS]; HEADERS],
}

impl Counters {
    /// Publishes the header of operation `sequence`, which [`Counters::entered`] announces.
    pub(crate) fn set_header(&self, sequence: u64, header: &[u64; HEADER_WORDS]) {
        for (place, &word) in self.headers[sequence as usize % HEADERS].iter().zip(header) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// The header of operation `sequence`, once it is announced.
    pub(crate) fn header(&self, sequence: u64) -> [u64; HEADER_WORDS] {
        let places = &self.headers[sequence as usize % HEADERS];
        std::array::from_fn(|i| places[i].load(Ordering::Relaxed))
    }

    /// Publishes a counter and all earlier writes, and wakes the sleepers.
    pub(crate) fn publish(&self, counter: &AtomicU64, value: u64) {
        counter.store(value, Ordering::Release);
        self.notify();
    }

    /// Announces that the owner leaves.
    pub(crate) fn leave(&self) {
        self.left.store(1, Ordering::Release);
        self.notify();
    }

    /// Whether the owner appears to run on this thread's processor, and so can proceed only while this thread does not.
    fn shares_processor(&self) -> bool {
        self.processor.load(Ordering::Relaxed) == sched_getcpu() as u32
    }

    /// One moment of a short wait for the owner. With fewer cores than ranks, or on the owner's core, the core goes to the thread
    /// that is next there: to spin would only keep it from the owner.
    pub(crate) fn spin(&self, are_more_than_cores: bool) {
        if are_more_than_cores || self.shares_processor() {
            std::thread::yield_now();
        } else {
            (0..16).for_each(|_| std::hint::spin_loop());
        }
    }

    fn notify(&self) {
        self.processor.store(sched_getcpu() as u32, Ordering::Relaxed);
        // Sequentially consistent with `sleep_unless`: either the sleeper sees the new event, or it is counted here.
        self.event.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            futex::wake(&self.event);
        }
    }

    /// Sleeps until something changes, for at most `limit`; returns at once if `ready` already holds.
    pub(crate) fn sleep_unless(&self, ready: impl Fn() -> bool, limit: Duration) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let event = self.event.load(Ordering::SeqCst);
        if !ready() {
            futex::wait(&self.event, event, limit);
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The sizes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The ranks that share it.
    pub ranks: usize,
    /// Bytes of a slot, which one chunk of an operation moves: a multiple of 4096.
    pub slot_bytes: usize,
    /// The ranks of the whole group if some are on other nodes, else 0. Each rank has a mark for each of them.
    pub marks: usize,
}

impl Layout {
    /// Bytes of the whole region; `None` on overflow.
    fn bytes(&self) -> Option<NonZeroUsize> {
        let slots = self.ranks.checked_mul(SLOTS)?.checked_mul(self.slot_bytes)?;
        NonZeroUsize::new(self.slots_offset()?.checked_add(slots)?)
    }

    fn marks_offset(&self) -> Option<usize> {
        self.ranks.checked_mul(size_of::<Counters>())
    }

    fn slots_offset(&self) -> Option<usize> {
        let marks = self.ranks.checked_mul(self.marks)?.checked_mul(size_of::<AtomicU64>())?;
        self.marks_offset()?.checked_add(marks)?.checked_next_multiple_of(4096)
    }
}

/// The memory of one group, or of its ranks on one node. Ranks of one process share the value; ranks of several processes
/// map the same file.
pub(crate) struct Region {
    /// Holds the words, the marks and the slots, in this order.
    memory: Mapping,
    layout: Layout,
    counters: Words<Counters>,
    marks: Words<AtomicU64>,
    slots_offset: usize,
    accesses: Accesses,
}

// SAFETY: control words are atomics; slots are raw memory whose users follow the protocol of `shared`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Ordinary memory, for the threads of one process.
    pub(crate) fn private(layout: Layout) -> std::io::Result<Self> {
        let bytes = layout.bytes().ok_or(std::io::ErrorKind::OutOfMemory)?;
        Self::of(Mapping::private(bytes.get())?, layout)
    }

    /// A new memory file, for processes. Others map it through `/proc/<pid>/fd/<number>` while the descriptor is open.
    pub(crate) fn create(layout: Layout) -> std::io::Result<(Self, OwnedFd)> {
        let bytes = layout.bytes().ok_or(std::io::ErrorKind::OutOfMemory)?;
        let file = memfd_create("enmasse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes.get() as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::of(Mapping::shared(&file, bytes)?, layout)?, file))
    }

    /// Maps the memory file at `path`, which must be one that [`Region::create`] made for this user with this layout.
    pub(crate) fn open(path: &Path, layout: Layout) -> std::io::Result<Self> {
        let bytes = layout.bytes().ok_or(std::io::ErrorKind::OutOfMemory)?;
        let file = File::options().read(true).write(true).open(path)?;
        // The kernel refuses the question for files that cannot be sealed.
        let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        let stat = fstat(&file)?;
        match problem(seals, stat.st_uid, stat.st_size as u64, bytes) {
            // The seals keep the file from shrinking under it.
            None => Self::of(Mapping::shared(&file, bytes)?, layout),
            Some(why) => Err(std::io::Error::other(why)),
        }
    }

    fn of(memory: Mapping, layout: Layout) -> std::io::Result<Self> {
        let offsets = layout.marks_offset().zip(layout.slots_offset());
        let (marks_offset, slots_offset) = offsets.ok_or(std::io::ErrorKind::OutOfMemory)?;
        let base = memory.as_ptr();
        // SAFETY: the memory, which is as long as the layout says, is page-aligned and zeroed at creation, and lives as long as
        // the region. It begins with `ranks` words, which are atomics.
        let counters = unsafe { Words::at(base, layout.ranks) };
        // SAFETY: as above; the marks lie after the words, `marks` for each rank.
        let marks = unsafe { Words::at(base.wrapping_add(marks_offset), layout.ranks * layout.marks) };
        let accesses = Accesses::new(base.wrapping_add(slots_offset), layout.ranks * SLOTS * layout.slot_bytes);
        Ok(Region { memory, layout, counters, marks, slots_offset, accesses })
    }

    /// The path under which other processes find the file of `descriptor`.
    pub(crate) fn path_of(descriptor: &OwnedFd) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd())
    }

    pub(crate) fn ranks(&self) -> usize {
        self.layout.ranks
    }

    /// The control words of `rank`.
    pub(crate) fn counters(&self, rank: usize) -> &Counters {
        self.counters.get(rank)
    }

    /// What `rank` last heard from rank `other` of the whole group: the number of an operation that it has joined.
    pub(crate) fn mark(&self, rank: usize, other: usize) -> &AtomicU64 {
        assert!(other < self.layout.marks);
        self.marks.get(rank * self.layout.marks + other)
    }

    /// The slot in which `rank` stages chunk `chunk`, 4096-byte aligned.
    pub(crate) fn slot<T: Element>(&self, rank: usize, chunk: u64) -> Slot<T> {
        assert!(rank < self.layout.ranks);
        let slot = rank * SLOTS + (chunk % SLOTS as u64) as usize;
        // SAFETY: the slots lie after the marks, `ranks * SLOTS` of them.
        let first = unsafe { self.memory.as_ptr().add(self.slots_offset + slot * self.layout.slot_bytes) };
        Slot::new(first, self.accesses.clone())
    }
}

/// The reason not to map a file with these seals, owner and size as a region of `bytes`.
fn problem(seals: SealFlags, owner: u32, size: u64, bytes: NonZeroUsize) -> Option<String> {
    let own = geteuid().as_raw();
    if !seals.contains(SEALS) {
        Some("it is not sealed memory that a rank has made".to_owned())
    } else if owner != own {
        Some(format!("it belongs to user {owner}, and this rank is of user {own}"))
    } else if size != bytes.get() as u64 {
        Some("the shared memory has another size: do all ranks run the same program?".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of three ranks, on one of the nodes of a group of seven.
    const LAYOUT: Layout = Layout { ranks: 3, slot_bytes: 8192, marks: 7 };

    /// Files of any kind were mapped, as long as their size was right. A program that shrank one killed the ranks.
    #[test]
    fn any_file_of_the_right_size_was_mapped() {
        let bytes = LAYOUT.bytes().unwrap();
        let check = |path: &Path, expected: Option<&str>| {
            let why = Region::open(path, LAYOUT).err().map(|error| error.to_string());
            assert_eq!(why.as_deref(), expected);
        };
        let unsealed = "it is not sealed memory that a rank has made";
        let plain = tempfile::NamedTempFile::new().unwrap();
        plain.as_file().set_len(bytes.get() as u64).unwrap();
        check(plain.path(), Some(unsealed));
        let memory = |seals| {
            let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, bytes.get() as u64).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            file
        };
        for (seals, expected) in [
            (SealFlags::empty(), Some(unsealed)),
            (SEALS.difference(SealFlags::SHRINK), Some(unsealed)),
            (SEALS.difference(SealFlags::GROW), Some(unsealed)),
            (SEALS.difference(SealFlags::SEAL), Some(unsealed)),
            (SEALS, None),
        ] {
            check(Path::new(&Region::path_of(&memory(seals))), expected);
        }
        let (_, larger) = Region::create(Layout { ranks: 4, ..LAYOUT }).unwrap();
        let another_size = "the shared memory has another size: do all ranks run the same program?";
        check(Path::new(&Region::path_of(&larger)), Some(another_size));

        let own = geteuid().as_raw();
        let why = problem(SEALS, own + 1, bytes.get() as u64, bytes);
        assert_eq!(why, Some(format!("it belongs to user {}, and this rank is of user {own}", own + 1)));
    }

    #[test]
    fn a_memory_file_is_shared_through_its_descriptor() {
        let (first, file) = Region::create(LAYOUT).unwrap();
        let second = Region::open(Path::new(&Region::path_of(&file)), LAYOUT).unwrap();
        let another = Layout { ranks: 2, ..LAYOUT };
        assert!(Region::open(Path::new(&Region::path_of(&file)), another).is_err());
        drop(file);
        first.counters(2).set_header(5, &[1, 2, 3, 4, 5, 6, 7, 8]);
        first.counters(2).publish(&first.counters(2).entered, 5);
        assert_eq!(second.counters(2).entered.load(Ordering::Acquire), 5);
        assert_eq!(second.counters(2).header(5), [1, 2, 3, 4, 5, 6, 7, 8]);
        first.mark(2, 6).store(9, Ordering::Relaxed);
        let marks = [(2, 6), (2, 5), (1, 6)].map(|(rank, other)| second.mark(rank, other).load(Ordering::Relaxed));
        assert_eq!(marks, [9, 0, 0]);
        // SAFETY: no rank uses the region; the slot is at least one byte long.
        unsafe {
            first.slot::<u8>(2, 7).write(0, &9, 1);
            let of = |rank, chunk| *second.slot::<u8>(rank, chunk).values(0, 1);
            assert_eq!([of(2, 7), of(2, 11), of(1, 7)], [9, 9, 0]);
        }
    }
}
