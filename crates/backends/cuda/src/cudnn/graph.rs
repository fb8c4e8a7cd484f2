//! A convolution as one of cuDNN's operation graphs.

use std::ffi::c_void;
use std::sync::Arc;

use enmasse_tensor::DType;

use super::descriptor::Descriptor;
use super::problem::{Direction, Epilogue, Problem};
use super::sys::{
    Attribute as A, ConvolutionMode, DataType, Functions, Kind, NanPropagation, PointwiseMode, RawHandle,
};
use crate::error::CudaError;

/// What all addresses are multiples of: the width of the widest access.
const ALIGNMENT: i64 = 16;

/// The tensors by the numbers that a variant pack gives addresses to.
pub(super) const X: i64 = 1;
pub(super) const W: i64 = 2;
pub(super) const Y: i64 = 3;
pub(super) const BIAS: i64 = 4;
/// The convolution before its bias is added, and after. They have no address.
const SUM: i64 = 5;
const BIASED: i64 = 6;

/// An operation graph with the descriptors it refers to.
#[derive(Debug)]
pub(super) struct OperationGraph {
    pub graph: Descriptor,
    /// Dropped after the graph.
    _parts: Vec<Descriptor>,
}

struct Parts<'a> {
    functions: &'a Arc<Functions>,
    made: Vec<Descriptor>,
}

impl Parts<'_> {
    fn create(&self, kind: Kind) -> Result<Descriptor, CudaError> {
        Descriptor::new(self.functions, kind)
    }

    /// Finalizes a descriptor and keeps it. Its index.
    fn keep(&mut self, descriptor: Descriptor) -> Result<usize, CudaError> {
        self.made.push(descriptor.finalize()?);
        Ok(self.made.len() - 1)
    }

    /// A dense tensor of a shape whose last axis is the channels: cuDNN's second.
    fn tensor(&mut self, id: i64, shape: [usize; 4], dtype: DType) -> Result<usize, CudaError> {
        let [n, h, w, c] = shape.map(|size| size as i64);
        let tensor = self
            .create(Kind::Tensor)?
            .set(A::TensorDataType, &[DataType::from(dtype)])?
            .set(A::TensorDimensions, &[n, c, h, w])?
            .set(A::TensorStrides, &[h * w * c, 1, w * c, c])?
            .set(A::TensorUniqueId, &[id])?
            .set(A::TensorAlignment, &[ALIGNMENT])?
            .set(A::TensorIsVirtual, &[id == SUM || id == BIASED])?;
        self.keep(tensor)
    }

    /// An operation: its descriptor and the tensors, and of a convolution the factors of the sum and of what the result held.
    fn operation(&mut self, kind: Kind, operands: &[(A, usize)], factors: &[(A, f32)]) -> Result<usize, CudaError> {
        let mut operation = self.create(kind)?;
        for &(name, index) in operands {
            operation = operation.set(name, &[self.made[index].raw()])?;
        }
        for (name, factor) in factors {
            operation = operation.set(*name, &[*factor])?;
        }
        self.keep(operation)
    }
}

