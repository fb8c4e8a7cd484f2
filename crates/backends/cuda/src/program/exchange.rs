//! Exchanges of ranks by way of the host: the GPU copies its numbers to page-locked memory, the
//! group combines them there, and the GPU copies the result back.
//!
//! A bucket is copied by a stream of its own as soon as it is complete. The group then sums it
//! while the GPU goes on with backward, and the sum is copied back before the update. `check`
//! proves that nothing touches the bucket meanwhile. Statistics of joint batch norms go the same
//! way, at once.
//!
//! All ranks begin the operations of the group in the order of the sequence, which is the same on
//! all of them.

use std::collections::VecDeque;

use enmasse_comm::{Group, Handle};
use enmasse_device::DeviceError;
use enmasse_graph::Plan;
use enmasse_tensor::HostBuffer;

use super::collectives::Collectives;
use crate::CudaError;
use crate::driver::{Event, PinnedMemory, Stream};
use crate::gpu::Gpu;
use crate::sequence::{Exchange, Joins};
use crate::work::Place;

/// An exchange with addresses.
pub(super) struct BoundExchange {
    joins: Joins,
    /// The first byte on the GPU, and the bytes, of each piece.
    from: Vec<(u64, usize)>,
    to: (u64, usize),
    staging: usize,
}

impl BoundExchange {
    pub fn new(exchange: &Exchange, address: &dyn Fn(Place) -> Result<u64, CudaError>) -> Result<Self, CudaError> {
        let Exchange { joins, from, to, staging } = exchange;
        let from = from.iter().map(|span| Ok((address(span.place)?, span.bytes))).collect::<Result<_, CudaError>>()?;
        Ok(BoundExchange { joins: *joins, from, to: (address(to.place)?, to.bytes), staging: *staging })
    }
}

/// The host's memory for exchanges. The GPU and the group's thread use parts of it while this thread uses others, so there is
/// no reference to it.
struct Staging {
    start: *mut u8,
    bytes: usize,
    _memory: HostBuffer,
}

// SAFETY: the memory belongs to this value, like that of a box.
unsafe impl Send for Staging {}

impl Staging {
    fn new(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        let pinned = PinnedMemory { context: gpu.context.clone() };
        let mut memory = pinned.allocate_for("the sums over ranks", bytes)?;
        Ok(Staging { start: memory.as_mut_ptr(), bytes, _memory: memory })
    }

    /// The first byte of a range.
    fn at(&self, start: usize, bytes: usize) -> Result<*mut u8, CudaError> {
        if start.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let reason = format!("bytes {start}+{bytes} lie outside the {} bytes for exchanges", self.bytes);
            return Err(CudaError::Unsupported(reason));
        }
        Ok(self.start.wrapping_add(start))
    }

    /// The floats of a range.
    ///
    /// # Safety
    /// Nothing else uses the range meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the range is his alone")]
    unsafe fn floats(&self, start: usize, bytes: usize) -> Result<&mut [f32], CudaError> {
        let first = self.at(start, bytes)?.cast::<f32>();
        // SAFETY: the range is valid. Exchanges begin at multiples of an alignment that suits floats, and every pattern of bits
        // is one.
        Ok(unsafe { std::slice::from_raw_parts_mut(first, bytes / size_of::<f32>()) })
    }
}

/// Where the sum of a bucket is.
enum Stage {
    /// It is in the gradient arena.
    Done,
    /// The GPU copies the rank's numbers to the host.
    Copying { staging: usize, bytes: usize, joins: Joins },
    /// The group sums them, for this rank too if the sum `is_ours`.
    Summing { sum: Handle, staging: usize, bytes: usize, is_ours: bool },
}

struct Bucket {
    stage: Stage,
    /// Passed once the bucket is complete, and then once its copy is.
    passed: Event,
}

/// How a program exchanges numbers with those of the group's other ranks.
pub(super) enum Ranks {
    /// There are none, or it only evaluates.
    Alone,
    Host(Exchanges),
    Nccl(Collectives),
}

/// A program's part in the exchanges of its group. The fields are dropped in this order: sums end before their memory goes.
pub(super) struct Exchanges {
    buckets: Vec<Bucket>,
    /// Buckets whose sums have not begun, in the order of the sequence.
    waiting: VecDeque<usize>,
    /// Passed once the numbers of an exchange without a bucket are on the host.
    arrived: Event,
    copies: Stream,
    staging: Staging,
    group: Group,
    shards: usize,
}

impl Exchanges {
    /// For sequences of a plan that take `staging` bytes of the host's memory.
    pub fn new(gpu: &Gpu, group: Group, plan: &Plan, staging: usize) -> Result<Self, CudaError> {
        let bucket = |_| Ok(Bucket { stage: Stage::Done, passed: Event::new(&gpu.context)? });
        Ok(Exchanges {
            buckets: plan.buckets.iter().map(bucket).collect::<Result<_, CudaError>>()?,
            waiting: VecDeque::with_capacity(plan.buckets.len()),
            arrived: Event::new(&gpu.context)?,
            copies: Stream::new(&gpu.context)?,
            staging: Staging::new(gpu, staging)?,
            group,
            shards: plan.shards,
        })
    }

