//! Memory of whole pages: for data on their way, private to this process or shared through a file.

use std::any::Any;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

const LARGE_PAGE: usize = 2 << 20;

/// A mapping. The kernel supplies its pages, zeroed, when they are first touched.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: NonZeroUsize,
}

// SAFETY: it owns its pages and hands out raw pointers only, whose users answer for their access.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private memory of at least one byte, in large pages where the kernel grants them. The error is the kernel's.
    pub(crate) fn private(len: usize) -> std::io::Result<Self> {
        let len = NonZeroUsize::new(len).unwrap_or(NonZeroUsize::MIN);
        // SAFETY: a fresh private anonymous mapping aliases no other memory.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len.get(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        if len.get() >= LARGE_PAGE {
            // Only advice: a kernel without large pages serves small ones.
            // SAFETY: the range is the mapping made above.
            let _ = unsafe { madvise(base, len.get(), Advice::LinuxHugepage) };
        }
        Self::at(base.cast(), len)
    }

    /// The first bytes of a file, shared with all who map it. The file must not shrink below them.
    pub(crate) fn shared(file: &impl AsFd, len: NonZeroUsize) -> std::io::Result<Self> {
        // SAFETY: a fresh mapping aliases no other memory of this program.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len.get(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        Self::at(base.cast(), len)
    }

    fn at(base: *mut u8, len: NonZeroUsize) -> std::io::Result<Self> {
        let base = NonNull::new(base).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    /// The first byte, which begins a page.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped above, and nothing borrows it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len.get()) };
    }
}

/// Keeps memory of the caller alive.
pub(crate) type MemoryOwner = Arc<dyn Any + Send + Sync>;

/// Memory of the caller on which operations work. Its owner outlives what is received into it.
pub(crate) struct RegisteredMemory {
    owner: Weak<dyn Any + Send + Sync>,
    /// Its addresses.
    range: Range<usize>,
}

impl RegisteredMemory {
    pub(crate) fn new<M: Send + Sync + 'static>(owner: &Arc<M>, start: *mut u8, len: usize) -> Self {
        let owner: MemoryOwner = owner.clone();
        RegisteredMemory { owner: Arc::downgrade(&owner), range: start.addr()..start.addr().saturating_add(len) }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.owner.strong_count() > 0
    }

    pub(crate) fn owner(&self) -> Option<MemoryOwner> {
        self.owner.upgrade()
    }

    pub(crate) fn holds(&self, addresses: Range<usize>) -> bool {
        self.range.start <= addresses.start && addresses.end <= self.range.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_and_aligned() {
        for len in [0, 1, 4097, 5 << 20] {
            let memory = Mapping::private(len).unwrap();
            assert_eq!(memory.as_ptr().align_offset(4096), 0);
            // SAFETY: the mapping has so many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), len) };
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
    }
}
