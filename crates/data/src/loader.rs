//! Batches of pictures, made ahead of use by the threads of a [`DecodePool`].
//!
//! One picture is one task. Only a few batches are being made at any time, so memory is bounded, and their buffers are
//! reused. The content of a batch depends on (seed, epoch, batch, shards) alone, not on the number of threads.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use enmasse_tensor::{HostMemory, SystemMemory};

use crate::batch::{Pending, Recycler};
use crate::pool::{Job, Scratch};
use crate::{
    Batch, DataError, Dataset, DecodePool, EpochOrder, EvalOrder, EvalTransform, Sampler, Sharding, TrainOrder,
    TrainTransform, Transform,
};

/// Training batches of the hosted shards: shuffled and augmented.
pub struct TrainLoader {
    order: TrainOrder,
    sharding: Sharding,
    transform: Arc<TrainTransform>,
    seed: u64,
    core: Core,
}

impl TrainLoader {
    /// A loader over `dataset` in enmasse's own order. `seed` decides order and augmentation. Fails if a setting is out
    /// of range, or if the data set is smaller than one global batch.
    pub fn new(
        pool: &DecodePool,
        dataset: Arc<dyn Dataset>,
        transform: TrainTransform,
        sharding: Sharding,
        seed: u64,
    ) -> Result<Self, DataError> {
        Self::with_sampler(pool, dataset, transform, sharding, seed, Sampler::Shuffle)
    }

    /// The same in the order of `sampler`.
    pub fn with_sampler(
        pool: &DecodePool,
        dataset: Arc<dyn Dataset>,
        transform: TrainTransform,
        sharding: Sharding,
        seed: u64,
        sampler: Sampler,
    ) -> Result<Self, DataError> {
        transform.check()?;
        let order = TrainOrder::with_sampler(sampler, seed, dataset.len(), &sharding)?;
        let core = Core::new(pool, dataset, sharding.hosted_batch(), transform.size());
        Ok(TrainLoader { order, sharding, transform: Arc::new(transform), seed, core })
    }

    /// Puts the batches into buffers from `memory`, which the device reads.
    pub fn in_memory(mut self, memory: Arc<dyn HostMemory>) -> Self {
        self.core.set_memory(memory);
        self
    }

    /// Batches per epoch, the same for every shard.
    pub fn batches(&self) -> usize {
        self.order.batches()
    }

    /// Batches left in an epoch after its first `consumed` samples, counted over all shards.
    pub fn batches_behind(&self, consumed: usize) -> usize {
        self.order.batches_behind(consumed)
    }

    /// Samples left out of each epoch, over all shards.
    pub fn dropped(&self) -> usize {
        self.order.dropped()
    }

    /// The batches of `epoch` after its first `consumed` samples, counted over all shards: 0, or the position of a
    /// resumed run.
    pub fn epoch(&self, epoch: u64, consumed: usize) -> Batches {
        let order = self.order.rest_of_epoch(epoch, consumed);
        let batches = order.batches();
        let samples = Samples::Train {
            order,
            sharding: self.sharding.clone(),
            transform: self.transform.clone(),
            seed: self.seed,
            epoch,
        };
        self.core.start(samples, batches)
    }
}

/// Evaluation batches of the hosted shards: in index order, each sample exactly once over all shards.
pub struct EvalLoader {
    order: EvalOrder,
    transform: Arc<EvalTransform>,
    core: Core,
}

impl EvalLoader {
    /// A loader over `dataset`. Fails if a setting is out of range.
    pub fn new(
        pool: &DecodePool,
        dataset: Arc<dyn Dataset>,
        transform: EvalTransform,
        sharding: Sharding,
    ) -> Result<Self, DataError> {
        transform.check()?;
        let order = EvalOrder::new(dataset.len(), sharding.clone())?;
        let core = Core::new(pool, dataset, sharding.hosted_batch(), transform.size);
        Ok(EvalLoader { order, transform: Arc::new(transform), core })
    }

    /// Puts the batches into buffers from `memory`, which the device reads.
    pub fn in_memory(mut self, memory: Arc<dyn HostMemory>) -> Self {
        self.core.set_memory(memory);
        self
    }

    /// One pass over the data.
    pub fn pass(&self) -> Batches {
        let samples = Samples::Eval { order: self.order.clone(), transform: self.transform.clone() };
        self.core.start(samples, self.order.batches())
    }
}

/// The part that both loaders share.
struct Core {
    pool: DecodePool,
    dataset: Arc<dyn Dataset>,
    batch: usize,
    size: usize,
    /// Number of batches being made at a time.
    ahead: usize,
    recycler: Arc<Recycler>,
}

impl Core {
    /// For batches of `batch` pictures of `size` × `size`.
    fn new(pool: &DecodePool, dataset: Arc<dyn Dataset>, batch: usize, size: usize) -> Self {
        // Enough tasks to keep every thread busy while the last pictures of a batch are finished, and one batch of
        // slack.
        let ahead = 1 + (2 * pool.threads()).div_ceil(batch).max(1);
        let recycler = Arc::new(Recycler::new(Arc::new(SystemMemory), batch, size * size * 3, ahead + 2));
        Core { pool: pool.clone(), dataset, batch, size, ahead, recycler }
    }

