//! A buffer in pieces, each of which another thread may write. The buffer is whole again when all pieces are gone.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use enmasse_tensor::HostBuffer;

/// The buffer of [`split`].
pub(crate) struct Split(Arc<HostBuffer>);

impl Split {
    /// The buffer. `None` while there are pieces of it.
    pub fn join(self) -> Option<HostBuffer> {
        Arc::into_inner(self.0)
    }
}

/// A piece of a buffer, which nobody else reads or writes.
pub(crate) struct Piece {
    start: NonNull<u8>,
    length: usize,
    /// Keeps the memory, and nobody from it.
    _buffer: Arc<HostBuffer>,
}

/// Splits a buffer into pieces of `length` bytes. A rest that is shorter is in none.
pub(crate) fn split(mut buffer: HostBuffer, length: usize) -> (Split, Vec<Piece>) {
    let starts: Vec<NonNull<u8>> = buffer.chunks_exact_mut(length).map(|chunk| NonNull::from(chunk).cast()).collect();
    let buffer = Arc::new(buffer);
    let piece = |start| Piece { start, length, _buffer: buffer.clone() };
    let pieces = starts.into_iter().map(piece).collect();
    (Split(buffer), pieces)
}

// SAFETY: a piece owns its bytes as a box would, and the buffer that it keeps may be sent and shared.
unsafe impl Send for Piece {}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the chunks of a buffer have no byte in common, its bytes never move, and it is out of reach until all pieces are gone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::{HostMemory, SystemMemory};

    use super::*;

    #[test]
    fn pieces_are_written_by_several_threads_and_joined() {
        let (buffer, pieces) = split(SystemMemory.allocate(3_001).unwrap(), 1_000);
        assert_eq!(pieces.len(), 3);
        std::thread::scope(|scope| {
            for (number, mut piece) in (1..).zip(pieces) {
                scope.spawn(move || piece.fill(number));
            }
        });
        let buffer = buffer.join().unwrap();
        let expected: Vec<u8> = (0..3_001).map(|at| [1, 2, 3, 0][at / 1_000]).collect();
        assert!(*buffer == expected);
    }

    #[test]
    fn there_is_no_buffer_beside_a_piece_of_it() {
        let (buffer, mut pieces) = split(SystemMemory.allocate(8).unwrap(), 4);
        pieces.truncate(1);
        assert!(buffer.join().is_none());
        // Its memory is still there.
        pieces[0].fill(9);
        assert_eq!(*pieces[0], [9; 4]);
    }
}
