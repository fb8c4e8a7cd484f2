//! Matmuls for linear layers, by cuBLASLt.
//!
//! Our matrices are row-major, cuBLASLt's column-major: each of ours is the transpose of what cuBLASLt sees at the same address.
//! So it is asked for the transpose of each matmul, with the operands exchanged.

mod sys;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use enmasse_graph::Precision;
use enmasse_tensor::DType;

use crate::error::CudaError;
use crate::libraries::{Libraries, Library};

pub use crate::operands::Operands;
use sys::{Compute, Functions, OfPreference, OfProduct, Proposal};

/// What all addresses are multiples of.
const ALIGNMENT: u32 = 16;

/// cuBLASLt, loaded.
#[derive(Clone, Debug)]
pub struct CublasLt {
    functions: Arc<Functions>,
}

/// A product of a linear layer's matrices: `x [rows, inputs]`, `w [inputs, outputs]`, `y [rows, outputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Matmul {
    /// `y = x w`, plus a bias for each output if there is one.
    Forward {
        /// Whether there is a bias.
        bias: bool,
    },
    /// The gradient of x: that of y times the transpose of w.
    BackwardData,
    /// The gradient of w: the transpose of x times the gradient of y.
    BackwardWeights,
}

impl Matmul {
    /// Both factors as cuBLASLt sees them, and the product.
    fn operands<T>(self, x: T, w: T, y: T) -> [T; 3] {
        match self {
            Matmul::Forward { .. } => [w, x, y],
            Matmul::BackwardData => [w, y, x],
            Matmul::BackwardWeights => [y, x, w],
        }
    }
}

/// A matmul with its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulProblem {
    /// What is computed.
    pub matmul: Matmul,
    /// Rows of x and y: samples, or their tokens.
    pub rows: usize,
    /// Columns of x.
    pub inputs: usize,
    /// Columns of y.
    pub outputs: usize,
    /// The element type of both factors, and how they are multiplied. Sums are always f32.
    pub arithmetic: Precision,
    /// The element type of the product and of the bias: that of the factors, or f32, in which gradients of w are.
    pub product: DType,
}

impl fmt::Display for MatmulProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatmulProblem { matmul, rows, inputs, outputs, arithmetic, product } = self;
        f.write_str(match matmul {
            Matmul::Forward { bias: false } => "matmul",
            Matmul::Forward { bias: true } => "matmul with bias",
            Matmul::BackwardData => "gradient of a matmul's input",
            Matmul::BackwardWeights => "gradient of a matmul's weights",
        })?;
        write!(f, " {} x[{rows},{inputs}] w[{inputs},{outputs}]", arithmetic.name())?;
        if *product == arithmetic.activations() { Ok(()) } else { write!(f, " to {product}") }
    }
}

impl CublasLt {
    /// Loads cuBLASLt, for a driver that supports CUDA up to this major version.
    ///
    /// # Errors
    /// cuBLASLt is missing, or lacks a function.
    pub fn load(libraries: &Libraries, newest: u32) -> Result<Self, CudaError> {
        let functions = Functions::load(libraries.load(Library::CublasLt { newest })?)?;
        Ok(CublasLt { functions: Arc::new(functions) })
    }

    /// Its version, as a number: 120902 is 12.9.2.
    pub fn version(&self) -> usize {
        // SAFETY: the function has no precondition.
        unsafe { (self.functions.cublasLtGetVersion)() }
    }

