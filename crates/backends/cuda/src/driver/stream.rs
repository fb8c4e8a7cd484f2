//! Streams, in which work runs in order, and events, which mark places in them.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::Context;
use super::functions::NOT_READY;
use super::object::Object;
use crate::CudaError;

/// Does not wait for the work of the default stream, as some libraries use it.
const NON_BLOCKING: u32 = 1;

/// A queue of work. Dropping it lets the work in it end.
pub(crate) struct Stream(Object);

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Object::new(context, context.functions.cuStreamDestroy_v2, |functions, raw| {
            // SAFETY: the place is valid.
            unsafe { functions.cuStreamCreate(raw, NON_BLOCKING) }
        })
        .map(Stream)
    }

    /// The driver's handle, for libraries.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Waits for all work in the stream, and returns its first error.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives.
        unsafe { self.0.enter()?.cuStreamSynchronize(self.0.raw) }
    }

    /// Whether all work in the stream has ended, or its first error.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let functions = self.0.enter()?;
        // SAFETY: the stream lives.
        match unsafe { (functions.cuStreamQuery)(self.0.raw) } {
            0 => Ok(true),
            NOT_READY => Ok(false),
            status => Err(functions.error("cuStreamQuery", status)),
        }
    }

    /// Copies from the host to the GPU, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges must be valid, and the source must stay as it is, until the stream has copied them.
    pub unsafe fn write(&self, from: *const u8, to: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.enter()?.cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.0.raw) }
    }

    /// Copies from the GPU to the host, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges must be valid, and nobody may use the target, until the stream has copied them.
    pub unsafe fn read(&self, from: u64, to: *mut u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.enter()?.cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.0.raw) }
    }

    /// Copies on the GPU, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges must be valid until the stream has copied them.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.enter()?.cuMemcpyDtoDAsync_v2(to, from, bytes, self.0.raw) }
    }

    /// Sets all bytes of a range on the GPU, in the order of the stream.
    ///
    /// # Safety
    /// The range must be valid until the stream has set it.
    pub unsafe fn fill(&self, place: u64, value: u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.enter()?.cuMemsetD8Async(place, value, bytes, self.0.raw) }
    }

    /// Lets later work of this stream wait for an event of another.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both live.
        unsafe { self.0.enter()?.cuStreamWaitEvent(self.0.raw, event.0.raw, 0) }
    }
}

/// A place in a stream, without a timestamp, which would cost the GPU a write. An event that was never recorded has passed.
pub(crate) struct Event(Object);

/// The flags of an event: a thread that waits for it sleeps, and it keeps no timestamp.
const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;

impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Event::with(context, BLOCKING_SYNC | DISABLE_TIMING)
    }

    fn with(context: &Arc<Context>, flags: u32) -> Result<Self, CudaError> {
        Object::new(context, context.functions.cuEventDestroy_v2, |functions, raw| {
            // SAFETY: the place is valid.
            unsafe { functions.cuEventCreate(raw, flags) }
        })
        .map(Event)
    }

    /// Moves the event to the present end of a stream.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        unsafe { self.0.enter()?.cuEventRecord(self.0.raw, stream.raw()) }
    }

    /// Waits until the stream has passed the event.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        unsafe { self.0.enter()?.cuEventSynchronize(self.0.raw) }
    }
}

/// When a stream passed a place.
pub(crate) struct Timestamp(Event);

impl Timestamp {
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Event::with(context, BLOCKING_SYNC).map(Timestamp)
    }

    /// As [`Event::record`].
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.0.record(stream)
    }

    /// The time from an earlier timestamp to this one; the streams must have passed both.
    pub fn since(&self, earlier: &Timestamp) -> Result<Duration, CudaError> {
        let mut milliseconds = 0.0;
        let [later, earlier] = [self, earlier].map(|timestamp| &timestamp.0.0);
        // SAFETY: both live, and the place is valid.
        unsafe { later.enter()?.cuEventElapsedTime(&mut milliseconds, earlier.raw, later.raw) }?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) * 1e-3))
    }
}
