//! The driver's functions, by their names in `libcuda.so.1`, which hold the version of each function's arguments.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null;

use crate::CudaError;
use crate::libraries::functions;

type Handle = *mut c_void;

functions! {
    /// What enmasse calls of the driver.
    pub(crate) struct Functions {
        fn cuGetErrorName(error: c_int, text: *mut *const c_char) -> c_int;
        fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int;
    }
    checked {
        fn cuInit(flags: c_uint);
        fn cuDriverGetVersion(version: *mut c_int);
        fn cuDeviceGetCount(count: *mut c_int);
        fn cuDeviceGet(device: *mut c_int, ordinal: c_int);
        fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
        fn cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int);
        fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int);
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
        fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
        fn cuDevicePrimaryCtxRelease_v2(device: c_int);
        fn cuCtxSetCurrent(context: Handle);
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        fn cuMemAlloc_v2(place: *mut u64, bytes: usize);
        fn cuMemFree_v2(place: u64);
        fn cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemFreeHost(place: *mut c_void);
        fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle);
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle);
        fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
        fn cuMemsetD8Async(place: u64, value: u8, bytes: usize, stream: Handle);
        fn cuStreamCreate(stream: *mut Handle, flags: c_uint);
        fn cuStreamDestroy_v2(stream: Handle);
        fn cuStreamSynchronize(stream: Handle);
        fn cuStreamQuery(stream: Handle);
        fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
        fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
        fn cuStreamEndCapture(stream: Handle, graph: *mut Handle);
        fn cuEventCreate(event: *mut Handle, flags: c_uint);
        fn cuEventDestroy_v2(event: Handle);
        fn cuEventRecord(event: Handle, stream: Handle);
        fn cuEventSynchronize(event: Handle);
        fn cuEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle);
        fn cuModuleLoadDataEx(
            module: *mut Handle, text: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void,
        );
        fn cuModuleUnload(module: Handle);
        fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
        fn cuLaunchKernelEx(
            launch: *const LaunchConfig, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void,
        );
        fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: u64);
        fn cuGraphLaunch(graph: Handle, stream: Handle);
        fn cuGraphExecDestroy(graph: Handle);
        fn cuGraphDestroy(graph: Handle);
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub count: c_uint,
}

/// `CUlaunchAttribute`, whose value takes 64 bytes.
#[repr(C)]
pub(crate) struct LaunchAttribute {
    kind: c_int,
    padding: [u8; 4],
    value: [c_int; 16],
}

impl LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel itself waits for the one before it in the stream.
    pub const WAITS_ITSELF: LaunchAttribute = {
        let mut value = [0; 16];
        value[0] = 1;
        LaunchAttribute { kind: 6, padding: [0; 4], value }
    };
}

/// The driver's number of `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: c_int = 2;

/// The driver's number of `CUDA_ERROR_NOT_READY`.
pub(super) const NOT_READY: c_int = 600;

impl Functions {
    /// The driver's words for a status, with a remedy.
    fn words(&self, status: c_int) -> String {
        let name = self.text(self.cuGetErrorName, status);
        format!("{} ({name}){}", self.text(self.cuGetErrorString, status), advice(&name))
    }

    /// The newest CUDA that the driver supports: 12080 is 12.8.
    pub fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: the place is valid.
        unsafe { self.cuDriverGetVersion(&mut version) }?;
        Ok(version)
    }

    /// The number of visible GPUs; 0 also where the driver does not start.
    pub fn gpus(&self) -> usize {
        let mut count = 0;
        // SAFETY: the place is valid.
        let found = unsafe { self.cuInit(0).and_then(|()| self.cuDeviceGetCount(&mut count)) };
        found.ok().and_then(|()| usize::try_from(count).ok()).unwrap_or(0)
    }

    fn text(&self, describe: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int, error: c_int) -> String {
        let mut text = null();
        // SAFETY: the place is valid, and the driver's texts are constants that end in a zero.
        match unsafe { describe(error, &mut text) } {
            // SAFETY: see above.
            0 if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            _ => format!("error {error}"),
        }
    }
}

/// The remedy for errors that users can mend.
fn advice(name: &str) -> &'static str {
    match name {
        "CUDA_ERROR_NO_DEVICE" => "; check nvidia-smi, and that this container or job was given a GPU",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" => "; the driver was updated while loaded: restart the machine",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" => "; the driver is too old for this build of enmasse: update it",
        _ => "",
    }
}
