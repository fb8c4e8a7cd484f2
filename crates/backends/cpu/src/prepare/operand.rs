//! The operands of one node: checked shapes and element types, and addresses.

use enmasse_device::{DeviceError, StepBatch};
use enmasse_graph::{Activation, Node, Op, Role, ValueId};
use enmasse_tensor::DType;

use super::Preparation;
use crate::algorithm::Algorithm;
use crate::batch_norm::{Gate, Gradient};
use crate::conv::ConvShape;
use crate::element::{Element, Stored};
use crate::instruction::FromBatch;
use crate::labels::BatchLabels;
use crate::loss::CrossEntropy;
use crate::pooling::{Average, PoolShape};
use crate::region::Region;
use crate::statistics::Moments;
use crate::sweep::Rows;

/// An operand or a result.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Input(usize),
    Output(usize),
}

/// A node, with the plan that it belongs to.
pub(super) struct Operand<'a> {
    pub preparation: &'a Preparation<'a>,
    /// The index of the local shard.
    pub local: usize,
    pub node: &'a Node,
    /// The algorithm that the plan chose for it.
    pub chosen: Option<Algorithm>,
}

impl Operand<'_> {
    /// The error for a node that no kernel supports.
    pub(super) fn unsupported(&self) -> DeviceError {
        let signature = self.preparation.plan.signature(self.node);
        let by = self.chosen.map_or(String::new(), |algorithm| format!(" by {}", algorithm.name()));
        DeviceError::Unsupported(format!("layer {}: the cpu cannot run {signature}{by}", self.node.layer))
    }

    /// Whether any operand has this element type.
    pub(super) fn stores(&self, dtype: DType) -> bool {
        let plan = self.preparation.plan;
        self.node.inputs.iter().chain(&self.node.outputs).any(|&id| plan.value(id).dtype == dtype)
    }

    fn id(&self, side: Side) -> Result<ValueId, DeviceError> {
        let id = match side {
            Side::Input(index) => self.node.inputs.get(index),
            Side::Output(index) => self.node.outputs.get(index),
        };
        id.copied().ok_or_else(|| self.unsupported())
    }

    /// The memory of an operand of a local shard, which must be stored as `T`.
    fn region_of<T: Stored>(&self, local: usize, side: Side) -> Result<Region<T>, DeviceError> {
        let (id, plan) = (self.id(side)?, self.preparation.plan);
        let value = plan.value(id);
        // Operands that come with a batch are elsewhere in each step.
        if value.dtype != T::DTYPE || value.role == Role::Input {
            return Err(self.unsupported());
        }
        let slot = plan.slot(id);
        let start = self.preparation.arena(slot.arena, local).wrapping_add(slot.offset);
        Ok(Region::new(start.cast(), plan.shape(id).elements()))
    }

    /// An operand that comes with each batch. In `all` of it, one shard follows another.
    pub(super) fn batch_input<T: Stored>(
        &self,
        index: usize,
        all: fn(&dyn StepBatch) -> Region<T>,
    ) -> Result<FromBatch<T>, DeviceError> {
        let (id, plan) = (self.id(Side::Input(index))?, self.preparation.plan);
        let value = plan.value(id);
        if value.dtype != T::DTYPE || value.role != Role::Input {
            return Err(self.unsupported());
        }
        let len = value.shape.elements();
        Ok(FromBatch { all, start: self.local * len, len })
    }

    /// Whether the operand at `index` is the weight of the loss, which comes with each batch.
    pub(super) fn is_loss_weight(&self, index: usize) -> bool {
        self.node.inputs.get(index).is_some_and(|id| self.preparation.plan.loss_weight == Some(*id))
    }

    /// The labels without those of a mixture.
    pub(super) fn labels_alone(&self, index: usize) -> Result<FromBatch<i32>, DeviceError> {
        self.batch_input(index, |batch| Region::of(batch.labels()))
    }

    /// The labels, which are the operand at `index`. Of mixtures the other labels and the lambdas follow.
    pub(super) fn labels(&self, index: usize) -> Result<BatchLabels, DeviceError> {
        let own = self.labels_alone(index)?;
        let mixture = match self.node.inputs.len() - index {
            1 => None,
            _ => {
                let others = self.batch_input(index + 1, |batch| Region::of(batch.other_labels()))?;
                Some((others, self.batch_input(index + 2, |batch| Region::of(batch.lambdas()))?))
            }
        };
        Ok(BatchLabels { own, mixture })
    }

    /// An operand of every local shard.
    pub(super) fn of_all(&self, side: Side) -> Result<Vec<Region<f32>>, DeviceError> {
        self.preparation.local().map(|local| self.region_of(local, side)).collect()
    }

    pub(super) fn input<T: Stored>(&self, index: usize) -> Result<Region<T>, DeviceError> {
        self.region_of(self.local, Side::Input(index))
    }

    pub(super) fn output<T: Stored>(&self, index: usize) -> Result<Region<T>, DeviceError> {
        self.region_of(self.local, Side::Output(index))
    }

    /// An operand that may be absent.
    pub(super) fn optional<T: Stored>(&self, index: usize) -> Result<Option<Region<T>>, DeviceError> {
        if index < self.node.inputs.len() { self.input(index).map(Some) } else { Ok(None) }
    }

    /// Height, width and channels; a matrix is a feature map of one pixel.
    pub(super) fn size(&self, side: Side) -> Result<[usize; 3], DeviceError> {
        let plan = self.preparation.plan;
        match plan.shape(self.id(side)?)[..] {
            [batch, height, width, channels] if batch == plan.batch => Ok([height, width, channels]),
            [batch, channels] if batch == plan.batch => Ok([1, 1, channels]),
            _ => Err(self.unsupported()),
        }
    }

    /// The pooling between two tensors.
    pub(super) fn pool(&self, x: Side, y: Side) -> Result<PoolShape, DeviceError> {
        let (input, [height, width, _]) = (self.size(x)?, self.size(y)?);
        Ok(PoolShape { batch: self.preparation.plan.batch, input, output: [height, width] })
    }

    /// The average pooling between two tensors.
    pub(super) fn average(&self, x: Side, y: Side) -> Result<Average, DeviceError> {
        let shape = self.pool(x, y)?;
        match &self.node.op {
            Op::AvgPool(window) | Op::AvgPoolBackward(window) => Ok(Average::window(shape, window)),
            _ => Ok(Average::adaptive(shape)),
        }
    }

    /// The convolution, or the linear layer, between two tensors.
    pub(super) fn conv(&self, x: Side, y: Side) -> Result<ConvShape, DeviceError> {
        let batch = self.preparation.plan.batch;
        let (input, output) = (self.size(x)?, self.size(y)?);
        match self.node.op {
            Op::Conv2d(conv) | Op::Conv2dBackwardData(conv) | Op::Conv2dBackwardWeights(conv) => {
                Ok(ConvShape { batch, input, output, conv })
            }
            Op::Linear | Op::LinearBackwardData | Op::LinearBackwardWeights => {
                Ok(ConvShape::linear(batch, input[2], output[2]))
            }
            _ => Err(self.unsupported()),
        }
    }

    /// Rows and channels of an operand of any number of dimensions.
    pub(super) fn rows(&self, index: usize) -> Result<Rows, DeviceError> {
        let shape = self.preparation.plan.shape(self.id(Side::Input(index))?);
        Ok(Rows { rows: shape.elements() / shape.last().max(1), channels: shape.last() })
    }

    pub(super) fn moments(&self, index: usize) -> Result<Moments, DeviceError> {
        Ok(Moments { mean: self.input(index)?, variance: self.input(index + 1)? })
    }

    /// The operands of a batch norm's gradient; `gate` is the index of the first operand of its gate, if it has one.
    pub(super) fn gradient<E: Element>(
        &self,
        epsilon: f32,
        activation: Option<Activation>,
        gate: usize,
    ) -> Result<Gradient<E>, DeviceError> {
        let gate = match (activation, self.optional(gate + 1)?) {
            (None, _) => None,
            (Some(activation), None) => Some((activation, Gate::Stored(self.input(gate)?))),
            (Some(activation), Some(bias)) => Some((activation, Gate::Recomputed { weight: self.input(gate)?, bias })),
        };
        let (size, moments) = (self.rows(0)?, self.moments(2)?);
        Ok(Gradient { size, dy: self.input(0)?, x: self.input(1)?, moments, gate, epsilon })
    }

    pub(super) fn cross_entropy(&self, scale: f32, smoothing: f32) -> Result<CrossEntropy, DeviceError> {
        let Rows { rows, channels } = self.rows(0)?;
        Ok(CrossEntropy { samples: rows, classes: channels, scale, smoothing })
    }
}
