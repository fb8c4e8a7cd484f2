//! Sums of gradients over all ranks, in buckets, from the CPU.

use enmasse_graph::ops::{AllReduceStart, AllReduceWait, ReduceStart, ReduceWait};
use enmasse_graph::{Arena, Bucket};
use enmasse_tensor::DType;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, fallible};
use crate::collectives::{self, BucketSum};
use crate::region::Region;

impl OnCpu for AllReduceStart {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        start(o, self.bucket, true)
    }
}

impl OnCpu for ReduceStart {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        start(o, self.bucket, false)
    }
}

impl OnCpu for AllReduceWait {
    fn prepare<E: Element>(&self, _: &Operand) -> Result<Instruction, DeviceError> {
        Ok(wait(self.bucket))
    }
}

impl OnCpu for ReduceWait {
    fn prepare<E: Element>(&self, _: &Operand) -> Result<Instruction, DeviceError> {
        Ok(wait(self.bucket))
    }
}

fn start(o: &Operand, bucket: usize, is_for_all: bool) -> Result<Instruction, DeviceError> {
    let preparation = o.preparation;
    let single = |range: &&Bucket| range.dtype == DType::F32;
    let range = preparation.plan.buckets.get(bucket).filter(single).ok_or_else(|| o.unsupported())?;
    // The arenas of all slots, starting at the bucket's place in the first one.
    let start = (preparation.start)(Arena::Gradients).cast::<f32>().wrapping_add(range.start);
    let sum = BucketSum {
        bucket,
        start: Region::new(start, range.len),
        stride: preparation.strides[0] / size_of::<f32>(),
        shards: preparation.map.shards(),
        is_for_all,
        folds: preparation.schedule.shards[o.local].folds.clone(),
        is_last: o.local + 1 == preparation.schedule.shards.len(),
    };
    // The plan does not touch the range until it waits.
    Ok(fallible!(Workspace::default(), machine => sum.run(machine)))
}

fn wait(bucket: usize) -> Instruction {
    Instruction::new(Workspace::default(), move |machine, _| collectives::all_reduce_wait(machine, bucket))
}
