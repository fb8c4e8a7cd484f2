//! The part of a region in which a rank stages one chunk. Every byte that passes through shared memory passes here.

use super::copy;
use crate::element::Element;
use crate::sync::Accesses;

/// A slot, as elements of a type. Its users follow the protocol of [`super::shared`].
#[derive(Clone)]
pub(crate) struct Slot<T> {
    first: *mut T,
    accesses: Accesses,
}

impl<T: Element> Slot<T> {
    pub(super) fn new(first: *mut u8, accesses: Accesses) -> Self {
        Slot { first: first.cast(), accesses }
    }

    /// Copies `len` elements to the slot, from its element `start` on.
    ///
    /// # Safety
    /// The slot is this rank's own, and no other rank reads these elements before it publishes them. They lie in the slot,
    /// and `from` is valid for as many.
    pub(crate) unsafe fn write(&self, start: usize, from: *const T, len: usize) {
        let to = self.first.wrapping_add(start);
        self.accesses.writes(to, len);
        // SAFETY: guaranteed by the caller.
        unsafe { copy(from, to, len) }
    }

    /// Copies `len` elements from the slot, from its element `start` on.
    ///
    /// # Safety
    /// The slot's owner has published these elements, and keeps them until this rank has consumed them. They lie in the slot,
    /// and `to` is valid for as many.
    pub(crate) unsafe fn read(&self, start: usize, to: *mut T, len: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { copy(self.values(start, len), to, len) }
    }

    /// Where `len` elements from `start` on can be read, under the conditions of [`Slot::read`].
    pub(crate) fn values(&self, start: usize, len: usize) -> *const T {
        let from = self.first.wrapping_add(start).cast_const();
        self.accesses.reads(from, len);
        from
    }
}
