//! What stages exchange, on the CPU. A value is copied and sent by a thread of its own, so that the next instruction runs meanwhile; a
//! stage waits for what it receives.

use enmasse_graph::ops::{ReceiveFrom, SendTo, SumStages, Zeros};
use enmasse_graph::{Node, Op, Plan};
use enmasse_tensor::Bf16;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, fallible, kernel};
use crate::instruction::Machine;
use crate::region::Region;

/// The sending instructions of a plan, each with its bytes.
pub(crate) fn sends(plan: &Plan) -> impl Iterator<Item = (&Node, usize)> {
    plan.instructions.iter().filter_map(|node| match node.op {
        Op::SendTo(SendTo { bytes, .. }) => Some((node, bytes)),
        _ => None,
    })
}

impl OnCpu for SendTo {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let plan = o.preparation.plan;
        let schedule = o.preparation.schedule;
        let stage = self.stage;
        let number = sends(plan).position(|(node, _)| std::ptr::eq(node, o.node)).ok_or_else(|| o.unsupported())?;
        let copy = number * schedule.activations() + schedule.activations_of(o.local);
        let value = bytes(o, Side::Input(0), self.bytes)?;
        Ok(fallible!(Workspace::default(), machine => send(machine, stage, copy, value)))
    }
}

impl OnCpu for ReceiveFrom {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let stage = self.stage;
        let value = bytes(o, Side::Output(0), self.bytes)?;
        Ok(fallible!(Workspace::default(), machine => receive(machine, stage, value)))
    }
}

impl OnCpu for Zeros {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let values = (0..o.node.outputs.len()).map(|index| o.output::<f32>(index)).collect::<Result<Vec<_>, _>>()?;
        Ok(
            kernel!(Workspace::default(), _c => values.iter().for_each(|value| value.slice_mut(0, value.len()).fill(0.0))),
        )
    }
}

impl OnCpu for SumStages {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let value = o.input::<f32>(0)?;
        Ok(fallible!(Workspace::default(), machine => sum(machine, value)))
    }
}

/// The bytes of an operand or a result.
fn bytes(o: &Operand, side: Side, expected: usize) -> Result<Region<u8>, DeviceError> {
    let value = match (o.is_stored_as::<f32>(side)?, side) {
        (true, Side::Input(index)) => o.input::<f32>(index)?.cast(),
        (true, Side::Output(index)) => o.output::<f32>(index)?.cast(),
        (false, Side::Input(index)) => o.input::<Bf16>(index)?.cast(),
        (false, Side::Output(index)) => o.output::<Bf16>(index)?.cast(),
    };
    if value.len() == expected { Ok(value) } else { Err(o.unsupported()) }
}

/// Copies a value and starts to send the copy. The earlier micro-batch that used its memory has been received, because a later one
/// is in its turn.
///
/// # Safety
/// The region is valid.
unsafe fn send(machine: &mut Machine, stage: usize, copy: usize, value: Region<u8>) -> Result<(), DeviceError> {
    let sent = &mut machine.sent[copy];
    if let Some(transfer) = sent.transfer.take() {
        transfer.wait()?;
    }
    let memory = Region::new(sent.memory.as_ptr(), value.len());
    // SAFETY: the caller's promise; the copy has room for the value, and nothing reads it any more.
    unsafe { memory.slice_mut(0, value.len()).copy_from_slice(value.slice(0, value.len())) };
    let pair = machine.groups.links()?.to(stage)?;
    // SAFETY: the copy stays until the transfer has ended, which is waited for before it is written again or freed.
    sent.transfer = Some(unsafe { pair.send_start(memory.at(0, value.len()).cast_const(), value.len()) });
    Ok(())
}

/// Waits for a value.
///
/// # Safety
/// The region is valid.
unsafe fn receive(machine: &Machine, stage: usize, value: Region<u8>) -> Result<(), DeviceError> {
    // SAFETY: the caller's promise.
    machine.groups.links()?.from(stage)?.receive(unsafe { value.slice_mut(0, value.len()) })?;
    Ok(())
}

/// Adds a value up over the stages.
///
/// # Safety
/// The region is valid.
unsafe fn sum(machine: &Machine, value: Region<f32>) -> Result<(), DeviceError> {
    // SAFETY: the caller's promise.
    machine.groups.links()?.all().all_reduce(unsafe { value.slice_mut(0, value.len()) })?;
    Ok(())
}