    /// Combines numbers before the work that follows in the stream.
    ///
    /// # Safety
    /// The exchange is bound to regions that live until the stream has run this.
    pub unsafe fn exchange(&mut self, exchange: &BoundExchange, compute: &Stream) -> Result<(), DeviceError> {
        // The sums of buckets that come before this in the sequence.
        self.begin_sums()?;
        // SAFETY: the caller's promise.
        let sent = unsafe { self.copy_to_host(exchange, compute) }?;
        self.arrived.record(compute)?;
        self.arrived.wait()?;
        let (to, bytes) = exchange.to;
        let received = match exchange.joins {
            Joins::Sum | Joins::Reduce => {
                // SAFETY: the range is this exchange's, and the GPU has copied to it.
                let numbers = unsafe { self.staging.floats(exchange.staging, sent) }?;
                let len = bytes / size_of::<f32>();
                self.group.all_reduce_shards(numbers, len, len, self.shards)?;
                exchange.staging
            }
            Joins::Broadcast => {
                // SAFETY: as above.
                let numbers = unsafe { self.staging.floats(exchange.staging, sent.max(bytes)) }?;
                self.group.broadcast(numbers, 0)?;
                exchange.staging
            }
            Joins::Gather { each } => {
                // SAFETY: as above.
                let (own, all) = unsafe {
                    let all = self.staging.floats(exchange.staging + each, bytes)?;
                    (self.staging.floats(exchange.staging, each)?, all)
                };
                self.group.all_gather(own, all)?;
                exchange.staging + each
            }
        };
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise; the next exchange through this memory first waits for the stream.
        Ok(unsafe { compute.write(self.staging.at(received, bytes)?, to, bytes) }?)
    }

    /// Begins to copy a bucket to the host.
    ///
    /// # Safety
    /// As for [`Exchanges::exchange`]; nothing touches the bucket before [`Exchanges::finish`].
    pub unsafe fn start(
        &mut self,
        number: usize,
        exchange: &BoundExchange,
        compute: &Stream,
    ) -> Result<(), DeviceError> {
        // A caller that repeats backward without the phases that follow it gives up the earlier sum.
        self.begin_sums()?;
        self.buckets[number].stage = Stage::Done;
        let passed = &self.buckets[number].passed;
        passed.record(compute)?;
        self.copies.wait_for(passed)?;
        // SAFETY: the caller's promise.
        unsafe { self.copy_to_host(exchange, &self.copies) }?;
        passed.record(&self.copies)?;
        let BoundExchange { staging, to: (_, bytes), joins, .. } = *exchange;
        self.buckets[number].stage = Stage::Copying { staging, bytes, joins };
        self.waiting.push_back(number);
        Ok(())
    }

    /// Lets the work that follows in the stream wait for the sum of a bucket, which goes to an address on the GPU.
    ///
    /// # Safety
    /// As for [`Exchanges::exchange`].
    pub unsafe fn finish(&mut self, number: usize, to: u64, compute: &Stream) -> Result<(), DeviceError> {
        self.begin_sums()?;
        let bucket = &mut self.buckets[number];
        if let Stage::Summing { sum, staging, bytes, is_ours } = std::mem::replace(&mut bucket.stage, Stage::Done) {
            sum.wait()?;
            if !is_ours {
                return Ok(());
            }
            // SAFETY: the caller's promise; the next step's copy to this memory is in the same stream.
            unsafe { self.copies.write(self.staging.at(staging, bytes)?, to, bytes) }?;
            bucket.passed.record(&self.copies)?;
            compute.wait_for(&bucket.passed)?;
        }
        Ok(())
    }

    /// Begins the sums of all buckets in the order in which they were started, each once the host has it.
    fn begin_sums(&mut self) -> Result<(), DeviceError> {
        while let Some(number) = self.waiting.pop_front() {
            let bucket = &mut self.buckets[number];
            let Stage::Copying { staging, bytes, joins } = bucket.stage else { continue };
            let group = &self.group;
            let shards = self.shards;
            let is_for_all = joins != Joins::Reduce;
            bucket.passed.wait()?;
            let numbers = self.staging.at(staging, bytes)?.cast::<f32>();
            let len = bytes / size_of::<f32>();
            // SAFETY: the range is the bucket's, with its partial sums one after another, and nothing touches it before the sum
            // has been waited for.
            let sum = unsafe {
                match is_for_all {
                    true => group.all_reduce_shards_start(numbers, len, len, shards),
                    false => group.reduce_shards_start(numbers, len, len, shards, 0),
                }
            };
            bucket.stage = Stage::Summing { sum, staging, bytes, is_ours: is_for_all || group.rank() == 0 };
        }
        Ok(())
    }

    /// Copies this rank's numbers to the host, and returns how many bytes they are.
    ///
    /// # Safety
    /// As for [`Exchanges::exchange`].
    unsafe fn copy_to_host(&self, exchange: &BoundExchange, stream: &Stream) -> Result<usize, CudaError> {
        let mut sent = 0;
        for &(from, bytes) in &exchange.from {
            // SAFETY: the caller's promise, and nothing else uses this part of the host's memory.
            unsafe { stream.read(from, self.staging.at(exchange.staging + sent, bytes)?, bytes) }?;
            sent += bytes;
        }
        Ok(sent)
    }
}

impl Drop for Exchanges {
    fn drop(&mut self) {
        // Copies in flight use the host's memory. An error has nobody to go to.
        let _ = self.copies.wait();
    }
}
