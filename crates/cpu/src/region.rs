//! Memory that tasks of a section share: a pointer with its length, checked in debug builds.
//!
//! Operands may lie over each other where the plan says so, and tasks write disjoint parts of one tensor, so kernels
//! work on pointers rather than slices. Every access still goes through here and is checked against the length in
//! tests.

use std::fmt;

use crate::isa::prefetch;

/// A piece of memory of `len` values of type T, which outlives its users by the program's construction.
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

// SAFETY: a region is an address; the code that dereferences it answers for the access.
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
        // `wrapping_add` keeps this function safe; the access behind it is what needs care.
        self.start.wrapping_add(index)
    }

    /// Asks for `count` values that begin `ahead` after `index`, which need not be in the region.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize, ahead: usize, count: usize) {
        prefetch(self.start.wrapping_add(index + ahead), count * std::mem::size_of::<T>());
    }

    /// `count` values from `index` on, to read.
    ///
    /// # Safety
    /// The memory is valid, and nobody writes these values while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn slice<'a>(&self, index: usize, count: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(index, count), count) }
    }

    /// `count` values from `index` on, to write.
    ///
    /// # Safety
    /// The memory is valid, and nobody else touches these values while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn slice_mut<'a>(&self, index: usize, count: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(index, count), count) }
    }

    /// The same memory as values of another type, as many whole ones as there are. The types must ask for no more alignment
    /// than the memory has.
    pub(crate) fn cast<U>(&self) -> Region<U> {
        Region::new(self.start.cast(), self.len * std::mem::size_of::<T>() / std::mem::size_of::<U>())
    }

    /// The part of `count` values from `index` on.
    pub(crate) fn part(&self, index: usize, count: usize) -> Self {
        Region::new(self.at(index, count), count)
    }
}
