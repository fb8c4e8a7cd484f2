//! Zeroed memory for arenas: 64-byte aligned, in large pages where the kernel grants them.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const LARGE_PAGE: usize = 2 << 20;

/// A zeroed, private memory region, aligned to 64 bytes (to 2 MiB if it is that large).
///
/// The kernel supplies pages on first touch, so an arena takes only the memory that is used.
#[derive(Debug)]
pub struct AlignedBuffer {
    base: NonNull<u8>,
    mapped: NonZeroUsize,
    /// Offset of the aligned region in the mapping.
    start: usize,
    len: usize,
}

// SAFETY: the buffer owns its mapping; access follows the usual borrow rules.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Maps `len` zeroed bytes.
    ///
    /// # Errors
    /// The kernel's, if it does not give the memory.
    pub fn zeroed(len: usize) -> std::io::Result<Self> {
        let align = if len >= LARGE_PAGE { LARGE_PAGE } else { 64 };
        let mapped = (len.max(1).checked_add(if align == LARGE_PAGE { LARGE_PAGE } else { 0 }))
            .and_then(NonZeroUsize::new)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
        // SAFETY: a fresh private anonymous mapping aliases no other memory.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped.get(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let base =
            NonNull::new(base.cast::<u8>()).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        let start = base.as_ptr().align_offset(align);
        let buffer = AlignedBuffer { base, mapped, start, len };
        if align == LARGE_PAGE {
            // Only advice: a kernel without large pages serves small ones.
            // SAFETY: the range lies inside the mapping made above.
            let _ = unsafe { madvise(buffer.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(buffer)
    }

    /// Bytes that a buffer of `len` bytes takes once it is written: whole pages, large ones for a large buffer.
    pub fn resident_bytes(len: usize) -> usize {
        /// The smallest page of any machine.
        const PAGE: usize = 4096;
        let page = if len >= LARGE_PAGE { LARGE_PAGE } else { PAGE };
        len.checked_next_multiple_of(page).unwrap_or(len)
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start` lies inside the mapping.
        unsafe { self.base.as_ptr().add(self.start) }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the region is mapped and initialised (zero or written since).
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// The bytes, for writing.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }

    /// The buffer as f32 values, without a trailing partial value.
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        // SAFETY: the region is mapped, aligned, initialised (zero or written since), and any bits are an f32; `&mut self` makes
        // the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().cast(), self.len / 4) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `zeroed`, and nothing borrows it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_and_aligned() {
        for (len, align) in [(0, 1), (1, 64), (4097, 64), (5 << 20, LARGE_PAGE)] {
            let buffer = AlignedBuffer::zeroed(len).unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr().align_offset(align)), (len, 0));
            assert!(buffer.as_bytes().iter().all(|&byte| byte == 0));
        }
    }
}
