//! The numbers of a step.

use crate::work::Argument::{F32, U64, Write};
use crate::work::{Argument, Kernel, Memory, Place, Span};

/// Bytes of `StepValues` in `kernels/kernel.h`.
pub(crate) const BYTES: usize = 32;

/// Bytes of `Failure` in `kernels/kernel.h`.
pub(crate) const FAILURE_BYTES: usize = 8;

/// The numbers that change from step to step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepValues {
    pub epoch: u64,
    pub optimizer_step: u64,
    pub learning_rate: f32,
    pub stop: bool,
    pub save: bool,
    pub lookahead: Option<f32>,
}

/// Writes the numbers to the GPU.
pub(crate) fn set_step(values: &StepValues) -> Kernel {
    Kernel { name: "set_step".into(), grid: [1; 3], block: 32, arguments: arguments(values).to_vec() }
}

/// Gives the kernel of [`set_step`] other numbers, in place.
pub(crate) fn change_step(kernel: &mut Kernel, values: &StepValues) {
    kernel.arguments.copy_from_slice(&arguments(values));
}

fn arguments(values: &StepValues) -> [Argument; 7] {
    let flag = |set: bool| F32(f32::from(u8::from(set)));
    let to = Span { place: Place { memory: Memory::Step, offset: 0 }, bytes: BYTES };
    [
        U64(values.epoch),
        U64(values.optimizer_step),
        F32(values.learning_rate),
        flag(values.stop),
        flag(values.save),
        F32(values.lookahead.unwrap_or(-1.0)),
        Write(to),
    ]
}
