//! The operands of one node: checked shapes and element types, and addresses.

use enmasse_device::{DeviceError, StepBatch};
use enmasse_graph::{Arena, Node, Role, ValueId};
use enmasse_tensor::{DType, Shape};

use super::Preparation;
use crate::algorithm::Algorithm;
use crate::element::Stored;
use crate::instruction::FromBatch;
use crate::labels::BatchLabels;
use crate::pooling::PoolShape;
use crate::region::Region;
use crate::sweep::Rows;

/// An operand or a result.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Input(usize),
    Output(usize),
}

/// A node, with the plan that it belongs to.
pub(crate) struct Operand<'a> {
    pub(crate) preparation: &'a Preparation<'a>,
    /// The index of the local shard.
    pub(crate) local: usize,
    pub(crate) node: &'a Node,
    /// The algorithm that the plan chose for it.
    pub(crate) chosen: Option<Algorithm>,
}

impl Operand<'_> {
    /// The error for a node that no kernel supports.
    pub(crate) fn unsupported(&self) -> DeviceError {
        let signature = self.preparation.plan.signature(self.node);
        let by = self.chosen.map_or(String::new(), |algorithm| format!(" by {}", algorithm.name()));
        DeviceError::Unsupported(format!("layer {}: the cpu cannot run {signature}{by}", self.node.layer))
    }

    /// Whether any operand has this element type.
    pub(crate) fn stores(&self, dtype: DType) -> bool {
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
        let id = self.id(side)?;
        let plan = self.preparation.plan;
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
    pub(crate) fn batch_input<T: Stored>(
        &self,
        index: usize,
        all: fn(&dyn StepBatch) -> Region<T>,
    ) -> Result<FromBatch<T>, DeviceError> {
        let id = self.id(Side::Input(index))?;
        let plan = self.preparation.plan;
        let value = plan.value(id);
        if value.dtype != T::DTYPE || value.role != Role::Input {
            return Err(self.unsupported());
        }
        let len = value.shape.elements();
        Ok(FromBatch { all, start: self.local * len, len })
    }

    /// Whether the operand at `index` is the weight of the loss, which comes with each batch.
    pub(crate) fn is_loss_weight(&self, index: usize) -> bool {
        self.node.inputs.get(index).is_some_and(|id| self.preparation.plan.loss_weight == Some(*id))
    }

    /// Whether the operand at `index` is the values to predict, which come with each batch.
    pub(crate) fn is_targets(&self, index: usize) -> bool {
        self.node.inputs.get(index).is_some_and(|id| self.preparation.plan.targets == Some(*id))
    }

    /// The labels without those of a mixture.
    pub(crate) fn labels_alone(&self, index: usize) -> Result<FromBatch<i32>, DeviceError> {
        self.batch_input(index, |batch| Region::of(batch.labels()))
    }

    /// The labels, which are the operand at `index`. Of mixtures the other labels and the lambdas follow.
    pub(crate) fn labels(&self, index: usize) -> Result<BatchLabels, DeviceError> {
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
    pub(crate) fn of_all(&self, side: Side) -> Result<Vec<Region<f32>>, DeviceError> {
        self.preparation.local().map(|local| self.region_of(local, side)).collect()
    }

    pub(crate) fn input<T: Stored>(&self, index: usize) -> Result<Region<T>, DeviceError> {
        self.region_of(self.local, Side::Input(index))
    }

    pub(crate) fn output<T: Stored>(&self, index: usize) -> Result<Region<T>, DeviceError> {
        self.region_of(self.local, Side::Output(index))
    }

    /// An operand that may be absent.
    pub(crate) fn optional<T: Stored>(&self, index: usize) -> Result<Option<Region<T>>, DeviceError> {
        if index < self.node.inputs.len() { self.input(index).map(Some) } else { Ok(None) }
    }

    /// Height, width and channels; a matrix is a feature map of one pixel, and tokens are a row.
    pub(crate) fn size(&self, side: Side) -> Result<[usize; 3], DeviceError> {
        let plan = self.preparation.plan;
        match plan.shape(self.id(side)?)[..] {
            [batch, height, width, channels] if batch == plan.batch => Ok([height, width, channels]),
            [batch, tokens, channels] if batch == plan.batch => Ok([1, tokens, channels]),
            [batch, channels] if batch == plan.batch => Ok([1, 1, channels]),
            _ => Err(self.unsupported()),
        }
    }

    /// The pooling between two tensors.
    pub(crate) fn pool(&self, x: Side, y: Side) -> Result<PoolShape, DeviceError> {
        let (input, [height, width, _]) = (self.size(x)?, self.size(y)?);
        Ok(PoolShape { batch: self.preparation.plan.batch, input, output: [height, width] })
    }

    /// The shape of an operand.
    pub(crate) fn shape(&self, side: Side) -> Result<&Shape, DeviceError> {
        Ok(self.preparation.plan.shape(self.id(side)?))
    }

    /// Whether an operand is never stored as a whole.
    pub(crate) fn is_in_cache(&self, side: Side) -> Result<bool, DeviceError> {
        Ok(self.preparation.plan.slot(self.id(side)?).arena == Arena::Cache)
    }

    /// The node that writes an operand.
    pub(crate) fn producer(&self, index: usize) -> Option<Self> {
        let id = self.node.inputs.get(index)?;
        let node = self.preparation.plan.instructions.iter().find(|node| node.outputs.contains(id))?;
        Some(Operand { node, chosen: None, ..*self })
    }

    /// Whether an operand is stored as `T`.
    pub(crate) fn is_stored_as<T: Stored>(&self, side: Side) -> Result<bool, DeviceError> {
        Ok(self.preparation.plan.value(self.id(side)?).dtype == T::DTYPE)
    }

    /// Rows and channels of an operand of any number of dimensions.
    pub(crate) fn rows(&self, index: usize) -> Result<Rows, DeviceError> {
        let shape = self.preparation.plan.shape(self.id(Side::Input(index))?);
        Ok(Rows { rows: shape.elements() / shape.last().max(1), channels: shape.last() })
    }
}
