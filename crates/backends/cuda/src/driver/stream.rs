//! Streams, in which work runs in order, and events, which mark places in them.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use super::Context;
use super::functions::NOT_READY;
use crate::CudaError;

/// Does not wait for the work of the default stream, as some libraries use it.
const NON_BLOCKING: u32 = 1;

/// A queue of work. Dropping it lets the work in it end.
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: *mut c_void,
}

// SAFETY: the driver's streams may be used by any thread.
unsafe impl Send for Stream {}
// SAFETY: see above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.enter()?;
        let mut raw = null_mut();
        // SAFETY: the place is valid.
        let result = unsafe { (context.functions.cuStreamCreate)(&mut raw, NON_BLOCKING) };
        context.functions.check("cuStreamCreate", result)?;
        Ok(Stream { context: context.clone(), raw })
    }

    /// The driver's handle, for libraries.
    pub fn raw(&self) -> *mut c_void {
        self.raw
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits for all work in the stream, and returns its first error.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the stream lives.
        self.context
            .functions
            .check("cuStreamSynchronize", unsafe { (self.context.functions.cuStreamSynchronize)(self.raw) })
    }

    /// Whether all work in the stream has ended, or its first error.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.context.enter()?;
        // SAFETY: the stream lives.
        match unsafe { (self.context.functions.cuStreamQuery)(self.raw) } {
            NOT_READY => Ok(false),
            result => self.context.functions.check("cuStreamQuery", result).map(|()| true),
        }
    }

    /// Copies from the host to the GPU, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges must be valid, and the source must stay as it is, until the stream has copied them.
    pub unsafe fn write(&self, from: *const u8, to: u64, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the caller's promise.
        self.context.functions.check("cuMemcpyHtoDAsync", unsafe {
            (self.context.functions.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, self.raw)
        })
    }

    /// Copies from the GPU to the host, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges must be valid, and nobody may use the target, until the stream has copied them.
    pub unsafe fn read(&self, from: u64, to: *mut u8, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the caller's promise.
        self.context.functions.check("cuMemcpyDtoHAsync", unsafe {
            (self.context.functions.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, self.raw)
        })
    }

    /// Copies on the GPU, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges must be valid until the stream has copied them.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the caller's promise.
        self.context.functions.check("cuMemcpyDtoDAsync", unsafe {
            (self.context.functions.cuMemcpyDtoDAsync_v2)(to, from, bytes, self.raw)
        })
    }

    /// Sets all bytes of a range on the GPU, in the order of the stream.
    ///
    /// # Safety
    /// The range must be valid until the stream has set it.
    pub unsafe fn fill(&self, place: u64, value: u8, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the caller's promise.
        self.context.functions.check("cuMemsetD8Async", unsafe {
            (self.context.functions.cuMemsetD8Async)(place, value, bytes, self.raw)
        })
    }

    /// Lets later work of this stream wait for an event of another.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: both live.
        self.context
            .functions
            .check("cuStreamWaitEvent", unsafe { (self.context.functions.cuStreamWaitEvent)(self.raw, event.raw, 0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it is destroyed once. An error has nobody to go to.
            let _ = unsafe { (self.context.functions.cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A place in a stream. An event that was never recorded has passed.
pub(crate) struct Event {
    context: Arc<Context>,
    raw: *mut c_void,
}

// SAFETY: the driver's events may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: see above.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.enter()?;
        let mut raw = null_mut();
        // SAFETY: the place is valid.
        let result = unsafe { (context.functions.cuEventCreate)(&mut raw, 0) };
        context.functions.check("cuEventCreate", result)?;
        Ok(Event { context: context.clone(), raw })
    }

    /// Moves the event to the present end of a stream.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: both live.
        self.context
            .functions
            .check("cuEventRecord", unsafe { (self.context.functions.cuEventRecord)(self.raw, stream.raw()) })
    }

    /// Waits until the stream has passed the event.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the event lives.
        self.context
            .functions
            .check("cuEventSynchronize", unsafe { (self.context.functions.cuEventSynchronize)(self.raw) })
    }

    /// The time from an earlier event to this one; both must have passed.
    pub fn since(&self, earlier: &Event) -> Result<Duration, CudaError> {
        self.context.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both live, and the place is valid.
        self.context.functions.check("cuEventElapsedTime", unsafe {
            (self.context.functions.cuEventElapsedTime)(&mut milliseconds, earlier.raw, self.raw)
        })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) * 1e-3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it is destroyed once. An error has nobody to go to.
            let _ = unsafe { (self.context.functions.cuEventDestroy_v2)(self.raw) };
        }
    }
}
