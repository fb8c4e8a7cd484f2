//! Batches of images, made ahead of use by the threads of a [`DecodePool`].
//!
//! One image is one task. Only a few batches are being made at any time, so memory is bounded, and their buffers are
//! reused. The content of a batch depends on (seed, epoch, batch, shards) and the files alone, not on the number of
//! threads: the substitute of a sample that is skipped is the next one in the order of the epoch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use enmasse_image::{EvalCrop, EvalTransform, TrainTransform, Transform};
use enmasse_remote::{Ahead, Turns};
use enmasse_tensor::{HostMemory, SystemMemory};

use crate::batch::{Pending, Recycler};
use crate::pool::{Job, ThreadBuffers};
use crate::source::{Samples, Source};
use crate::{Batch, DataError, Dataset, DecodePool, EpochOrder, EvalOrder, Sampler, Sharding, TrainOrder};

/// Bytes that a loader of data on servers fetches ahead at a time, besides its batches.
pub const AHEAD_BYTES: usize = Ahead::BYTES as usize;

/// Training batches of the local shards: shuffled and augmented.
pub struct TrainLoader {
    order: TrainOrder,
    sharding: Sharding,
    transform: Arc<TrainTransform>,
    seed: u64,
    unites: bool,
    core: Core,
}

impl TrainLoader {
    /// A loader over `dataset` in enmasse's own order. `seed` decides order and augmentation.
    ///
    /// # Errors
    /// A setting is out of range, or the data set is empty.
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
    ///
    /// # Errors
    /// Those of [`new`](Self::new), or the data set does not have what the sampler needs: [`TrainOrder::of`].
    pub fn with_sampler(
        pool: &DecodePool,
        dataset: Arc<dyn Dataset>,
        transform: TrainTransform,
        sharding: Sharding,
        seed: u64,
        sampler: Sampler,
    ) -> Result<Self, DataError> {
        transform.check()?;
        let order = TrainOrder::of(dataset.as_ref(), sampler, seed, &sharding)?;
        let mixed = transform.mixing().is_some();
        if mixed && sharding.global_batch() < 2 {
            return Err(DataError::Setting(
                "a global batch of one image has none to mix it with: use a larger batch, or no mixup and cutmix"
                    .to_owned(),
            ));
        }
        let core = Core::new(pool, dataset, sharding.local_batch(), transform.size(), mixed);
        Ok(TrainLoader { order, sharding, transform: Arc::new(transform), seed, unites: false, core })
    }

    /// Whether an epoch leaves out its last global batch if that is not full. Otherwise the places of that batch that have no sample
    /// show the images that follow, which are the first of the epoch: see [`Batch::loss_weight`].
    ///
    /// # Errors
    /// `drops` is set, and an epoch has no full batch.
    pub fn drop_last(self, drops: bool) -> Result<Self, DataError> {
        Ok(TrainLoader { order: self.order.drop_last(drops)?, ..self })
    }

    /// Also takes `count` values to predict of each sample ([`Dataset::targets`]); 0 for none.
    pub fn with_targets(mut self, count: usize) -> Self {
        self.core.set_values(count);
        self
    }

    /// Whether a mixed image has each value of both its samples, such as labels that are there: the larger one. Otherwise values are mixed
    /// in the shares of the images.
    pub fn unite_targets(self, unites: bool) -> Self {
        TrainLoader { unites, ..self }
    }

    /// Puts the batches into buffers from `memory`, which the device reads.
    pub fn in_memory(mut self, memory: Arc<dyn HostMemory>) -> Self {
        self.core.set_memory(memory);
        self
    }

    /// Whether a sample that cannot be read ([`DataError::is_unreadable`]) is skipped instead of being an error. The next
    /// readable sample in the order of the epoch takes its place, with its own label, so that batches keep their shape.
    /// The first sample follows the last one. A hundred unreadable samples in a row are an error.
    pub fn skip_unreadable(mut self, skips: bool) -> Self {
        self.core.skips = skips;
        self
    }

    /// Batches per epoch, the same for every shard.
    pub fn batches(&self) -> usize {
        self.order.batches()
    }

    /// The order of its samples.
    pub fn order(&self) -> &TrainOrder {
        &self.order
    }

    /// Bytes of the batches that exist at a time.
    pub fn batch_bytes(&self) -> usize {
        self.core.batch_bytes(self.batches())
    }