impl OperationGraph {
    /// `weights` is the type of the weights, or of their gradient. With a handle, the graph is for its GPU.
    pub fn new(
        functions: &Arc<Functions>,
        handle: Option<*mut c_void>,
        problem: &Problem,
        weights: DType,
    ) -> Result<Self, CudaError> {
        let mut parts = Parts { functions, made: Vec::new() };
        let activations = problem.arithmetic.activations();
        let window = &problem.conv.window;
        let pair = |sizes: [usize; 2]| sizes.map(|size| size as i64);
        let descriptor = parts
            .create(Kind::Convolution)?
            .set(A::ConvolutionComputeType, &[DataType::from(DType::F32)])?
            .set(A::ConvolutionMode, &[ConvolutionMode::CrossCorrelation])?
            .set(A::ConvolutionSpatialDimensions, &[2i64])?
            .set(A::ConvolutionPrePaddings, &pair(window.padding.map(|[before, _]| before)))?
            .set(A::ConvolutionPostPaddings, &pair(window.padding.map(|[_, after]| after)))?
            .set(A::ConvolutionStrides, &pair(window.stride))?
            .set(A::ConvolutionDilations, &pair(window.dilation))?;
        let descriptor = parts.keep(descriptor)?;
        let x = parts.tensor(X, problem.x, activations)?;
        let w = parts.tensor(W, problem.w, weights)?;
        let y = parts.tensor(Y, problem.y, activations)?;
        let (kind, names, alpha, beta) = match problem.direction {
            Direction::Forward { .. } => {
                let names = [A::ForwardConvolution, A::ForwardX, A::ForwardW, A::ForwardY];
                (Kind::ConvolutionForward, names, A::ForwardAlpha, A::ForwardBeta)
            }
            Direction::BackwardData { .. } => {
                let names = [A::BackwardDataConvolution, A::BackwardDataDx, A::BackwardDataW, A::BackwardDataDy];
                (Kind::ConvolutionBackwardData, names, A::BackwardDataAlpha, A::BackwardDataBeta)
            }
            Direction::BackwardWeights => {
                let names =
                    [A::BackwardFilterConvolution, A::BackwardFilterX, A::BackwardFilterDw, A::BackwardFilterDy];
                (Kind::ConvolutionBackwardFilter, names, A::BackwardFilterAlpha, A::BackwardFilterBeta)
            }
        };
        let epilogue = match problem.direction {
            Direction::Forward(epilogue) => epilogue,
            _ => Epilogue::None,
        };
        let sum = if epilogue == Epilogue::None { y } else { parts.tensor(SUM, problem.y, DType::F32)? };
        let held = if problem.direction == (Direction::BackwardData { accumulate: true }) { 1.0 } else { 0.0 };
        let operands: Vec<_> = names.into_iter().zip([descriptor, x, w, sum]).collect();
        let mut operations = vec![parts.operation(kind, &operands, &[(alpha, 1.0), (beta, held)])?];
        if epilogue != Epilogue::None {
            let channels = parts.tensor(BIAS, [1, 1, 1, problem.y[3]], activations)?;
            let activates = epilogue == Epilogue::BiasRelu;
            let biased = if activates { parts.tensor(BIASED, problem.y, DType::F32)? } else { y };
            operations.push(pointwise(&mut parts, PointwiseMode::Add, sum, Some(channels), biased)?);
            if activates {
                operations.push(pointwise(&mut parts, PointwiseMode::Relu, biased, None, y)?);
            }
        }
        let operations: Vec<_> = operations.iter().map(|index| parts.made[*index].raw()).collect();
        let mut graph = parts.create(Kind::OperationGraph)?.set(A::GraphOperations, &operations)?;
        if let Some(handle) = handle {
            graph = graph.set(A::GraphHandle, &[RawHandle(handle)])?;
        }
        Ok(OperationGraph { graph: graph.finalize()?, _parts: parts.made })
    }
}

/// An operation of f32 numbers. Of NaN it makes NaN.
fn pointwise(
    parts: &mut Parts<'_>,
    mode: PointwiseMode,
    x: usize,
    b: Option<usize>,
    y: usize,
) -> Result<usize, CudaError> {
    let mut descriptor = parts
        .create(Kind::Pointwise)?
        .set(A::PointwiseMode, &[mode])?
        .set(A::PointwiseMathPrecision, &[DataType::from(DType::F32)])?;
    if mode == PointwiseMode::Relu {
        descriptor = descriptor.set(A::PointwiseNanPropagation, &[NanPropagation::Propagate])?;
    }
    let descriptor = parts.keep(descriptor)?;
    let operands = [(A::PointwiseOperationDescriptor, descriptor), (A::PointwiseOperationX, x)];
    let operands = operands.into_iter().chain(b.map(|b| (A::PointwiseOperationB, b)));
    let operands: Vec<_> = operands.chain([(A::PointwiseOperationY, y)]).collect();
    parts.operation(Kind::PointwiseOperation, &operands, &[])
}
