//! NCCL: sums and gathers over the GPUs of several ranks, as work of a stream.
//!
//! Every call returns before it has ended. A thread of each [`Communicator`] asks NCCL for errors
//! that come later, makes them causes of the group, and aborts NCCL once the group has failed, so
//! that no rank waits for one that is gone. Before the abort the thread marks the step as void on
//! the GPU, so that nothing changes with undefined sums. A GPU that is full of waiting work may not
//! do that within a second. Then NCCL is aborted all the same, and no other group takes over the
//! state.

mod communicator;
mod sys;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use crate::CudaError;
use crate::driver::{Buffer, Context};
use crate::libraries::{Libraries, Library, Version};
pub(crate) use communicator::{Communicator, Operation};
use sys::{Functions, SUCCESS, UniqueId};

/// The oldest version that is accepted, that of PyTorch 2.2. In older ones `ncclCommAbort` may wait for ever.
///
/// Source: <https://github.com/NVIDIA/nccl/issues/992>.
const OLDEST: Version = Version([2, 19, 0]);

/// The most multiprocessors that a collective takes, one for each channel: a step's own kernels run beside it. NCCL alone would
/// take up to 32. Nobody has measured what is best.
const MAX_BLOCKS: usize = 16;

/// Bytes that a communicator and the memory of [`Nccl::allocate`] may take on a GPU of this compute capability, beside the bytes
/// asked for. NCCL has buffers for each channel of each connection: in a ring 10 MiB for what comes and 2 MiB for what goes. How
/// many it opens depends on the links between the GPUs. From 9.0 on a switch of GPUs can sum, in memory that comes in multiples of
/// 512 MiB.
///
/// Source: the allocations that <https://github.com/NVIDIA/nccl/issues/1685> lists.
pub(crate) fn allowance(capability: [u32; 2]) -> usize {
    let granule = if capability >= [9, 0] { 512 << 20 } else { 0 };
    MAX_BLOCKS * (12 << 20) + granule
}

/// NCCL's number of its first version with two digits for the minor version: before 2.9, 2804 was 2.8.4.
const FIVE_DIGITS: usize = 10_000;

/// NCCL, loaded.
#[derive(Clone, Debug)]
pub(crate) struct Nccl {
    functions: Functions,
    version: Version,
}

impl Nccl {
    /// Loads NCCL.
    ///
    /// # Errors
    /// It is missing, too old, or lacks a function.
    pub fn load(libraries: &Libraries) -> Result<Self, CudaError> {
        let functions = Functions::load(libraries.load(Library::Nccl)?)?;
        let mut number = 0;
        // SAFETY: the place is valid.
        let result = unsafe { (functions.ncclGetVersion)(&mut number) };
        let version = Version::new(usize::try_from(number).unwrap_or(0), FIVE_DIGITS);
        if result != SUCCESS || version < OLDEST {
            let [major, minor, _] = OLDEST.0;
            let why = format!("which is older than {major}.{minor}");
            let version = version.to_string();
            return Err(CudaError::Version { library: Library::Nccl, path: functions.path, version, why });
        }
        Ok(Nccl { functions, version })
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// An identifier for a new communicator, which one rank makes for all.
    fn unique_id(&self) -> Result<UniqueId, CudaError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the place is valid.
        let result = unsafe { (self.functions.ncclGetUniqueId)(&mut id) };
        match result {
            SUCCESS => Ok(id),
            result => Err(self.error("ncclGetUniqueId", result, null_mut())),
        }
    }

    /// Memory for `what`, that NCCL's collectives can work in without copies, in the current context.
    ///
    /// # Errors
    /// There is not enough.
    pub fn allocate(self: &Arc<Self>, context: &Arc<Context>, what: &str, bytes: usize) -> Result<Buffer, CudaError> {
        if bytes == 0 {
            return Buffer::new(context, what, bytes);
        }
        context.enter()?;
        let mut place = null_mut();
        // SAFETY: the place is valid.
        match unsafe { (self.functions.ncclMemAlloc)(&mut place, bytes) } {
            SUCCESS => {
                let nccl = self.clone();
                let free = move |address: u64| {
                    // SAFETY: the address came from NCCL, and is freed once. An error has nobody to go to.
                    let _ = unsafe { (nccl.functions.ncclMemFree)(address as *mut c_void) };
                };
                Ok(Buffer::of_library(context, place as u64, bytes, Box::new(free)))
            }
            _ if context.memory()?[0] < bytes => Err(CudaError::Memory { what: what.into(), bytes }),
            result => Err(self.error("ncclMemAlloc", result, null_mut())),
        }
    }

    /// The error of a call, with NCCL's words. The last error is that of a communicator, or of none yet.
    fn error(&self, function: &'static str, result: c_int, communicator: *mut c_void) -> CudaError {
        // SAFETY: both return texts that stay, or null; the communicator is null or lives.
        let texts = unsafe {
            [(self.functions.ncclGetErrorString)(result), (self.functions.ncclGetLastError)(communicator)]
                .map(|t| text(t))
        };
        let why = texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
        let why = if why.contains("NCCL_DEBUG") {
            why
        } else {
            format!("{why}; NCCL_DEBUG=WARN says more in the rank's log")
        };
        CudaError::Call { library: Library::Nccl, function, why }
    }
}

/// # Safety
/// The pointer is null, or that of a text that ends in a zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests;