    /// Samples left out of each epoch, over all shards.
    pub fn dropped(&self) -> usize {
        self.order.dropped()
    }

    /// The batches of `epoch` after its first `consumed` samples, counted over all shards: 0, or the position of a
    /// resumed run.
    pub fn epoch(&self, epoch: u64, consumed: usize) -> Batches {
        self.epoch_in(epoch, self.order.rest_of_epoch(epoch, consumed))
    }

    /// The batches of `epoch` in this order.
    pub fn epoch_in(&self, epoch: u64, order: EpochOrder) -> Batches {
        let batches = order.batches();
        let samples = Samples::Train {
            order,
            sharding: self.sharding.clone(),
            transform: self.transform.clone(),
            seed: self.seed,
            epoch,
            unites: self.unites,
        };
        self.core.start(samples, batches)
    }
}

/// Evaluation batches of the local shards: in index order, each sample exactly once over all shards.
pub struct EvalLoader {
    order: EvalOrder,
    transform: Arc<EvalTransform>,
    crops: Arc<[EvalCrop]>,
    core: Core,
}

impl EvalLoader {
    /// A loader over `dataset`.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(
        pool: &DecodePool,
        dataset: Arc<dyn Dataset>,
        transform: EvalTransform,
        sharding: Sharding,
    ) -> Result<Self, DataError> {
        transform.check()?;
        let order = EvalOrder::new(dataset.len(), sharding.clone())?;
        let core = Core::new(pool, dataset, sharding.local_batch(), transform.size, false);
        Ok(EvalLoader { order, transform: Arc::new(transform), crops: [EvalCrop::CENTER].into(), core })
    }

    /// Takes these crops instead of the middle alone: a pass has each batch once for each of them, in turn.
    ///
    /// # Errors
    /// There are none, or the transform resizes to less than a crop.
    pub fn cropped(mut self, crops: &[EvalCrop]) -> Result<Self, DataError> {
        if crops.is_empty() {
            return Err(DataError::Setting("there must be a crop at least".to_owned()));
        }
        crops.iter().try_for_each(|crop| self.transform.check_crop(*crop))?;
        self.crops = crops.into();
        Ok(self)
    }

    /// Evaluates only so many batches, of images that are evenly spaced over the data set.
    pub fn limited(self, batches: usize) -> Self {
        EvalLoader { order: self.order.limited(batches), ..self }
    }

    /// Number of images of a pass, over all shards.
    pub fn samples(&self) -> usize {
        self.order.taken()
    }

    /// Number of crops of each image.
    pub fn crops(&self) -> usize {
        self.crops.len()
    }

    /// The part of each crop in the mean of their logits, relative to the others.
    pub fn weights(&self) -> Vec<f64> {
        self.crops.iter().map(EvalCrop::weight).collect()
    }

    /// Also takes `count` values to predict of each sample ([`Dataset::targets`]); 0 for none.
    pub fn with_targets(mut self, count: usize) -> Self {
        self.core.set_values(count);
        self
    }

    /// Puts the batches into buffers from `memory`, which the device reads.
    pub fn in_memory(mut self, memory: Arc<dyn HostMemory>) -> Self {
        self.core.set_memory(memory);
        self
    }

    /// Whether a sample that cannot be read ([`DataError::is_unreadable`]) is left out instead of being an error. Its
    /// batch then has a sample less.
    pub fn skip_unreadable(mut self, skips: bool) -> Self {
        self.core.skips = skips;
        self
    }

    /// Number of batches of a pass.
    pub fn batches(&self) -> usize {
        self.order.batches() * self.crops.len()
    }

    /// Bytes of the batches that exist at a time.
    pub fn batch_bytes(&self) -> usize {
        self.core.batch_bytes(self.batches())
    }

    /// One pass over the data.
    pub fn pass(&self) -> Batches {
        let order = self.order.clone();
        let transform = self.transform.clone();
        let crops = self.crops.clone();
        self.core.start(Samples::Eval { order, transform, crops }, self.batches())
    }
}

/// The part that both loaders share.
struct Core {
    pool: DecodePool,
    dataset: Arc<dyn Dataset>,
    batch: usize,
    size: usize,
    /// Whether images are mixed in pairs.
    mixed: bool,
    /// Number of a sample's values to predict.
    values: usize,
    memory: Arc<dyn HostMemory>,
    /// Number of batches being made at a time.
    ahead: usize,
    /// Whether unreadable samples are skipped.
    skips: bool,
    recycler: Arc<Recycler>,
}

