//! What concerns ranges of arenas rather than single values: sums over shards, the optimiser, averages.

use enmasse_graph::{Arena, Update};
use enmasse_tensor::DType;

use super::operand::Operands;
use crate::CudaError;
use crate::kernels::{average, elementwise, update};
use crate::work::{Constants, Kernel, Memory, Place, Span};

impl Operands<'_> {
    /// A range of the gradient arena in a slot.
    fn gradient_range(&self, slot: usize, offset: usize, bytes: usize) -> Span {
        let before = slot * self.places.plans.arena_bytes(Arena::Gradients);
        Span { place: Place { memory: Memory::Arena(Arena::Gradients), offset: before + offset }, bytes }
    }

    /// The additions of a bucket that become possible once this shard's gradients are complete.
    pub fn folds(&self, bucket: usize) -> Result<Vec<Kernel>, CudaError> {
        let whole = |bucket: &&enmasse_graph::Bucket| bucket.dtype == DType::F32;
        let bytes = self.plan.buckets.get(bucket).filter(whole).ok_or_else(|| self.unsupported())?.bytes();
        let range = |slot: usize| self.gradient_range(slot, bytes.start, bytes.len());
        let folds = self.places.schedule.shards[self.hosted].folds.iter();
        Ok(folds
            .map(|fold| elementwise::add(DType::F32, range(fold.into), range(fold.from), range(fold.into)))
            .collect())
    }

    /// All gradients of a node, which are adjacent.
    pub fn gradients(&self) -> Result<Span, CudaError> {
        let bytes = self.plan.adjacent_gradients(&self.node.inputs).ok_or_else(|| self.unsupported())?;
        Ok(self.gradient_range(0, 0, bytes))
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
            norm: operands.norm.map(|norm| self.places.span(self.plan, norm, self.hosted)),
            rounded: None,
        };
        let other = || refuse("its state is that of another optimiser".into());
        update::update(rule, &places, constants).ok_or_else(other)
    }

    /// Moves averages towards their values, one launch for each pair of neighbouring ranges.
    pub fn averages(&self, decay: f32) -> Result<Vec<Kernel>, CudaError> {
        let count = self.node.inputs.len() / 2;
        let pairs = (0..count).map(|index| Ok((self.input(index)?, self.input(count + index)?)));
        let mut joined: Vec<(Span, Span)> = Vec::new();
        for (value, moved) in pairs.collect::<Result<Vec<_>, CudaError>>()? {
            match joined.last_mut() {
                // Alignment leaves gaps, which are zero on both sides and stay so.
                Some((values, averages)) if follows(*values, value) && follows(*averages, moved) => {
                    values.bytes = value.place.offset + value.bytes - values.place.offset;
                    averages.bytes = moved.place.offset + moved.bytes - averages.place.offset;
                }
                _ => joined.push((value, moved)),
            }
        }
        Ok(joined.into_iter().map(|(values, averages)| average::average(decay, values, averages)).collect())
    }
}

/// Whether a value is the next one after a range in its arena.
fn follows(range: Span, value: Span) -> bool {
    let end = (range.place.offset + range.bytes).next_multiple_of(enmasse_graph::Plan::ALIGNMENT);
    value.place == Place { offset: end, ..range.place }
}
