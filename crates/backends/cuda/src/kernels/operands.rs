//! Operands that many kernels have: numbers of the step, the record of a failure, scratch, and numbers of elements.

use enmasse_graph::Scaling;

use super::{BLOCKS, THREADS, kernel, step};
use crate::work::Argument::{Read, U64};
use crate::work::{Argument, Kernel, Memory, Place, Span};

const FLOAT: usize = size_of::<f32>();

/// `StepValues` in `kernels/kernel.h`.
pub(crate) const STEP: Argument = Read(whole(Memory::Step, step::BYTES));

/// `Failure` in `kernels/kernel.h`.
pub(crate) const FAILURE: Span = whole(Memory::Failure, 8);

/// The scratch of an instruction.
pub(crate) const SCRATCH: Place = whole(Memory::Scratch, 0).place;

/// The counters of a reduction.
pub(crate) const COUNTERS: Place = whole(Memory::Counters, 0).place;

const fn whole(memory: Memory, bytes: usize) -> Span {
    Span { place: Place { memory, offset: 0 }, bytes }
}

/// A number of elements, as kernels take it.
pub(crate) fn count(elements: usize) -> Argument {
    U64(elements as u64)
}

/// `elements` floats from the one at index `start` after a place.
pub(crate) fn floats(place: Place, start: usize, elements: usize) -> Span {
    Span { place: Place { offset: place.offset + start * FLOAT, ..place }, bytes: elements * FLOAT }
}

/// The number of floats in a span.
pub(crate) fn float_count(span: Span) -> usize {
    span.bytes / FLOAT
}

/// `Labels` in `kernels/label.h`: the labels of samples, `i32 [N]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels {
    pub own: Span,
    /// Of mixtures: the other labels, `i32 [N]`, and the lambdas of the own ones, `[N]`.
    pub mixture: Option<[Span; 2]>,
}

impl Labels {
    pub(crate) fn samples(&self) -> usize {
        float_count(self.own)
    }

    pub(crate) fn arguments(&self) -> [Argument; 3] {
        let [others, lambdas] = [0, 1].map(|at| Argument::optional(self.mixture.map(|mixture| mixture[at])));
        [Read(self.own), others, lambdas]
    }
}

/// `Scaling` in `kernels/scaling.h`.
pub(crate) fn scaling(scaling: Option<Scaling<Span>>) -> [Argument; 2] {
    [scaling.map(|scaling| scaling.unscale), scaling.map(|scaling| scaling.skipped_steps)].map(Argument::optional)
}

/// A kernel of one block.
pub(crate) fn one_block(name: &str, arguments: Vec<Argument>) -> Kernel {
    kernel(name, [1; 3], arguments)
}

/// A kernel whose blocks take one row at a time. A block has a power of two of threads.
pub(crate) fn by_row(name: &str, rows: usize, row: usize, arguments: Vec<Argument>) -> Kernel {
    let block = row.next_power_of_two().clamp(32, THREADS as usize) as u32;
    Kernel { name: name.into(), grid: [rows.clamp(1, BLOCKS) as u32, 1, 1], block, arguments }
}
