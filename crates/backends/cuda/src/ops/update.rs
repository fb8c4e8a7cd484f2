//! An optimiser's step, over all of its ranges: `kernels/update.cu`. Nothing changes after a failure.

use enmasse_graph::{Arena, Optimizer, Scaling, Update, UpdateRange};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::kernels::operands::{FAILURE, SCRATCH, STEP, count, floats, scaling};
use crate::kernels::{BLOCKS, THREADS};
use crate::work::Argument::{Change, F32, Null, Read, U32, Write};
use crate::work::{Argument, Constants, Kernel, Memory, Place, Span};

impl OnCuda for Update {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let refuse = |why: String| {
            let (layer, optimizer) = (&o.node.layer, self.optimizer);
            CudaError::Unsupported(format!("layer {layer}: the gpu cannot run update {{{optimizer}}}: {why}"))
        };
        let (operands, _) = self.in_plan(o.plan, &o.node.inputs).map_err(refuse)?;
        let start = |arena: Arena| Place { memory: Memory::Arena(arena), offset: 0 };
        let places = UpdateOperands {
            weights: start(Arena::Parameters),
            gradients: start(Arena::Gradients),
            state: (0..operands.state.len()).map(|slot| start(Arena::Optimizer(slot))).collect(),
            norm: operands.norm.map(|norm| o.span(norm)),
            scaling: operands.scaling.map(|scaling| o.scaling(scaling)),
        };
        let other = || refuse("its state is that of another optimiser".into());
        Ok(computed(update(self, &places, &mut lowering.sequence.constants).ok_or_else(other)?))
    }
}

/// Elements that a block takes at a time: `PIECE` in `update.cu`.
const PIECE: usize = 8192;

/// Floats of the numbers that a range has: `DescentRate` and `AdamWRate` in `update.cu`.
const RATE: usize = 4;

/// Where an update finds the elements that its ranges index. Places are those of element 0.
#[derive(Clone, Debug)]
struct UpdateOperands {
    weights: Place,
    gradients: Place,
    /// One place for each name of the optimiser's state.
    state: Vec<Place>,
    /// The norm of all gradients, if they are clipped.
    norm: Option<Span>,
    /// What loss scaling says of the step, if the loss is scaled.
    scaling: Option<Scaling<Span>>,
}

/// The table of ranges, and what follows from it.
struct Table {
    /// `Ranges` in `update.cu`.
    arguments: [Argument; 3],
    ranges: usize,
    pieces: usize,
    /// The first element of all ranges, which is 0 in the table, and the number of elements from there to the end.
    start: usize,
    elements: usize,
}

impl Table {
    /// `None` if there are no ranges.
    fn new(ranges: &[UpdateRange], constants: &mut Constants) -> Option<Self> {
        let (start, end) = (ranges.first()?.start, ranges.last()?.end());
        let (mut bytes, mut pieces) = (Vec::new(), 0);
        for range in ranges {
            for number in [range.start - start, range.len, pieces] {
                bytes.extend((number as u64).to_ne_bytes());
            }
            bytes.extend(range.group.weight_decay.to_ne_bytes());
            bytes.extend(range.group.learning_rate_scale.to_ne_bytes());
            bytes.extend([u32::from(range.adaptive), 0].map(u32::to_ne_bytes).concat());
            pieces += range.len.div_ceil(PIECE);
        }
        let arguments = [Read(constants.add(&bytes)), count(ranges.len()), count(pieces)];
        Some(Table { arguments, ranges: ranges.len(), pieces, start, elements: end - start })
    }

    /// The elements of all ranges, in an arena of floats.
    fn span(&self, arena: Place) -> Span {
        floats(arena, self.start, self.elements)
    }

    fn kernel(&self, name: &str, blocks: usize, block: u32, operands: &[Argument]) -> Kernel {
        let grid = [blocks.clamp(1, BLOCKS) as u32, 1, 1];
        Kernel { name: name.into(), grid, block, arguments: [&self.arguments, operands].concat() }
    }
}

/// The kernels of an update, in order; none without ranges. `None` if the state does not belong to the optimiser.
fn update(update: &Update, operands: &UpdateOperands, constants: &mut Constants) -> Option<Vec<Kernel>> {
    if operands.state.len() != update.optimizer.state_names().len()
        || operands.norm.is_some() != update.clip_norm.is_some()
        || operands.scaling.is_some() != update.scaled
    {
        return None;
    }
    let Some(table) = Table::new(&update.ranges, constants) else { return Some(Vec::new()) };
    let rates = floats(SCRATCH, 0, RATE * table.ranges);
    let (norm, limit) = (Argument::optional(operands.norm), F32(update.clip_norm.unwrap_or(f32::INFINITY)));
    let [unscale, skipped_steps] = scaling(operands.scaling);
    let gradients = Read(table.span(operands.gradients));
    let weights = table.span(operands.weights);
    let change = |place: Place| Change(table.span(place));
    let of_elements = [Read(rates), Read(FAILURE), unscale, skipped_steps, gradients, Change(weights)];
    let (momentum, nesterov, trust) = match update.optimizer {
        Optimizer::Sgd { momentum, nesterov } => (momentum, nesterov, None),
        Optimizer::Lars { momentum, trust_coefficient, epsilon } => {
            (momentum, false, Some([trust_coefficient, epsilon]))
        }
        Optimizer::AdamW { betas, epsilon } => {
            let [first, second] = operands.state[..] else { return None };
            let [beta1, beta2] = betas.map(F32);
            let of_ranges = [norm, unscale, skipped_steps, STEP, Write(rates), limit, beta1, beta2];
            let of_optimizer = [change(first), change(second), beta1, beta2, F32(epsilon)];
            return Some(vec![
                table.kernel("adamw_rates", table.ranges.div_ceil(THREADS as usize), THREADS, &of_ranges),
                table.kernel("adamw", table.pieces, THREADS, &[&of_elements[..], &of_optimizer].concat()),
            ]);
        }
    };
    let mut kernels = Vec::new();
    let sums = trust.map(|_| floats(SCRATCH, RATE * table.ranges, 2 * table.pieces));
    if let Some(sums) = sums {
        let squared = [Read(weights), gradients, unscale, skipped_steps, Write(sums)];
        kernels.push(table.kernel("range_squares", table.pieces, THREADS, &squared));
    }
    let [coefficient, epsilon] = trust.unwrap_or([1.0, 0.0]).map(F32);
    let (sums, rates_to) = (Argument::optional(sums), Write(rates));
    let of_ranges = [sums, norm, unscale, skipped_steps, STEP, rates_to, limit, coefficient, epsilon];
    // Only LARS has sums to add for a range.
    let threads = if trust.is_some() { THREADS } else { 32 };
    kernels.push(table.kernel("descent_rates", table.ranges, threads, &of_ranges));
    let buffer = operands.state.first().map_or(Null, |&buffer| change(buffer));
    let of_optimizer = [buffer, F32(momentum), U32(nesterov.into())];
    kernels.push(table.kernel("descent", table.pieces, THREADS, &[&of_elements[..], &of_optimizer].concat()));
    Some(kernels)
}

#[cfg(test)]
#[path = "update_tests.rs"]
mod tests;
