//! Kernels, loaded from machine code of the GPU, or from PTX, which the driver compiles for it, and keeps.

use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::functions::{LaunchAttribute, LaunchConfig};
use super::object::Object;
use super::{Context, Stream};
use crate::CudaError;

/// Options of the driver's compiler: where errors are written, and how many bytes there are for them.
const JIT_ERROR_LOG: c_int = 5;
const JIT_ERROR_LOG_BYTES: c_int = 6;

/// The first driver, that of CUDA 12.3, whose graphs have kernels that wait themselves.
const GRAPHS_OF_WAITING_KERNELS: i32 = 12_030;

/// Kernels in a form that a driver loads: a cubin, or PTX.
pub(crate) struct Binary {
    pub bytes: Vec<u8>,
    /// Whether each kernel itself waits for the one before it in the stream.
    pub waits: bool,
}

/// All kernels of a cubin or of a PTX.
pub(crate) struct Module {
    object: Object,
    /// Whether a kernel may be launched while the one before it still runs.
    overlaps: bool,
}

// SAFETY: several threads may use one of the driver's modules at once.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin, or PTX. The error has what the driver's compiler says of it.
    pub fn new(context: &Arc<Context>, binary: Binary) -> Result<Arc<Self>, CudaError> {
        let Binary { mut bytes, waits } = binary;
        // PTX ends with a zero. A cubin has its own length.
        bytes.push(0);
        let overlaps = waits && context.enter()?.version()? >= GRAPHS_OF_WAITING_KERNELS;
        let mut log = [0u8; 4096];
        let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES];
        // The driver takes the number of bytes in the place of an address.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len() - 1)];
        let object = Object::new(context, context.functions.cuModuleUnload, |functions, raw| {
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            // SAFETY: the bytes are whole, or end in a zero; the two options have values, and the log has as many bytes.
            unsafe { functions.cuModuleLoadDataEx(raw, bytes.as_ptr().cast(), 2, options, values) }
        });
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> =
            log.trim_end_matches('\0').lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match (object, &lines[..]) {
            (Ok(object), _) => Ok(Arc::new(Module { object, overlaps })),
            (Err(error), []) => Err(error),
            (Err(error), lines) => Err(error.about(format_args!(": {}", lines.join("; ")))),
        }
    }

    /// The kernel with this name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        let functions = self.object.enter()?;
        let text =
            CString::new(name).map_err(|_| CudaError::Unsupported("a zero byte in the name of a kernel".into()))?;
        let mut raw = null_mut();
        // SAFETY: the name ends in a zero.
        unsafe { functions.cuModuleGetFunction(&mut raw, self.object.raw, text.as_ptr()) }.map_err(
            |error| match error {
                CudaError::Call { .. } => CudaError::Unsupported(format!("kernel {name}: {error}")),
                other => other,
            },
        )?;
        Ok(Function { module: self.clone(), raw })
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
        let functions = self.module.object.enter()?;
        let arguments = &mut argument.as_ptr().cast_mut().cast::<c_void>();
        let attributes = &LaunchAttribute::WAITS_ITSELF;
        let count = self.module.overlaps.into();
        let launch = LaunchConfig { grid, block: [block, 1, 1], shared: 0, stream: stream.raw(), attributes, count };
        // SAFETY: the driver copies the argument before it returns; for the rest, the caller's promise.
        unsafe { functions.cuLaunchKernelEx(&launch, self.raw, arguments, null_mut()) }
    }
}
