//! Graphs: the work of a stream, captured once and launched as a whole.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use super::{Context, Stream};
use crate::CudaError;

/// Fails calls of this thread that would break the capture; other threads go on.
const THREAD_LOCAL: i32 = 1;

/// Captured work, ready to launch.
pub(crate) struct Graph {
    context: Arc<Context>,
    raw: *mut c_void,
}

// SAFETY: the driver's graphs may be used by any thread, by one at a time.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures the work that `record` puts into the stream, which does not run it. What its addresses point to must live
    /// as long as the graph.
    pub fn capture<E: From<CudaError>>(
        stream: &Stream,
        record: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Self, E> {
        let context = stream.context();
        let functions = &context.functions;
        context.enter()?;
        // SAFETY: the stream lives.
        functions.check("cuStreamBeginCapture", unsafe {
            (functions.cuStreamBeginCapture_v2)(stream.raw(), THREAD_LOCAL)
        })?;
        let recorded = record(stream);
        let mut graph = null_mut();
        // SAFETY: the place is valid. The capture ends also after an error of the recording.
        let ended = unsafe { (functions.cuStreamEndCapture)(stream.raw(), &mut graph) };
        let mut raw = null_mut();
        let made = recorded.and_then(|()| {
            functions.check("cuStreamEndCapture", ended)?;
            // SAFETY: the place is valid, and the graph was captured above.
            let made = unsafe { (functions.cuGraphInstantiateWithFlags)(&mut raw, graph, 0) };
            Ok(functions.check("cuGraphInstantiate", made)?)
        });
        if !graph.is_null() {
            // SAFETY: it is destroyed once; what was made of it stays. An error has nobody to go to.
            let _ = unsafe { (functions.cuGraphDestroy)(graph) };
        }
        made.map(|()| Graph { context: context.clone(), raw })
    }

    /// Puts all of the work into a stream.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: both live.
        self.context
            .functions
            .check("cuGraphLaunch", unsafe { (self.context.functions.cuGraphLaunch)(self.raw, stream.raw()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it is destroyed once; the driver lets its work end. An error has nobody to go to.
            let _ = unsafe { (self.context.functions.cuGraphExecDestroy)(self.raw) };
        }
    }
}
