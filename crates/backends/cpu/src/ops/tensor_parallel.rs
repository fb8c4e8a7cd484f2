//! What ranks exchange that have a part of each cut layer, on the CPU. A sum is computed in f32 whatever the activations are stored as.

use enmasse_graph::ops::{CopyToRanks, SumOverRanks, SumRequests};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, fallible, kernel};
use crate::inlined::inlined;
use crate::instruction::Machine;
use crate::isa::Simd;
use crate::region::Region;
use crate::sweep::{self, Pass, Rows};

impl OnCpu for CopyToRanks {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (from, to) = (o.input::<E>(0)?, o.output::<E>(0)?);
        if from.at(0, 0) == to.at(0, 0) {
            return Ok(Instruction::nothing());
        }
        Ok(kernel!(Workspace::default(), c => sweep::flat(c, to.len(), &Convert { from, to })))
    }
}

impl OnCpu for SumOverRanks {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (x, y, bias) = (o.input::<E>(0)?, o.output::<E>(0)?, o.optional::<f32>(1)?);
        let rows = o.rows(0)?;
        let shared = if E::BF16 { x.len() } else { 0 };
        Ok(fallible!(Workspace { shared, private: 0 }, machine => sum(machine, rows, x, bias, y)))
    }
}

impl OnCpu for SumRequests {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let metrics = o.input::<f32>(0)?;
        let first = metrics.len().checked_sub(2).ok_or_else(|| o.unsupported())?;
        Ok(fallible!(Workspace::default(), machine => {
            machine.groups.parts()?.all_reduce(metrics.slice_mut(first, 2))?;
            Ok(())
        }))
    }
}

/// The sum of `x` over the ranks, plus a bias.
///
/// # Safety
/// The regions are valid; `y` is written, and may coincide with `x`.
unsafe fn sum<E: Element>(
    machine: &mut Machine,
    Rows { rows, channels }: Rows,
    x: Region<E>,
    bias: Option<Region<f32>>,
    y: Region<E>,
) -> Result<(), DeviceError> {
    let context = &mut machine.context;
    // f32 is summed where the result lies.
    let sum = if E::BF16 { context.shared.part(0, x.len()) } else { y.cast::<f32>() };
    // SAFETY: the caller's promise; the workspace has room for the operand.
    unsafe {
        if E::BF16 || x.at(0, 0) != y.at(0, 0) {
            sweep::flat(context, x.len(), &Convert { from: x, to: sum });
        }
        machine.groups.parts()?.all_reduce(sum.slice_mut(0, sum.len()))?;
        let context = &mut machine.context;
        match bias {
            Some(bias) => sweep::by_channel(context, rows, channels, &AddBias { sum, bias, y }),
            None if E::BF16 => sweep::flat(context, y.len(), &Convert { from: sum, to: y }),
            None => {}
        }
    }
    Ok(())
}

/// The same values, stored as another type.
struct Convert<E, F> {
    from: Region<E>,
    to: Region<F>,
}

impl<E: Element, F: Element> Pass for Convert<E, F> {
    const BF16: bool = E::BF16 || F::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            F::store::<S>(self.to.at(index, S::LANES), E::load::<S>(self.from.at(index, S::LANES)))
        }
    }
}

struct AddBias<E> {
    sum: Region<f32>,
    bias: Region<f32>,
    y: Region<E>,
}

impl<E: Element> Pass for AddBias<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) {
            let sum = S::load(self.sum.at(index, S::LANES));
            let bias = S::load(self.bias.at(channel, S::LANES));
            E::store::<S>(self.y.at(index, S::LANES), S::add(sum, bias))
        }
    }
}