    /// A handle for the current context.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn handle(&self) -> Result<LtHandle, CudaError> {
        // SAFETY: `raw` is a place for the address.
        Object::new(self.functions.cublasLtDestroy, |raw| unsafe { self.functions.cublasLtCreate(raw) })
            .map(|object| LtHandle { object })
    }

    /// The algorithm that cuBLASLt's heuristics prefer, among those that give the same bits each time, with at most this many
    /// bytes of workspace.
    ///
    /// # Errors
    /// [`CudaError::Refused`] if there is none.
    pub fn plan(&self, handle: &LtHandle, problem: &MatmulProblem, workspace: u64) -> Result<MatmulPlan, CudaError> {
        let library = self.functions.library;
        let refused = |why| CudaError::Refused { library, operation: problem.to_string(), why };
        let MatmulProblem { matmul, rows, inputs, outputs, arithmetic, product } = *problem;
        // Shapes as cuBLASLt sees them: [columns, rows] of ours.
        let (x, w, y) = ([inputs, rows], [outputs, inputs], [outputs, rows]);
        let [a, b, d] = matmul.operands(x, w, y);
        let descriptor = self.descriptor(arithmetic)?;
        match matmul {
            Matmul::Forward { .. } => {}
            Matmul::BackwardData => self.set_matmul(&descriptor, OfProduct::TransposeA, sys::TRANSPOSED)?,
            Matmul::BackwardWeights => self.set_matmul(&descriptor, OfProduct::TransposeB, sys::TRANSPOSED)?,
        }
        let bias = matmul == Matmul::Forward { bias: true };
        if bias {
            // Its type is that of the product, unless an attribute says otherwise.
            self.set_matmul(&descriptor, OfProduct::Epilogue, sys::ADD_BIAS)?;
            // The heuristics read the alignment of the bias from its address.
            self.set_matmul(&descriptor, OfProduct::BiasPointer, u64::from(ALIGNMENT))?;
        }
        let factors = arithmetic.activations();
        let [a, b, d] = [self.layout(a, factors)?, self.layout(b, factors)?, self.layout(d, product)?];
        let preference = self.preference(workspace)?;
        let mut proposal = Proposal::default();
        let mut count = 0;
        // SAFETY: the objects are of the kinds that the function takes, and there is room for one proposal.
        let status = unsafe {
            (self.functions.cublasLtMatmulAlgoGetHeuristic)(
                handle.object.raw,
                descriptor.raw,
                a.raw,
                b.raw,
                d.raw,
                d.raw,
                preference.raw,
                1,
                &mut proposal,
                &mut count,
            )
        };
        if status != 0 || count < 1 || proposal.state != 0 {
            let status = if status == 0 { proposal.state } else { status };
            return Err(refused(if count < 1 && status == 0 {
                "no algorithm".to_owned()
            } else {
                self.functions.words(status)
            }));
        }
        Ok(MatmulPlan {
            name: self.name(&proposal.algorithm)?,
            workspace: proposal.workspace as u64,
            problem: *problem,
            library: self.clone(),
            descriptor,
            layouts: [a, b, d],
            algorithm: proposal.algorithm,
        })
    }

    fn descriptor(&self, arithmetic: Precision) -> Result<Object, CudaError> {
        let compute = if arithmetic == Precision::Tf32 { Compute::Tf32 } else { Compute::F32 };
        Object::new(self.functions.cublasLtMatmulDescDestroy, |raw| {
            // SAFETY: `raw` is a place for the address.
            unsafe { self.functions.cublasLtMatmulDescCreate(raw, compute as c_int, sys::F32) }
        })
    }

    /// A dense column-major matrix.
    fn layout(&self, [rows, columns]: [usize; 2], dtype: DType) -> Result<Object, CudaError> {
        let element = match dtype {
            DType::Bf16 => sys::BF16,
            DType::F16 => sys::F16,
            _ => sys::F32,
        };
        let (rows, columns, leading) = (rows as u64, columns as u64, rows as i64);
        Object::new(self.functions.cublasLtMatrixLayoutDestroy, |raw| {
            // SAFETY: `raw` is a place for the address.
            unsafe { self.functions.cublasLtMatrixLayoutCreate(raw, element, rows, columns, leading) }
        })
    }

    fn preference(&self, workspace: u64) -> Result<Object, CudaError> {
        let preference = Object::new(self.functions.cublasLtMatmulPreferenceDestroy, |raw| {
            // SAFETY: `raw` is a place for the address.
            unsafe { self.functions.cublasLtMatmulPreferenceCreate(raw) }
        })?;
        self.set_preference(&preference, OfPreference::MostWorkspace, workspace)?;
        // Schemes that add to the output, or in its type, are left out.
        self.set_preference(&preference, OfPreference::ReductionSchemes, sys::IN_WORKSPACE)?;
        use OfPreference::{AlignmentA, AlignmentB, AlignmentC, AlignmentD};
        for operand in [AlignmentA, AlignmentB, AlignmentC, AlignmentD] {
            self.set_preference(&preference, operand, ALIGNMENT)?;
        }
        Ok(preference)
    }

    fn set_matmul<T: Copy>(&self, to: &Object, attribute: OfProduct, value: T) -> Result<(), CudaError> {
        let value = (&raw const value).cast();
        let bytes = size_of::<T>();
        // SAFETY: the value is as large as said, and copied.
        unsafe { self.functions.cublasLtMatmulDescSetAttribute(to.raw, attribute as c_int, value, bytes) }
            .map_err(|error| error.about(format_args!(": {attribute:?}")))
    }

    fn set_preference<T: Copy>(&self, to: &Object, attribute: OfPreference, value: T) -> Result<(), CudaError> {
        let value = (&raw const value).cast();
        let bytes = size_of::<T>();
        // SAFETY: the value is as large as said, and copied.
        unsafe { self.functions.cublasLtMatmulPreferenceSetAttribute(to.raw, attribute as c_int, value, bytes) }
            .map_err(|error| error.about(format_args!(": {attribute:?}")))
    }

    /// Number and settings of an algorithm, such as `algo21_tile20_splitk1_stages13`.
    fn name(&self, algorithm: &sys::Algorithm) -> Result<String, CudaError> {
        let part = |(name, attribute): &(&str, c_int)| {
            let (mut value, mut written) = (0u32, 0);
            let into = (&raw mut value).cast::<c_void>();
            let bytes = size_of_val(&value);
            // SAFETY: there is room for the 32 bits that each of these attributes has.
            unsafe {
                self.functions.cublasLtMatmulAlgoConfigGetAttribute(algorithm, *attribute, into, bytes, &mut written)
            }
            .map_err(|error| error.about(format_args!(": {name}")))?;
            Ok(format!("{name}{value}"))
        };
        Ok(sys::PARTS_OF_NAME.iter().map(part).collect::<Result<Vec<_>, CudaError>>()?.join("_"))
    }
}

