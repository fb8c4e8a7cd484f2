//! Graphs: the work of a stream, captured once and launched as a whole.

use std::ptr::null_mut;

use super::Stream;
use super::object::Object;
use crate::CudaError;

/// Fails calls of this thread that would break the capture; other threads go on.
const THREAD_LOCAL: i32 = 1;

/// Captured work, ready to launch.
pub(crate) struct Graph(Object);

impl Graph {
    /// Captures the work that `record` puts into the stream, which does not run it. What its addresses point to must live
    /// as long as the graph.
    pub fn capture<E: From<CudaError>>(
        stream: &Stream,
        record: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Self, E> {
        let context = stream.context();
        let functions = context.enter()?;
        // SAFETY: the stream lives.
        unsafe { functions.cuStreamBeginCapture_v2(stream.raw(), THREAD_LOCAL) }?;
        let recorded = record(stream);
        let mut graph = null_mut();
        // SAFETY: the place is valid. The capture ends also after an error of the recording.
        let ended = unsafe { functions.cuStreamEndCapture(stream.raw(), &mut graph) };
        let made = recorded.and_then(|()| {
            ended?;
            Ok(Object::new(context, functions.cuGraphExecDestroy, |functions, raw| {
                // SAFETY: the place is valid, and the graph was captured above.
                unsafe { functions.cuGraphInstantiateWithFlags(raw, graph, 0) }
            })?)
        });
        if !graph.is_null() {
            // SAFETY: it is destroyed once; what was made of it stays. An error has nobody to go to.
            let _ = unsafe { functions.cuGraphDestroy(graph) };
        }
        made.map(Graph)
    }

    /// Puts all of the work into a stream.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        unsafe { self.0.enter()?.cuGraphLaunch(self.0.raw, stream.raw()) }
    }
}
