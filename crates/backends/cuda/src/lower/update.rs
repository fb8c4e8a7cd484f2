//! What concerns ranges of arenas rather than single values: sums over shards, the optimiser, averages.

use enmasse_graph::{Arena, Scaling, Update, ValueId};
use enmasse_tensor::DType;

use super::operand::Operands;
use crate::CudaError;
use crate::kernels::{average, elementwise, loss_scale, norm, update};
use crate::work::{Constants, Kernel, Memory, Place, Span};

impl Operands<'_> {
    /// A range of the gradient arena in a slot.
    fn gradient_range(&self, slot: usize, offset: usize, bytes: usize) -> Span {
        let before = slot * self.places.plans.arena_bytes(Arena::Gradients);
        Span { place: Place { memory: Memory::Arena(Arena::Gradients), offset: before + offset }, bytes }
    }

    /// A bucket in a slot.
    pub fn bucket(&self, bucket: usize, slot: usize) -> Result<Span, CudaError> {
        let whole = |bucket: &&enmasse_graph::Bucket| bucket.dtype == DType::F32;
        let bytes = self.plan.buckets.get(bucket).filter(whole).ok_or_else(|| self.unsupported())?.bytes();
        Ok(self.gradient_range(slot, bytes.start, bytes.len()))
    }

    /// The bytes of a bucket that are gradients. The others come after them, and are carried with the last bucket.
    pub fn gradients_of(&self, bucket: Span) -> usize {
        let arena = self.places.plans.arena_bytes(Arena::Gradients);
        (self.plan.trainable * size_of::<f32>()).saturating_sub(bucket.place.offset % arena).min(bucket.bytes)
    }

    /// The additions of a bucket that become possible once this shard's gradients are complete.
    pub fn folds(&self, bucket: usize) -> Result<Vec<Kernel>, CudaError> {
        let folds = self.places.schedule.shards[self.local].folds.iter();
        let fold = |fold: &enmasse_comm::Fold| {
            let (into, from) = (self.bucket(bucket, fold.into)?, self.bucket(bucket, fold.from)?);
            Ok(elementwise::add(DType::F32, into, from, into))
        };
        folds.map(fold).collect()
    }

    /// The gradients of a node, which are adjacent and come before its `others` last operands.
    fn gradients(&self, others: usize) -> Option<Span> {
        let gradients = self.node.inputs.get(..self.node.inputs.len().checked_sub(others)?)?;
        Some(self.gradient_range(0, 0, self.plan.adjacent_gradients(gradients)?))
    }

    /// The norm of all gradients.
    pub fn gradient_norm(&self, scaled: bool) -> Result<Vec<Kernel>, CudaError> {
        let gradients = self.gradients(usize::from(scaled)).ok_or_else(|| self.unsupported())?;
        let scale = if scaled { Some(self.input(self.node.inputs.len() - 1)?) } else { None };
        Ok(norm::gradient_norm(gradients, scale, self.output(0)?).into())
    }

    /// The check of all gradients, or of their norm.
    pub fn unscale(&self) -> Result<Vec<Kernel>, CudaError> {
        let values = match (self.gradients(1), &self.node.inputs[..]) {
            (Some(gradients), _) => gradients,
            (None, [_, _]) => self.input(0)?,
            _ => return Err(self.unsupported()),
        };
        Ok(loss_scale::unscale(values, self.input(self.node.inputs.len() - 1)?, self.output(0)?).into())
    }

    /// An optimiser's step over all of its ranges.
    pub fn update(&self, rule: &Update, constants: &mut Constants) -> Result<Vec<Kernel>, CudaError> {
        let refuse = |why: String| {
            let (layer, optimizer) = (&self.node.layer, rule.optimizer);
            CudaError::Unsupported(format!("layer {layer}: the gpu cannot run update {{{optimizer}}}: {why}"))
        };
        let (operands, _) = rule.in_plan(self.plan, &self.node.inputs).map_err(refuse)?;
        let start = |arena: Arena| Place { memory: Memory::Arena(arena), offset: 0 };
        let places = update::UpdateOperands {
            weights: start(Arena::Parameters),
            gradients: start(Arena::Gradients),
            state: (0..operands.state.len()).map(|slot| start(Arena::Optimizer(slot))).collect(),
            norm: operands.norm.map(|norm| self.places.span(self.plan, norm, self.local)),
            scaling: operands.scaling.map(|scaling| self.scaling(scaling)),
        };
        let other = || refuse("its state is that of another optimiser".into());
        update::update(rule, &places, constants).ok_or_else(other)
    }

    fn scaling(&self, Scaling { unscale, skipped_steps }: Scaling<ValueId>) -> Scaling<Span> {
        let span = |value| self.places.span(self.plan, value, self.local);
        Scaling { unscale: span(unscale), skipped_steps: span(skipped_steps) }
    }

    /// Moves averages towards their values, one launch for each pair of neighbouring ranges.
    pub fn averages(&self, decay: f32, scaled: bool) -> Result<Vec<Kernel>, CudaError> {
        let (ids, scaling) = match self.node.inputs[..] {
            [ref ids @ .., unscale, skipped_steps] if scaled => (ids, Some(Scaling { unscale, skipped_steps })),
            ref ids => (ids, None),
        };
        let scaling = scaling.map(|scaling| self.scaling(scaling));
        let count = ids.len() / 2;
        let pairs = (0..count).map(|index| Ok((self.input(index)?, self.input(count + index)?)));
        let mut joined: Vec<(Span, Span)> = Vec::new();
        for (value, moved) in pairs.collect::<Result<Vec<_>, CudaError>>()? {
            match joined.last_mut() {
                // Gaps are zero on both sides and stay so.
                Some((values, averages)) if values.is_before(value) && averages.is_before(moved) => {
                    (*values, *averages) = (values.hull(value), averages.hull(moved));
                }
                _ => joined.push((value, moved)),
            }
        }
        Ok(joined.into_iter().map(|(values, averages)| average::average(decay, values, averages, scaling)).collect())
    }
}
