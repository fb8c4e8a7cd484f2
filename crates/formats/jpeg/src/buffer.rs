//! Buffers that are kept from one image to the next.

use crate::Error;

/// Sets the length of a buffer whose content no longer counts. Memory is kept for the next image unless it is much more
/// than this one needs.
pub(crate) fn fit<T: Copy>(buffer: &mut Vec<T>, length: usize, value: T) -> Result<(), Error> {
    /// Bytes that are not worth freeing.
    const SMALL: usize = 4 << 20;
    let capacity = buffer.capacity();
    let size = size_of::<T>();
    if capacity < length || capacity > (SMALL / size).max(length.saturating_mul(2)) {
        *buffer = Vec::new();
        buffer.try_reserve_exact(length).map_err(|_| Error::Memory(length.saturating_mul(size)))?;
    }
    buffer.resize(length, value);
    Ok(())
}
