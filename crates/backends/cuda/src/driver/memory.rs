//! Memory of the GPU, and page-locked memory of the host, which the GPU copies by itself.

use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use enmasse_tensor::{HostBuffer, HostMemory, HostRegion};

use super::functions::OUT_OF_MEMORY;
use super::{Context, Stream};
use crate::CudaError;

/// Bytes on the GPU.
pub(crate) struct Buffer {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
    /// What frees it, if not the driver.
    free: Option<Free>,
}

/// A library's function that frees what the library has allocated in the current context, by its address.
type Free = Box<dyn Fn(u64) + Send + Sync>;

impl Buffer {
    /// Allocates memory for `what`; its contents are undefined.
    pub fn new(context: &Arc<Context>, what: &str, bytes: usize) -> Result<Self, CudaError> {
        let functions = context.enter()?;
        let mut address = 0;
        if bytes == 0 {
            // The driver has no empty allocations.
            return Ok(Buffer { context: context.clone(), address, bytes, free: None });
        }
        // SAFETY: the place is valid.
        match unsafe { (functions.cuMemAlloc_v2)(&mut address, bytes) } {
            0 => Ok(Buffer { context: context.clone(), address, bytes, free: None }),
            OUT_OF_MEMORY => Err(CudaError::Memory { what: what.into(), bytes }),
            status => Err(functions.error("cuMemAlloc", status)),
        }
    }

    /// Memory that a library has allocated in a context, and that `free` gives back to it.
    pub fn of_library(context: &Arc<Context>, address: u64, bytes: usize, free: Free) -> Self {
        Buffer { context: context.clone(), address, bytes, free: Some(free) }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address on the GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Sets all bytes to zero, in the order of the stream.
    pub fn zero(&self, stream: &Stream) -> Result<(), CudaError> {
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is that of the allocation, which is freed only after the work of all streams.
        unsafe { stream.fill(self.address, 0, self.bytes) }
    }

    /// Copies `from` to the GPU, after all work of the stream, and waits for that.
    pub fn write(&self, stream: &Stream, offset: usize, from: &[u8]) -> Result<(), CudaError> {
        self.within(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies in the allocation, and the source lives until the stream has been waited for.
        unsafe { stream.write(from.as_ptr(), self.address + offset as u64, from.len()) }?;
        stream.wait()
    }

    /// Copies from the GPU to `to`, after all work of the stream, and waits for that.
    pub fn read(&self, stream: &Stream, offset: usize, to: &mut [u8]) -> Result<(), CudaError> {
        self.within(offset, to.len())?;
        // SAFETY: the range lies in the allocation, and the target lives until the stream has been waited for.
        unsafe { stream.read(self.address + offset as u64, to.as_mut_ptr(), to.len()) }?;
        stream.wait()
    }

    fn within(&self, offset: usize, bytes: usize) -> Result<(), CudaError> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(CudaError::Unsupported(format!("bytes {offset}+{bytes} lie outside a buffer of {} bytes", self.bytes)))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // The driver frees memory after the work that uses it. An error at this point has nobody to go to.
        let (1.., Ok(functions)) = (self.bytes, self.context.enter()) else { return };
        match &self.free {
            Some(free) => free(self.address),
            None => {
                // SAFETY: the address came from the driver, and is freed once.
                let _ = unsafe { functions.cuMemFree_v2(self.address) };
            }
        }
    }
}

/// Page-locked memory of the host.
pub(crate) struct PinnedMemory {
    pub context: Arc<Context>,
}

/// The bytes of one allocation.
struct Pinned {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the bytes belong to their owner, like those of a box.
unsafe impl Send for Pinned {}
// SAFETY: see above.
unsafe impl Sync for Pinned {}

impl PinnedMemory {
    /// Memory for `what` of a program.
    pub fn allocate_for(&self, what: &'static str, bytes: usize) -> Result<HostBuffer, CudaError> {
        self.allocate(bytes).map_err(|error| CudaError::HostMemory { what, bytes, why: error.to_string() })
    }
}

impl HostMemory for PinnedMemory {
    fn allocate(&self, bytes: usize) -> io::Result<HostBuffer> {
        let mut start: *mut c_void = null_mut();
        let allocated = self.context.enter().and_then(|functions| {
            // SAFETY: the place is valid. Flag 1: all contexts may copy it at full speed.
            unsafe { functions.cuMemHostAlloc(&mut start, bytes.max(1), 1) }
        });
        allocated.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error.to_string()))?;
        let start = start.cast::<u8>();
        // SAFETY: the driver has allocated these bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(HostBuffer::new(Pinned { context: self.context.clone(), start, bytes }))
    }
}

impl HostRegion for Pinned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation lives as long as `self`, and was filled with zeros.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(functions) = self.context.enter() {
            // SAFETY: the address came from the driver, and is freed once. An error has nobody to go to.
            let _ = unsafe { functions.cuMemFreeHost(self.start.cast()) };
        }
    }
}
