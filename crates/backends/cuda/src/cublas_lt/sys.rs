//! What is used of cuBLASLt: functions, attributes and values, by the numbers of its header.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::libraries::functions;

/// `cublasLtMatmulAlgo_t`, whose content is cuBLASLt's own.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Proposal {
    pub algorithm: Algorithm,
    pub workspace: usize,
    pub state: c_int,
    pub waves: f32,
    reserved: [c_int; 4],
}

functions! {
    /// The functions of `libcublasLt.so`. A status is 0, or an error's number.
    pub(super) struct Functions {
        fn cublasLtGetVersion() -> usize;
        fn cublasLtGetStatusName(status: c_int) -> *const c_char;
    }
    checked {
        fn cublasLtCreate(handle: *mut *mut c_void);
        fn cublasLtDestroy(handle: *mut c_void);
        fn cublasLtMatmulDescCreate(descriptor: *mut *mut c_void, compute: c_int, scale: c_int);
        fn cublasLtMatmulDescDestroy(descriptor: *mut c_void);
        fn cublasLtMatmulDescSetAttribute(
            descriptor: *mut c_void, attribute: c_int, value: *const c_void, bytes: usize,
        );
        fn cublasLtMatrixLayoutCreate(
            layout: *mut *mut c_void, element: c_int, rows: u64, columns: u64, leading: i64,
        );
        fn cublasLtMatrixLayoutDestroy(layout: *mut c_void);
        fn cublasLtMatmulPreferenceCreate(preference: *mut *mut c_void);
        fn cublasLtMatmulPreferenceDestroy(preference: *mut c_void);
        fn cublasLtMatmulPreferenceSetAttribute(
            preference: *mut c_void, attribute: c_int, value: *const c_void, bytes: usize,
        );
        fn cublasLtMatmulAlgoGetHeuristic(
            handle: *mut c_void, descriptor: *mut c_void, a: *mut c_void, b: *mut c_void, c: *mut c_void, d: *mut c_void,
            preference: *mut c_void, most: c_int, proposals: *mut Proposal, count: *mut c_int,
        );
        fn cublasLtMatmulAlgoConfigGetAttribute(
            algorithm: *const Algorithm, attribute: c_int, value: *mut c_void, bytes: usize, written: *mut usize,
        );
        fn cublasLtMatmul(
            handle: *mut c_void, descriptor: *mut c_void, alpha: *const c_void, a: *const c_void, a_layout: *mut c_void,
            b: *const c_void, b_layout: *mut c_void, beta: *const c_void, c: *const c_void, c_layout: *mut c_void,
            d: *mut c_void, d_layout: *mut c_void, algorithm: *const Algorithm, workspace: *mut c_void, bytes: usize,
            stream: *mut c_void,
        );
    }
}

impl Functions {
    /// cuBLASLt's name for a status.
    pub fn words(&self, status: c_int) -> String {
        // SAFETY: cuBLASLt returns a text that lives for ever, for any number.
        let name = unsafe { CStr::from_ptr((self.cublasLtGetStatusName)(status)) };
        name.to_string_lossy().into_owned()
    }
}

/// `CUDA_R_32F`: the type of factors and sums, or of sums alone.
pub(super) const F32: c_int = 0;
/// `CUDA_R_16F`.
pub(super) const F16: c_int = 2;
/// `CUDA_R_16BF`.
pub(super) const BF16: c_int = 14;

/// `cublasComputeType_t`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Compute {
    /// Sums of IEEE single precision; factors of 16 bits may be multiplied by tensor cores.
    F32 = 68,
    /// Matmuls of operands rounded to tf32.
    Tf32 = 77,
}

/// `CUBLAS_OP_T`: the operand is transposed.
pub(super) const TRANSPOSED: c_int = 1;
/// `CUBLASLT_EPILOGUE_BIAS`: adds a vector to each column.
pub(super) const ADD_BIAS: c_int = 4;
/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: parts of a sum lie in the workspace and are added in one order.
pub(super) const IN_WORKSPACE: u32 = 2;

/// `cublasLtMatmulDescAttributes_t`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum OfProduct {
    TransposeA = 3,
    TransposeB = 4,
    Epilogue = 7,
    BiasPointer = 8,
}

/// `cublasLtMatmulPreferenceAttributes_t`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum OfPreference {
    MostWorkspace = 1,
    ReductionSchemes = 3,
    AlignmentA = 5,
    AlignmentB = 6,
    AlignmentC = 7,
    AlignmentD = 8,
}

/// `cublasLtMatmulAlgoConfigAttributes_t`: those in an algorithm's name, each 32 bits.
pub(super) const PARTS_OF_NAME: [(&str, c_int); 4] = [("algo", 0), ("tile", 1), ("splitk", 2), ("stages", 6)];
