//! The optimisers, over all ranges of an update, in files of the same names as graph's: `kernels/update.cu`.

mod adamw;
mod custom;
mod lars;
mod sgd;

use enmasse_graph::{Scaling, Update, UpdateRange, with_optimizer};

use crate::kernels::BLOCKS;
use crate::kernels::operands::{FAILURE, SCRATCH, count, floats, scaling};
use crate::work::Argument::{Change, F32, Read};
use crate::work::{Argument, Constants, Kernel, Place, Span};

/// An optimiser on the GPU. Every optimiser is one, or the device does not compile.
trait OptimizerOnCuda {
    /// The kernels of an update, in order, or why there are none.
    fn kernels(&self, launch: &Launch) -> Result<Vec<Kernel>, &'static str>;
}

/// Elements that a block takes at a time: `PIECE` in `update.cu`.
const PIECE: usize = 8192;

/// Floats of the numbers that a range has: `DescentRate` and `AdamWRate` in `update.cu`.
const RATE: usize = 4;

/// Where an update finds the elements that its ranges index. Places are those of element 0.
#[derive(Clone, Debug)]
pub(crate) struct UpdateOperands {
    pub weights: Place,
    pub gradients: Place,
    /// One place for each name of the optimiser's state.
    pub state: Vec<Place>,
    /// The norm of all gradients, if they are clipped.
    pub norm: Option<Span>,
    /// What loss scaling says of the step, if the loss is scaled.
    pub scaling: Option<Scaling<Span>>,
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
        let start = ranges.first()?.start;
        let end = ranges.last()?.end();
        let mut bytes = Vec::new();
        let mut pieces = 0;
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

/// What the kernels of all optimisers take.
struct Launch<'a> {
    table: Table,
    operands: &'a UpdateOperands,
    /// The norm of all gradients, and its limit.
    clip: [Argument; 2],
    /// `Scaling` in `scaling.h`.
    scaling: [Argument; 2],
}

impl Launch<'_> {
    /// The numbers that each range has.
    fn rates(&self) -> Span {
        floats(SCRATCH, 0, RATE * self.table.ranges)
    }

    fn weights(&self) -> Span {
        self.table.span(self.operands.weights)
    }

    fn gradients(&self) -> Argument {
        Read(self.table.span(self.operands.gradients))
    }

    /// The state at a slot, to change.
    fn state(&self, slot: usize) -> Option<Argument> {
        self.operands.state.get(slot).map(|&place| Change(self.table.span(place)))
    }

    /// The first arguments of a kernel over all elements.
    fn of_elements(&self) -> [Argument; 6] {
        let [unscale, skipped_steps] = self.scaling;
        [Read(self.rates()), Read(FAILURE), unscale, skipped_steps, self.gradients(), Change(self.weights())]
    }
}

/// The kernels of an update, in order; none without ranges. The error is the end of a sentence.
pub(crate) fn update(
    update: &Update,
    operands: &UpdateOperands,
    constants: &mut Constants,
) -> Result<Vec<Kernel>, &'static str> {
    if operands.state.len() != update.optimizer.state_names().len()
        || operands.norm.is_some() != update.clip_norm.is_some()
        || operands.scaling.is_some() != update.scaled
    {
        return Err("its state is that of another optimiser");
    }
    let Some(table) = Table::new(&update.ranges, constants) else { return Ok(Vec::new()) };
    let clip = [Argument::optional(operands.norm), F32(update.clip_norm.unwrap_or(f32::INFINITY))];
    let launch = Launch { table, operands, clip, scaling: scaling(operands.scaling) };
    with_optimizer!(&update.optimizer, own => own.kernels(&launch))
}

#[cfg(test)]
mod tests;