    fn set_memory(&mut self, memory: Arc<dyn HostMemory>) {
        self.recycler = Arc::new(Recycler::new(memory, self.batch, self.size * self.size * 3, self.ahead + 2));
    }

    fn start(&self, samples: Samples, end: usize) -> Batches {
        let source = Source { samples, dataset: self.dataset.clone(), size: self.size };
        let mut batches = Batches {
            pool: self.pool.clone(),
            source: Arc::new(source),
            recycler: self.recycler.clone(),
            cancelled: Arc::default(),
            under_way: VecDeque::with_capacity(self.ahead),
            next: 0,
            end,
            waited: Duration::ZERO,
        };
        for _ in 0..self.ahead {
            batches.submit_next();
        }
        batches
    }
}

/// An iterator over the batches of one epoch or pass. It ends after the first error. Dropping it early cancels the
/// remaining work.
pub struct Batches {
    pool: DecodePool,
    source: Arc<Source>,
    recycler: Arc<Recycler>,
    cancelled: Arc<AtomicBool>,
    /// Batches being made; an error stands for a batch without memory.
    under_way: VecDeque<Result<Arc<Pending>, DataError>>,
    next: usize,
    end: usize,
    waited: Duration,
}

impl Batches {
    /// Total time that [`next`](Iterator::next) has waited for pictures.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    fn submit_next(&mut self) {
        if self.next >= self.end {
            return;
        }
        let indices = self.source.samples.indices(self.next);
        self.next += 1;
        let pending = match Pending::new(&indices, &self.recycler) {
            Ok(pending) => Arc::new(pending),
            Err(error) => return self.under_way.push_back(Err(error)),
        };
        self.under_way.push_back(Ok(pending.clone()));
        let (source, tasks) = (self.source.clone(), indices.len());
        let run = Arc::new(move |task: usize, scratch: &mut Scratch| {
            let result = source.make(indices[task], scratch);
            pending.finish(task, result, scratch.canvas.picture().pixels());
        });
        self.pool.submit(Job { tasks, cancelled: self.cancelled.clone(), run });
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let pending = self.under_way.pop_front()?;
        self.submit_next();
        let began = Instant::now();
        let result = pending.and_then(|pending| pending.wait());
        self.waited += began.elapsed();
        if result.is_err() {
            self.cancelled.store(true, Ordering::Relaxed);
            self.under_way.clear();
            self.next = self.end;
        }
        Some(result)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.under_way.len() + self.end.saturating_sub(self.next);
        (0, Some(left))
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// The samples, and their processing.
enum Samples {
    Train { order: EpochOrder, sharding: Sharding, transform: Arc<TrainTransform>, seed: u64, epoch: u64 },
    Eval { order: EvalOrder, transform: Arc<EvalTransform> },
}

impl Samples {
    fn indices(&self, batch: usize) -> Vec<usize> {
        match self {
            Samples::Train { order, sharding, .. } => order.hosted(batch, sharding).to_vec(),
            Samples::Eval { order, .. } => order.indices(batch).collect(),
        }
    }
}

struct Source {
    samples: Samples,
    dataset: Arc<dyn Dataset>,
    size: usize,
}

impl Source {
    /// Reads and transforms one sample on `scratch.canvas`; returns its label. A panic in the data set or a transform
    /// becomes an error.
    fn make(&self, index: usize, scratch: &mut Scratch) -> Result<i32, DataError> {
        let result = catch_unwind(AssertUnwindSafe(|| self.try_make(index, scratch)));
        result.unwrap_or_else(|panic| {
            Err(DataError::Panicked { name: format!("sample {index}"), message: panic_message(&*panic) })
        })
    }

    fn try_make(&self, index: usize, scratch: &mut Scratch) -> Result<i32, DataError> {
        let canvas = &mut scratch.canvas;
        let picture = canvas.restart();
        self.dataset.read_into(index, picture)?;
        if picture.pixels().is_empty() {
            return Err(DataError::picture(self.dataset.name(index), "the picture has no pixels"));
        }
        match &self.samples {
            Samples::Train { transform, seed, epoch, .. } => {
                transform.apply(canvas, *seed, *epoch, index as u64);
            }
            Samples::Eval { transform, .. } => transform.show(canvas),
        }
        let (width, height) = (canvas.picture().width(), canvas.picture().height());
        if (width, height) != (self.size, self.size) {
            let problem = format!("the transforms leave {width}x{height} pixels instead of {0}x{0}", self.size);
            return Err(DataError::picture(self.dataset.name(index), problem));
        }
        let label = self.dataset.label(index);
        i32::try_from(label)
            .map_err(|_| DataError::picture(self.dataset.name(index), format!("its label {label} is too large")))
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
    text.and_then(|text| text.lines().next()).unwrap_or("no message").to_owned()
}
