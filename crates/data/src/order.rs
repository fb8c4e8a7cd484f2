//! Which samples make up which batch: pure functions of (seed, epoch), never of the number of ranks.
//!
//! A *global batch* is cut into shards: shard s of S is its s-th contiguous piece.

use std::ops::Range;

use enmasse_tensor::RandomStream;

use crate::DataError;

/// Which piece of each global batch is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// The shard, in `0..shards`.
    pub shard: usize,
    /// Number of shards that a global batch is cut into.
    pub shards: usize,
    /// Samples per shard.
    pub batch: usize,
}

impl Sharding {
    /// Samples per global batch.
    pub fn global_batch(&self) -> usize {
        self.shards * self.batch
    }

    /// Fails where a number is zero or out of range.
    pub fn check(&self) -> Result<(), DataError> {
        let Sharding { shard, shards, batch } = *self;
        if batch == 0 || shards == 0 {
            return Err(DataError::Setting(format!(
                "{shards} shards of {batch} samples make no batch; both must be at least 1"
            )));
        }
        if shard >= shards {
            return Err(DataError::Setting(format!(
                "shard {shard} does not exist: there are {shards}, counted from 0"
            )));
        }
        if shards.checked_mul(batch).is_none() {
            return Err(DataError::Setting(format!("a global batch of {shards} x {batch} samples is too large")));
        }
        Ok(())
    }
}

/// The order of training samples. The epoch is an argument of [`epoch`](TrainOrder::epoch): it cannot be forgotten.
///
/// ```
/// use enmasse_data::TrainOrder;
/// let order = TrainOrder::new(7, 10, 4)?;
/// assert_eq!((order.batches(), order.dropped()), (2, 2));
/// assert_eq!(order.epoch(3).global_batch(1), order.epoch(3).global_batch(1));
/// assert_ne!(order.epoch(3).global_batch(1), order.epoch(4).global_batch(1));
/// # Ok::<(), enmasse_data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TrainOrder {
    seed: u64,
    samples: usize,
    global_batch: usize,
}

impl TrainOrder {
    /// The order of `samples` samples in global batches of `global_batch`; at least one must fit.
    pub fn new(seed: u64, samples: usize, global_batch: usize) -> Result<Self, DataError> {
        if global_batch == 0 || samples < global_batch {
            return Err(DataError::TooFewSamples { samples, global_batch, shards: 1, batch: global_batch });
        }
        Ok(TrainOrder { seed, samples, global_batch })
    }

    /// Global batches per epoch; the last incomplete one is left out.
    pub fn batches(&self) -> usize {
        self.samples / self.global_batch
    }

    /// Samples that an epoch leaves out: those of the last incomplete global batch, others in each epoch.
    pub fn dropped(&self) -> usize {
        self.samples % self.global_batch
    }

    /// The order of `epoch`.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        self.rest_of_epoch(epoch, 0)
    }

    /// The order of what is left of `epoch` when its first `consumed` samples are done, whatever the global batch they were
    /// done in: a resumed run repeats no sample and leaves none out but the last incomplete global batch.
    pub fn rest_of_epoch(&self, epoch: u64, consumed: usize) -> EpochOrder {
        let mut indices = RandomStream::new(self.seed, "sample order", epoch, 0).permutation(self.samples);
        indices.drain(..consumed.min(self.samples));
        EpochOrder { indices, global_batch: self.global_batch }
    }
}

/// The order of one epoch, or of the rest of one: a permutation of the samples, or the end of it.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    indices: Vec<usize>,
    global_batch: usize,
}

impl EpochOrder {
    /// Complete global batches in it.
    pub fn batches(&self) -> usize {
        self.indices.len() / self.global_batch
    }

    /// The sample indices of global batch `batch`; empty past the last complete one.
    pub fn global_batch(&self, batch: usize) -> &[usize] {
        self.indices.chunks_exact(self.global_batch).nth(batch).unwrap_or(&[])
    }

    /// Shard `shard` of `shards` of that batch: its piece of `global_batch / shards` samples.
    pub fn shard(&self, batch: usize, shard: usize, shards: usize) -> &[usize] {
        let all = self.global_batch(batch);
        all.chunks_exact((all.len() / shards.max(1)).max(1)).nth(shard).unwrap_or(&[])
    }
}

/// The order of evaluation: by index, every sample exactly once over all shards. Each shard has the same number of batches;
/// the last may be short or empty on some.
#[derive(Clone, Copy, Debug)]
pub struct EvalOrder {
    samples: usize,
    sharding: Sharding,
}

impl EvalOrder {
    /// The order of `samples` samples for one shard.
    pub fn new(samples: usize, sharding: Sharding) -> Result<Self, DataError> {
        sharding.check()?;
        Ok(EvalOrder { samples, sharding })
    }

    /// Batches that every shard yields.
    pub fn batches(&self) -> usize {
        self.samples.div_ceil(self.sharding.global_batch())
    }

    /// The sample indices of this shard in global batch `batch`; fewer than a full batch, down to none, at the end.
    pub fn indices(&self, batch: usize) -> Range<usize> {
        let Sharding { shard, batch: size, .. } = self.sharding;
        let start = (batch * self.sharding.global_batch() + shard * size).min(self.samples);
        start..(start + size).min(self.samples)
    }
}
