//! Buffers that serve one image after another.

use std::io;

use super::reserve;

/// A buffer up to this size is kept whatever the next image needs, in bytes: in a folder of mixed sizes, freeing it and
/// filling new memory would take longer than it is worth.
const SMALL: usize = 4 << 20;

/// Sets the length of a buffer whose content no longer counts. It gets exactly the memory that it needs, and a buffer of more
/// than twice that is freed: one unusually large image does not take memory for the rest of a run.
///
/// # Errors
/// There is no memory for it. The buffer is empty then.
pub fn reuse(buffer: &mut Vec<u8>, length: usize) -> io::Result<()> {
    let capacity = buffer.capacity();
    if capacity < length || capacity > SMALL.max(length.saturating_mul(2)) {
        // Before the new memory is taken.
        *buffer = Vec::new();
        reserve(buffer, length)?;
    }
    buffer.resize(length, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_the_images() {
        let check = |sizes: &[usize], expected: usize| {
            let mut buffer = Vec::new();
            for &size in sizes {
                reuse(&mut buffer, size).unwrap();
                assert_eq!(buffer.len(), size);
            }
            assert_eq!(buffer.capacity(), expected, "{sizes:?}");
        };
        check(&[7], 7);
        check(&[7, 3], 7);
        check(&[7, 9], 9);
        check(&[SMALL, 1], SMALL);
        check(&[SMALL + 1, 1], 1);
        check(&[2 * SMALL, SMALL], 2 * SMALL);
        check(&[2 * SMALL + 1, SMALL], SMALL);
        let mut buffer = vec![1; 7];
        reuse(&mut buffer, usize::MAX).unwrap_err();
        assert_eq!(buffer.capacity(), 0);
    }
}
