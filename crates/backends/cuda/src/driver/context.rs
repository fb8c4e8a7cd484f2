//! A GPU, opened: the primary context, which this process shares with libraries.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::Functions;
use crate::CudaError;

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Properties {
    /// Its number among the visible GPUs.
    pub ordinal: usize,
    pub name: String,
    /// Its address on the PCI bus, such as `0000:1b:00.0`.
    pub address: String,
    /// A number that no other GPU has, nor another instance of a divided GPU (MIG).
    pub uuid: [u8; 16],
    /// Compute capability, such as 9 and 0.
    pub capability: [u32; 2],
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of the second-level cache.
    pub l2_cache: usize,
}

impl Properties {
    /// A name that no other GPU has.
    pub fn unit(&self) -> String {
        format!("{} at {}, GPU-{}", self.name, self.address, self.digits())
    }

    /// The digits of its UUID.
    pub fn digits(&self) -> String {
        self.uuid.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The primary context of a GPU. Its owner keeps it alive.
pub(crate) struct Context {
    pub(super) functions: Arc<Functions>,
    raw: *mut c_void,
    device: c_int,
    pub properties: Properties,
}

// SAFETY: the driver's contexts may be used by any thread, and by several at once.
unsafe impl Send for Context {}
// SAFETY: see above.
unsafe impl Sync for Context {}

/// From the driver's enumeration of attributes.
const MULTIPROCESSOR_COUNT: c_int = 16;
const L2_CACHE_SIZE: c_int = 38;
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

/// A GPU that is not open yet.
pub(crate) struct Found {
    functions: Arc<Functions>,
    device: c_int,
    pub properties: Properties,
}

impl Found {
    /// Looks at the GPU with this number among those that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub fn look(functions: Arc<Functions>, ordinal: usize) -> Result<Self, CudaError> {
        let (mut count, mut device) = (0, 0);
        // SAFETY: each place is valid for the result that the driver writes.
        unsafe {
            functions.cuInit(0)?;
            functions.cuDeviceGetCount(&mut count)?;
        }
        let number = c_int::try_from(ordinal).ok().filter(|&number| number < count).ok_or_else(|| {
            let last = count - 1;
            CudaError::Unsupported(match count {
                0 => "no GPU is visible; check CUDA_VISIBLE_DEVICES".into(),
                _ => format!("there is no GPU {ordinal}: the visible ones are 0 to {last}; check CUDA_VISIBLE_DEVICES"),
            })
        })?;
        // SAFETY: as above.
        unsafe { functions.cuDeviceGet(&mut device, number) }?;
        let properties = properties(&functions, device, ordinal)?;
        Ok(Found { functions, device, properties })
    }
}

impl Context {
    /// Opens a GPU, which takes some of its memory.
    pub fn open(found: Found) -> Result<Arc<Self>, CudaError> {
        let Found { functions, device, properties } = found;
        let mut raw = null_mut();
        // SAFETY: the place is valid for the result that the driver writes.
        unsafe { functions.cuDevicePrimaryCtxRetain(&mut raw, device) }?;
        Ok(Arc::new(Context { functions, raw, device, properties }))
    }

    /// Makes the context that of the calling thread. Returns the driver's functions, to call in it.
    pub fn enter(&self) -> Result<&Functions, CudaError> {
        // SAFETY: the context is retained until the end of `self`.
        unsafe { self.functions.cuCtxSetCurrent(self.raw) }?;
        Ok(&self.functions)
    }

    /// Free and total bytes of the GPU's memory.
    pub fn memory(&self) -> Result<[usize; 2], CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the places are valid.
        unsafe { self.enter()?.cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok([free, total])
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and every object of it is gone: each holds the context. An error at this point
        // has nobody to go to.
        let _ = unsafe { self.functions.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

fn properties(functions: &Functions, device: c_int, ordinal: usize) -> Result<Properties, CudaError> {
    let mut name = [0 as c_char; 256];
    let mut address = [0 as c_char; 64];
    let mut uuid = [0; 16];
    // SAFETY: the driver writes at most the given number of bytes, a zero among them.
    unsafe {
        functions.cuDeviceGetName(name.as_mut_ptr(), 256, device)?;
        functions.cuDeviceGetPCIBusId(address.as_mut_ptr(), 64, device)?;
        functions.cuDeviceGetUuid_v2(&mut uuid, device)?;
    }
    // SAFETY: see above.
    let [name, address] = [name.as_ptr(), address.as_ptr()].map(|text| unsafe { CStr::from_ptr(text) });
    let attribute = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: the place is valid.
        unsafe { functions.cuDeviceGetAttribute(&mut value, attribute, device) }?;
        Ok::<u32, CudaError>(u32::try_from(value).unwrap_or(0))
    };
    let capability = [attribute(COMPUTE_CAPABILITY_MAJOR)?, attribute(COMPUTE_CAPABILITY_MINOR)?];
    let [name, address] = [name, address].map(|text| text.to_string_lossy().into_owned());
    let multiprocessors = attribute(MULTIPROCESSOR_COUNT)?;
    let l2_cache = attribute(L2_CACHE_SIZE)? as usize;
    Ok(Properties { ordinal, name, address, uuid, capability, multiprocessors, l2_cache })
}
