//! Memory that the tasks of a section share: a pointer with its length, checked in debug builds.
//!
//! Operands may overlap where the plan allows it, and tasks write disjoint parts of one tensor, so kernels work on
//! pointers rather than slices. Every access still goes through this module and is checked against the length in tests.

use std::fmt;

use crate::isa::{MAX_LANES, prefetch};

/// Bytes of the smallest result that is written past the caches; in tests, of any but the smallest.
const STREAMED: usize = if cfg!(test) { 1 << 10 } else { 16 << 20 };

/// A piece of memory of `len` values of type T. The program is built so that it outlives its users.
pub(crate) struct Region<T> {
    start: *mut T,
    len: usize,
}

impl<T> Clone for Region<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Region<T> {}

// SAFETY: a region is an address; the code that dereferences it is responsible for the access.
unsafe impl<T: Send> Send for Region<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Region<T> {}

impl<T> fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}+{}", self.start, self.len)
    }
}

impl<T> Region<T> {
    /// The region of `len` values at `start`.
    pub(crate) fn new(start: *mut T, len: usize) -> Self {
        Region { start, len }
    }

    /// The region of a slice, to read.
    pub(crate) fn of(values: &[T]) -> Self {
        Region::new(values.as_ptr().cast_mut(), values.len())
    }

    /// The region of a slice, to write.
    pub(crate) fn of_mut(values: &mut [T]) -> Self {
        Region::new(values.as_mut_ptr(), values.len())
    }

    /// Number of values.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of value `index`, from which `count` values will be used.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize, count: usize) -> *mut T {
        debug_assert!(index + count <= self.len, "{index} + {count} of {}", self.len);
        // `wrapping_add` keeps this function safe; the later access is what needs care.
        self.start.wrapping_add(index)
    }

    /// Prefetches `count` values from `index + ahead`, which need not be in the region.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize, ahead: usize, count: usize) {
        prefetch(self.start.wrapping_add(index + ahead), count * std::mem::size_of::<T>());
    }

    /// Whether rows of `len` values are to be written by [`Simd::stream`](crate::isa::Simd::stream): their vectors are aligned,
    /// and all of them are more than caches hold until they are read.
    pub(crate) fn streams(&self, len: usize) -> bool {
        let vector = MAX_LANES * std::mem::size_of::<T>();
        self.len * std::mem::size_of::<T>() >= STREAMED
            && len.is_multiple_of(MAX_LANES)
            && self.start.addr().is_multiple_of(vector)
    }

    /// `count` values from `index`, to read.
    ///
    /// # Safety
    /// The memory is valid, and no code writes these values while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn slice<'a>(&self, index: usize, count: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(index, count), count) }
    }

    /// `count` values from `index`, to write.
    ///
    /// # Safety
    /// The memory is valid, and no other code touches these values while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn slice_mut<'a>(&self, index: usize, count: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(index, count), count) }
    }

    /// The same memory as whole values of another type. The type's alignment must not exceed that of the memory.
    pub(crate) fn cast<U>(&self) -> Region<U> {
        Region::new(self.start.cast(), self.len * std::mem::size_of::<T>() / std::mem::size_of::<U>())
    }

    /// The part of `count` values from `index`.
    pub(crate) fn part(&self, index: usize, count: usize) -> Self {
        Region::new(self.at(index, count), count)
    }
}
