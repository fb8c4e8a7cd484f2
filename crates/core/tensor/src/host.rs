//! Host memory that a device reads from. The allocation is the device's choice; its use is the same for all.
//!
//! A device may want batches in memory that it allocates itself, such as pages locked by its driver. It provides a
//! [`HostMemory`]; the code that fills the buffers knows no device.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

use crate::AlignedBuffer;

/// Allocates buffers that a device can read from.
pub trait HostMemory: Send + Sync {
    /// A buffer of `bytes` zeroed bytes, aligned to 64.
    ///
    /// # Errors
    /// That of the system or the driver, if there is too little memory.
    fn allocate(&self, bytes: usize) -> io::Result<HostBuffer>;
}

/// The memory of one buffer, as its allocator defines it. Dropping it frees the memory.
pub trait HostRegion: Send + Sync {
    /// The bytes, at an address that never changes.
    fn bytes(&self) -> &[u8];

    /// The bytes, for writing.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// An owned buffer of bytes from a [`HostMemory`]. The default holds no bytes.
#[derive(Default)]
pub struct HostBuffer {
    region: Option<Box<dyn HostRegion>>,
}

impl HostBuffer {
    /// The buffer whose memory is `region`.
    pub fn new(region: impl HostRegion + 'static) -> Self {
        HostBuffer { region: Some(Box::new(region)) }
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.region.as_deref().map_or(&[], HostRegion::bytes)
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.region.as_deref_mut().map_or(&mut [], HostRegion::bytes_mut)
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of host memory", self.len())
    }
}

/// Ordinary memory of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemMemory;

impl HostMemory for SystemMemory {
    fn allocate(&self, bytes: usize) -> io::Result<HostBuffer> {
        AlignedBuffer::zeroed(bytes).map(HostBuffer::new)
    }
}

impl HostRegion for AlignedBuffer {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_bytes_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn system_memory_is_zeroed_aligned_and_keeps_its_place() {
        for bytes in [0, 1, 3_001, 3 << 20] {
            let mut buffer = SystemMemory.allocate(bytes).unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr().align_offset(64)), (bytes, 0));
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            let place = buffer.as_ptr();
            let moved = std::mem::take(&mut buffer);
            assert_eq!((moved.as_ptr(), moved.iter().filter(|&&byte| byte == 7).count()), (place, bytes));
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_refusal_is_an_error() {
        assert!(SystemMemory.allocate(usize::MAX).is_err());
        assert!(SystemMemory.allocate(usize::MAX / 2).is_err());
    }

    /// Memory from an allocator that counts its live buffers.
    struct Counted(AlignedBuffer, Arc<AtomicUsize>);

    impl HostRegion for Counted {
        fn bytes(&self) -> &[u8] {
            self.0.as_bytes()
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            self.0.as_bytes_mut()
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_dropped_buffer_returns_to_its_allocator() {
        let out = Arc::new(AtomicUsize::new(1));
        let buffer = HostBuffer::new(Counted(AlignedBuffer::zeroed(8).unwrap(), out.clone()));
        assert_eq!(out.load(Ordering::Relaxed), 1);
        drop(buffer);
        assert_eq!(out.load(Ordering::Relaxed), 0);
    }
}
