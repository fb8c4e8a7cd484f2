//! NCCL's functions and constants, as `nccl.h` declares them.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null;

use crate::libraries::functions;

functions! {
    /// What enmasse calls of NCCL.
    pub(super) struct Functions {
        fn ncclGetVersion(version: *mut c_int) -> c_int;
        fn ncclGetUniqueId(id: *mut UniqueId) -> c_int;
        fn ncclCommInitRankConfig(
            communicator: *mut *mut c_void, ranks: c_int, id: UniqueId, rank: c_int, config: *mut Config,
        ) -> c_int;
        fn ncclCommGetAsyncError(communicator: *mut c_void, result: *mut c_int) -> c_int;
        fn ncclCommFinalize(communicator: *mut c_void) -> c_int;
        fn ncclCommDestroy(communicator: *mut c_void) -> c_int;
        fn ncclCommAbort(communicator: *mut c_void) -> c_int;
        fn ncclMemAlloc(place: *mut *mut c_void, bytes: usize) -> c_int;
        fn ncclMemFree(place: *mut c_void) -> c_int;
        fn ncclCommRegister(
            communicator: *mut c_void, place: *mut c_void, bytes: usize, handle: *mut *mut c_void,
        ) -> c_int;
        fn ncclCommDeregister(communicator: *mut c_void, handle: *mut c_void) -> c_int;
        fn ncclGetErrorString(result: c_int) -> *const c_char;
        fn ncclGetLastError(communicator: *mut c_void) -> *const c_char;
        fn ncclAllReduce(
            from: *const c_void, to: *mut c_void, count: usize, data_type: c_int, operation: c_int,
            communicator: *mut c_void, stream: *mut c_void,
        ) -> c_int;
        fn ncclReduce(
            from: *const c_void, to: *mut c_void, count: usize, data_type: c_int, operation: c_int, root: c_int,
            communicator: *mut c_void, stream: *mut c_void,
        ) -> c_int;
        fn ncclBroadcast(
            from: *const c_void, to: *mut c_void, count: usize, data_type: c_int, root: c_int, communicator: *mut c_void,
            stream: *mut c_void,
        ) -> c_int;
        fn ncclAllGather(
            from: *const c_void, to: *mut c_void, count: usize, data_type: c_int, communicator: *mut c_void,
            stream: *mut c_void,
        ) -> c_int;
    }
}

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub [u8; 128]);

/// `ncclConfig_t` of version 2.17: later versions take it, by its size and version.
#[repr(C)]
pub(super) struct Config {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cluster_size: c_int,
    pub min_blocks: c_int,
    pub max_blocks: c_int,
    pub network: *const c_char,
}

impl Config {
    /// Calls return before they have ended, so that no rank hangs in one. A collective takes at most `max_blocks` multiprocessors.
    pub fn non_blocking(max_blocks: c_int) -> Self {
        let size = size_of::<Config>();
        let version = 21_700;
        let network = null();
        let (cluster_size, min_blocks) = (UNDEFINED, UNDEFINED);
        Config { size, magic: API_MAGIC, version, blocking: 0, cluster_size, min_blocks, max_blocks, network }
    }
}

/// `NCCL_CONFIG_UNDEF_INT`: NCCL chooses.
pub(super) const UNDEFINED: c_int = c_int::MIN;

/// `NCCL_API_MAGIC`.
pub(super) const API_MAGIC: c_uint = 0xcafe_beef;

/// `ncclSum`.
pub(super) const SUM: c_int = 0;

/// Of `ncclDataType_t`.
pub(super) const FLOAT32: c_int = 7;
pub(super) const BFLOAT16: c_int = 9;

/// Of `ncclResult_t`.
pub(super) const SUCCESS: c_int = 0;
pub(super) const REMOTE_ERROR: c_int = 6;
pub(super) const IN_PROGRESS: c_int = 7;