/// An object of cuBLASLt, which is destroyed with this.
#[derive(Debug)]
struct Object {
    raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: cuBLASLt ties no object to a thread.
unsafe impl Send for Object {}

impl Object {
    /// What `create` writes to the place that it gets.
    fn new(
        destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
        create: impl FnOnce(&mut *mut c_void) -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        create(&mut raw)?;
        Ok(Object { raw, destroy })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the object is ours, and nothing uses it any more.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// A handle: cuBLASLt on one GPU.
#[derive(Debug)]
pub struct LtHandle {
    object: Object,
}

/// An algorithm that is ready to run.
#[derive(Debug)]
pub struct MatmulPlan {
    /// What the algorithm is, for people.
    pub name: String,
    /// Bytes of workspace.
    pub workspace: u64,
    problem: MatmulProblem,
    library: CublasLt,
    descriptor: Object,
    layouts: [Object; 3],
    algorithm: sys::Algorithm,
}

impl MatmulPlan {
    /// The problem that it solves.
    pub fn problem(&self) -> &MatmulProblem {
        &self.problem
    }

    /// Submits the matmul to a stream (a `CUstream`).
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// The plan was made with this handle, and the stream belongs to its context. The operands are memory of its GPU, as large as
    /// the problem and the workspace say, multiples of 16, and stay until the stream has done the work. What is written overlaps
    /// nothing else.
    pub unsafe fn execute(
        &mut self,
        handle: &LtHandle,
        operands: &Operands,
        stream: *mut c_void,
    ) -> Result<(), CudaError> {
        let Operands { x, w, y, bias, workspace } = *operands;
        let [a, b, d] = self.problem.matmul.operands(x, w, y);
        if self.problem.matmul == (Matmul::Forward { bias: true }) {
            self.library.set_matmul(&self.descriptor, OfProduct::BiasPointer, bias)?;
        }
        let (alpha, beta) = (1.0f32, 0.0f32);
        let [a_layout, b_layout, d_layout] = &self.layouts;
        // SAFETY: the objects are those that the algorithm was chosen for; the factors are read at once; the caller promises the
        // rest.
        unsafe {
            self.library.functions.cublasLtMatmul(
                handle.object.raw,
                self.descriptor.raw,
                (&raw const alpha).cast(),
                a as *const c_void,
                a_layout.raw,
                b as *const c_void,
                b_layout.raw,
                (&raw const beta).cast(),
                d as *const c_void,
                d_layout.raw,
                d as *mut c_void,
                d_layout.raw,
                &self.algorithm,
                workspace as *mut c_void,
                self.workspace as usize,
                stream,
            )
        }
        .map_err(|error| error.about(format_args!(": {}", self.problem)))
    }
}

#[cfg(test)]
mod tests;
