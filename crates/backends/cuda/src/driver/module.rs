//! Kernels, loaded from PTX, which the driver compiles for the GPU, and keeps.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::{Context, Stream};
use crate::CudaError;

/// All kernels of a PTX.
pub(crate) struct Module {
    context: Arc<Context>,
    raw: *mut c_void,
}

// SAFETY: the driver's modules may be used by any thread.
unsafe impl Send for Module {}
// SAFETY: see above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a PTX.
    pub fn new(context: &Arc<Context>, ptx: &str) -> Result<Arc<Self>, CudaError> {
        context.enter()?;
        let text = terminated(ptx)?;
        let mut raw = null_mut();
        // SAFETY: the text ends in a zero, and there are no options.
        let result = unsafe {
            (context.functions.cuModuleLoadDataEx)(&mut raw, text.as_ptr().cast(), 0, null_mut(), null_mut())
        };
        context.functions.check("cuModuleLoadDataEx", result)?;
        Ok(Arc::new(Module { context: context.clone(), raw }))
    }

    /// The kernel with this name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        self.context.enter()?;
        let text = terminated(name)?;
        let mut raw = null_mut();
        // SAFETY: the name ends in a zero.
        let result = unsafe { (self.context.functions.cuModuleGetFunction)(&mut raw, self.raw, text.as_ptr()) };
        self.context.functions.check("cuModuleGetFunction", result).map_err(|error| match error {
            CudaError::Call { .. } => CudaError::Unsupported(format!("kernel {name}: {error}")),
            other => other,
        })?;
        Ok(Function { module: self.clone(), raw })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it is unloaded once, after its functions. An error has nobody to go to.
            let _ = unsafe { (self.context.functions.cuModuleUnload)(self.raw) };
        }
    }
}

/// A kernel.
#[derive(Clone)]
pub(crate) struct Function {
    module: Arc<Module>,
    raw: *mut c_void,
}

// SAFETY: the driver's functions may be used by any thread.
unsafe impl Send for Function {}
// SAFETY: see above.
unsafe impl Sync for Function {}

impl Function {
    /// Launches the kernel with its one argument, in the order of the stream.
    ///
    /// # Safety
    /// The argument must be the kernel's struct, and the addresses in it valid for what the kernel does.
    pub unsafe fn launch(&self, stream: &Stream, grid: [u32; 3], block: u32, argument: &[u8]) -> Result<(), CudaError> {
        let context = &self.module.context;
        context.enter()?;
        let mut arguments = [argument.as_ptr().cast_mut().cast::<c_void>()];
        let [x, y, z] = grid;
        // SAFETY: the driver copies the argument before it returns; for the rest, the caller's promise.
        let result = unsafe {
            (context.functions.cuLaunchKernel)(
                self.raw,
                x,
                y,
                z,
                block,
                1,
                1,
                0,
                stream.raw(),
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        context.functions.check("cuLaunchKernel", result)
    }
}

fn terminated(text: &str) -> Result<CString, CudaError> {
    CString::new(text).map_err(|_| CudaError::Unsupported("a zero byte in the text of a kernel".into()))
}