impl Core {
    /// For batches of `batch` images of `size` × `size`, which may be mixed.
    fn new(pool: &DecodePool, dataset: Arc<dyn Dataset>, batch: usize, size: usize, mixed: bool) -> Self {
        let tasks = if mixed { batch.div_ceil(2) } else { batch };
        // Enough tasks to keep every thread busy while the last images of a batch are finished, and one batch of
        // slack.
        let ahead = 1 + (2 * pool.threads()).div_ceil(tasks).max(1);
        let memory: Arc<dyn HostMemory> = Arc::new(SystemMemory);
        let recycler = Arc::new(Recycler::new(memory.clone(), batch, size * size * 3, mixed, 0, ahead + 2));
        Core { pool: pool.clone(), dataset, batch, size, mixed, values: 0, memory, ahead, skips: false, recycler }
    }

    fn set_memory(&mut self, memory: Arc<dyn HostMemory>) {
        self.memory = memory;
        self.renew();
    }

    fn set_values(&mut self, count: usize) {
        self.values = count;
        self.renew();
    }

    /// Begins anew with the memory of batches, after a change of what they hold.
    fn renew(&mut self) {
        let memory = self.memory.clone();
        let image = self.size * self.size * 3;
        let recycler = Recycler::new(memory, self.batch, image, self.mixed, self.values, self.ahead + 2);
        self.recycler = Arc::new(recycler);
    }

    /// Bytes of the batches that exist at a time in a pass over `batches`: those being made, one that is handed over, and one
    /// that a program holds.
    fn batch_bytes(&self, batches: usize) -> usize {
        batches.min(self.ahead + 2).saturating_mul(self.recycler.resident_bytes())
    }

    fn start(&self, samples: Samples, end: usize) -> Batches {
        let dataset = self.dataset.clone();
        let values = self.values;
        let source = Source { samples, dataset, size: self.size, values, skips: self.skips };
        let source = Arc::new(source);
        let is_remote = self.dataset.locality().is_some_and(|locality| locality.is_remote());
        let ahead = is_remote.then(|| Ahead::start(source.clone().needs(end)));
        let mut batches = Batches {
            pool: self.pool.clone(),
            source,
            ahead,
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
    /// Fetches what the next samples need, if they lie on servers.
    ahead: Option<Ahead>,
    recycler: Arc<Recycler>,
    cancelled: Arc<AtomicBool>,
    /// Batches being made; an error stands for a batch without memory.
    under_way: VecDeque<Result<Arc<Pending>, DataError>>,
    next: usize,
    end: usize,
    waited: Duration,
}

impl Batches {
    /// Total time that [`next`](Iterator::next) has taken. It waits for images, and does hardly anything else.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    fn submit_next(&mut self) {
        if self.next >= self.end {
            return;
        }
        let samples = &self.source.samples;
        let (places, tasks) = (samples.places(self.next), samples.tasks(self.next));
        let loss_weight = samples.loss_weight(self.next);
        self.next += 1;
        let pending = match Pending::new(places, loss_weight, &self.recycler) {
            Ok(pending) => Arc::new(pending),
            Err(error) => return self.under_way.push_back(Err(error)),
        };
        self.under_way.push_back(Ok(pending.clone()));
        let source = self.source.clone();
        let count = tasks.len();
        let turns = self.ahead.as_ref().map(Ahead::turns);
        let run = Arc::new(move |task: usize, scratch: &mut ThreadBuffers| {
            turns.iter().for_each(Turns::advance);
            source.run(&tasks[task], scratch, &pending);
        });
        self.pool.submit(Job { tasks: count, cancelled: self.cancelled.clone(), run });
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let began = Instant::now();
        let pending = self.under_way.pop_front()?;
        self.submit_next();
        let timeout = self.pool.longest_wait();
        let result = pending
            .and_then(|pending| pending.wait(timeout).unwrap_or_else(|place| Err(self.source.stalled(place, timeout))));
        self.waited += began.elapsed();
        if result.is_err() {
            self.cancelled.store(true, Ordering::Relaxed);
            self.ahead = None;
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
