//! A convolution as one of cuDNN's operation graphs.

use std::ffi::c_void;
use std::sync::Arc;

use super::descriptor::Descriptor;
use super::problem::{Direction, Problem};
use super::sys::{Attribute, ConvolutionMode, DataType, Functions, Kind, PointwiseMode, RawHandle};
use crate::error::CudaError;

/// What all addresses are multiples of: the width of the widest access.
const ALIGNMENT: i64 = 16;

/// The tensors by the numbers that a variant pack gives addresses to.
pub(super) const X: i64 = 1;
pub(super) const W: i64 = 2;
pub(super) const Y: i64 = 3;
pub(super) const BIAS: i64 = 4;
/// The convolution before its bias is added. It has no address.
const SUM: i64 = 5;

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
    fn tensor(&mut self, id: i64, shape: [usize; 4], data_type: DataType) -> Result<usize, CudaError> {
        let [n, h, w, c] = shape.map(|size| size as i64);
        let tensor = self
            .create(Kind::Tensor)?
            .set(Attribute::TensorDataType, &[data_type])?
            .set(Attribute::TensorDimensions, &[n, c, h, w])?
            .set(Attribute::TensorStrides, &[h * w * c, 1, w * c, c])?
            .set(Attribute::TensorUniqueId, &[id])?
            .set(Attribute::TensorAlignment, &[ALIGNMENT])?
            .set(Attribute::TensorIsVirtual, &[id == SUM])?;
        self.keep(tensor)
    }

    /// An operation of a convolution: its descriptor, the three tensors, and the factor of what the result held.
    fn convolution(
        &mut self,
        kind: Kind,
        operands: [(Attribute, usize); 4],
        factors: [(Attribute, f32); 2],
    ) -> Result<usize, CudaError> {
        let mut operation = self.create(kind)?;
        for (attribute, index) in operands {
            operation = operation.set(attribute, &[self.made[index].raw()])?;
        }
        for (attribute, factor) in factors {
            operation = operation.set(attribute, &[factor])?;
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
        weights: DataType,
    ) -> Result<Self, CudaError> {
        use Attribute as A;
        let mut parts = Parts { functions, made: Vec::new() };
        let activations = problem.arithmetic.data_type();
        let window = &problem.conv.window;
        let pair = |sizes: [usize; 2]| sizes.map(|size| size as i64);
        let descriptor = parts
            .create(Kind::Convolution)?
            .set(A::ConvolutionComputeType, &[DataType::F32])?
            .set(A::ConvolutionMode, &[ConvolutionMode::CrossCorrelation])?
            .set(A::ConvolutionSpatialDimensions, &[2i64])?
            .set(A::ConvolutionPrePaddings, &pair(window.padding))?
            .set(A::ConvolutionPostPaddings, &pair(window.padding))?
            .set(A::ConvolutionStrides, &pair(window.stride))?
            .set(A::ConvolutionDilations, &pair(window.dilation))?;
        let descriptor = parts.keep(descriptor)?;
        let x = parts.tensor(X, problem.x, activations)?;
        let w = parts.tensor(W, problem.w, weights)?;
        let y = parts.tensor(Y, problem.y, activations)?;
        let mut operations = Vec::new();
        match problem.direction {
            Direction::Forward { bias } => {
                let sum = if bias { parts.tensor(SUM, problem.y, DataType::F32)? } else { y };
                operations.push(parts.convolution(
                    Kind::ConvolutionForward,
                    [(A::ForwardConvolution, descriptor), (A::ForwardX, x), (A::ForwardW, w), (A::ForwardY, sum)],
                    [(A::ForwardAlpha, 1.0), (A::ForwardBeta, 0.0)],
                )?);
                if bias {
                    let channels = parts.tensor(BIAS, [1, 1, 1, problem.y[3]], DataType::F32)?;
                    operations.push(add(&mut parts, sum, channels, y)?);
                }
            }
            Direction::BackwardData { accumulate } => operations.push(parts.convolution(
                Kind::ConvolutionBackwardData,
                [
                    (A::BackwardDataConvolution, descriptor),
                    (A::BackwardDataDx, x),
                    (A::BackwardDataW, w),
                    (A::BackwardDataDy, y),
                ],
                [(A::BackwardDataAlpha, 1.0), (A::BackwardDataBeta, if accumulate { 1.0 } else { 0.0 })],
            )?),
            Direction::BackwardWeights => operations.push(parts.convolution(
                Kind::ConvolutionBackwardFilter,
                [
                    (A::BackwardFilterConvolution, descriptor),
                    (A::BackwardFilterX, x),
                    (A::BackwardFilterDw, w),
                    (A::BackwardFilterDy, y),
                ],
                [(A::BackwardFilterAlpha, 1.0), (A::BackwardFilterBeta, 0.0)],
            )?),
        }
        let operations: Vec<_> = operations.iter().map(|index| parts.made[*index].raw()).collect();
        let mut graph = parts.create(Kind::OperationGraph)?.set(A::GraphOperations, &operations)?;
        if let Some(handle) = handle {
            graph = graph.set(A::GraphHandle, &[RawHandle(handle)])?;
        }
        Ok(OperationGraph { graph: graph.finalize()?, _parts: parts.made })
    }
}

/// `y = sum + bias`, in f32.
fn add(parts: &mut Parts<'_>, sum: usize, bias: usize, y: usize) -> Result<usize, CudaError> {
    let descriptor = parts
        .create(Kind::Pointwise)?
        .set(Attribute::PointwiseMode, &[PointwiseMode::Add])?
        .set(Attribute::PointwiseMathPrecision, &[DataType::F32])?;
    let descriptor = parts.keep(descriptor)?;
    let mut operation = parts.create(Kind::PointwiseOperation)?;
    for (attribute, index) in [
        (Attribute::PointwiseOperationDescriptor, descriptor),
        (Attribute::PointwiseOperationX, sum),
        (Attribute::PointwiseOperationB, bias),
        (Attribute::PointwiseOperationY, y),
    ] {
        operation = operation.set(attribute, &[parts.made[index].raw()])?;
    }
    parts.keep(operation)
}
