//! Sums of gradients over all ranks, in buckets, from the CPU.

use std::ops::Range;

use enmasse_comm::Compression;
use enmasse_graph::ops::{
    AllReduceStart, AllReduceWait, ReduceScatterStart, ReduceScatterWait, ReduceStart, ReduceWait,
};
use enmasse_graph::{Arena, Bucket};
use enmasse_tensor::DType;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, fallible};
use crate::collectives::{self, BucketSum, Receivers};
use crate::region::Region;

impl OnCpu for AllReduceStart {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let Some(bucket) = o.preparation.plan.buckets.get(self.bucket) else { return Err(o.unsupported()) };
        let to = match bucket.sent {
            DType::Bf16 if bucket.is_compressed() => Compression::Bf16,
            DType::F16 if bucket.is_compressed() => Compression::F16,
            _ => return start(o, self.bucket, Receivers::All),
        };
        let residual = o.preparation.range(Arena::Residuals, o.local, bucket.start, bucket.len);
        start(o, self.bucket, Receivers::AllCompressed(to, residual))
    }
}

impl OnCpu for ReduceStart {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        start(o, self.bucket, Receivers::First)
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

impl OnCpu for ReduceScatterStart {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (_, ends) = parts(o, self.bucket)?;
        start(o, self.bucket, Receivers::Parts(ends))
    }
}

impl OnCpu for ReduceScatterWait {
    fn prepare<E: Element>(&self, _: &Operand) -> Result<Instruction, DeviceError> {
        Ok(wait(self.bucket))
    }
}

/// The elements of a bucket that is partition, and where the part of each rank ends among them.
pub(super) fn parts(o: &Operand, bucket: usize) -> Result<(Range<usize>, Vec<usize>), DeviceError> {
    let partition = o
        .preparation
        .plan
        .partition
        .as_ref()
        .and_then(|partition| partition.borders.get(bucket))
        .ok_or_else(|| o.unsupported())?;
    let start = partition[0];
    let end = partition[partition.len() - 1];
    Ok((start..end, partition[1..].iter().map(|border| border - start).collect()))
}

fn start(o: &Operand, bucket: usize, receivers: Receivers) -> Result<Instruction, DeviceError> {
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
        receivers,
        folds: preparation.schedule.shards[o.local].folds.clone(),
        is_last: o.local + 1 == preparation.schedule.shards.len(),
    };
    // The plan does not touch the range until it waits.
    Ok(fallible!(Workspace::default(), machine => sum.run(machine)))
}

fn wait(bucket: usize) -> Instruction {
    Instruction::new(Workspace::default(), move |machine, _| collectives::all_reduce_wait(machine, bucket))
}
