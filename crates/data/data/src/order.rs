//! Which samples form which batch: pure functions of (seed, epoch), independent of the number of
//! ranks. A position in an epoch is the state of a run.
//!
//! A *global batch* is cut into shards: shard s of S is its s-th contiguous piece.

use std::ops::Range;

use enmasse_tensor::RandomStream;

use crate::blocks::Blocks;
use crate::mt19937::{RANDPERM_END, torch_randperm};
use crate::places::Places;
use crate::resampled::{Classes, ORDER, draws, numbered};
use crate::{DataError, Dataset};

/// The pieces of each global batch that a loader serves: those of the shards that its program hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// The local shards, a non-empty part of `0..shards`.
    pub local: Range<usize>,
    /// Number of shards into which a global batch is cut.
    pub shards: usize,
    /// Samples per shard.
    pub batch: usize,
}

impl Sharding {
    /// One local shard of `shards`.
    pub fn one(shard: usize, shards: usize, batch: usize) -> Self {
        Sharding { local: shard..shard.saturating_add(1), shards, batch }
    }

    /// Samples per global batch.
    pub fn global_batch(&self) -> usize {
        self.shards * self.batch
    }

    /// Samples of each global batch that belong to local shards.
    pub fn local_batch(&self) -> usize {
        self.local.len() * self.batch
    }

    /// The place of the hosted samples in a global batch.
    pub(crate) fn local_samples(&self) -> Range<usize> {
        self.local.start.saturating_mul(self.batch)..self.local.end.saturating_mul(self.batch)
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// A number is zero or out of range.
    pub fn check(&self) -> Result<(), DataError> {
        let Sharding { local, shards, batch } = self;
        if *batch == 0 || *shards == 0 {
            return Err(DataError::Setting(format!(
                "{shards} shards of {batch} samples make no batch; both must be at least 1"
            )));
        }
        if local.is_empty() {
            return Err(DataError::Setting(format!("none of {shards} shards is hosted; at least one must be")));
        }
        if local.end > *shards {
            let last = local.end - 1;
            return Err(DataError::Setting(format!("shard {last} does not exist: there are {shards}, counted from 0")));
        }
        if shards.checked_mul(*batch).is_none() {
            return Err(DataError::Setting(format!("a global batch of {shards} x {batch} samples is too large")));
        }
        Ok(())
    }
}

/// Whose order of training samples is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampler {
    /// enmasse's own: one permutation of all samples per (seed, epoch), independent of the number of shards.
    #[default]
    Shuffle,
    /// enmasse's own for data that are fast to read in the order in which they lie: the blocks of the data set
    /// ([`Locality::blocks`](crate::Locality::blocks)) in random order, and the samples of each few of them shuffled among each other. Each sample comes
    /// once in an epoch, whatever the number of shards.
    Blocks,
    /// PyTorch's: `DistributedSampler(shuffle=True, seed=seed, drop_last=drop_last)` with `set_epoch`, one replica per shard, and a
    /// `BatchSampler` ([`TrainOrder::drop_last`]). Shard s takes every n-th sample of a permutation that depends on seed + epoch.
    Distributed {
        /// Whether samples that do not divide evenly over the shards are left out; otherwise the first ones are
        /// repeated.
        drop_last: bool,
    },
    /// enmasse's own, with as many entries in an epoch as there are samples, but not each once. A sample returns only after all
    /// others (of its class) have had their turn, within an epoch and over epochs. Each occurrence in an epoch is augmented by
    /// random numbers of its own.
    Resampled {
        /// Whether each class is sampled equally often: small classes repeat their samples, large ones leave some to later epochs.
        balanced: bool,
        /// How often a sample is repeated in a row, at least 1, on as many shards as there are: torchvision's `RASampler`
        /// ("repeated augmentation"; Hoffer et al., "Augment your batch", 2020). An epoch has that many times fewer different
        /// samples, and as many epochs together have all.
        repeats: usize,
    },
}

/// The order of training samples. The epoch is an argument of [`epoch`](TrainOrder::epoch), so it cannot be forgotten.
///
/// ```
/// use enmasse_data::TrainOrder;
/// let order = TrainOrder::new(7, 10, 4)?;
/// assert_eq!((order.batches(), order.epoch(3).global_batch(2).len()), (3, 2));
/// assert_eq!(order.epoch(3).global_batch(1), order.epoch(3).global_batch(1));
/// assert_ne!(order.epoch(3).global_batch(1), order.epoch(4).global_batch(1));
/// let order = order.drop_last(true)?;
/// assert_eq!((order.batches(), order.dropped()), (2, 2));
/// # Ok::<(), enmasse_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrainOrder {
    sampler: Sampler,
    parts: Parts,
    seed: u64,
    samples: usize,
    /// Entries of an epoch: the samples, and the repeated ones.
    entries: usize,
    shards: usize,
    global_batch: usize,
    drops_last: bool,
}

/// What an order knows of its data set.
#[derive(Clone, Debug)]
enum Parts {
    /// The number of its samples alone.
    None,
    /// For a balanced order.
    Classes(Classes),
    /// For an order of blocks.
    Blocks(Blocks),
}

impl TrainOrder {
    /// enmasse's order of `samples` samples, at least one, in global batches of `global_batch`.
    ///
    /// # Errors
    /// `global_batch` is zero, or there is no sample, or 2^32 of them.
    pub fn new(seed: u64, samples: usize, global_batch: usize) -> Result<Self, DataError> {
        Self::with_sampler(Sampler::Shuffle, seed, samples, &Sharding::one(0, 1, global_batch))
    }

    /// The order of `sampler` for `samples` samples, at least one. It is the same for every shard.
    ///
    /// # Errors
    /// A number of the sampler or of `sharding` is zero or out of range, or an epoch would have no sample. A balanced
    /// order needs labels, and one of blocks these: only [`TrainOrder::of`] makes them.
    pub fn with_sampler(sampler: Sampler, seed: u64, samples: usize, sharding: &Sharding) -> Result<Self, DataError> {
        match sampler {
            Sampler::Resampled { balanced: true, .. } => {
                Err(DataError::Setting("an order of balanced classes needs the labels of a data set".to_owned()))
            }
            Sampler::Blocks => Err(DataError::Setting("an order of blocks needs the blocks of a data set".to_owned())),
            _ => Self::with_parts(sampler, Parts::None, seed, samples, sharding),
        }
    }

    /// The order of `sampler` for the samples of `dataset`.
    ///
    /// # Errors
    /// A number of the sampler or of `sharding` is zero or out of range, or an epoch would have no sample. Or the order
    /// is one of blocks, and those of the data set are missing or do not add up to its samples.
    pub fn of(dataset: &dyn Dataset, sampler: Sampler, seed: u64, sharding: &Sharding) -> Result<Self, DataError> {
        let parts = match sampler {
            Sampler::Resampled { balanced: true, .. } => Parts::Classes(Classes::of(dataset)),
            Sampler::Blocks => Parts::Blocks(Blocks::of(dataset)?),
            Sampler::Shuffle | Sampler::Distributed { .. } | Sampler::Resampled { .. } => Parts::None,
        };
        Self::with_parts(sampler, parts, seed, dataset.len(), sharding)
    }

    fn with_parts(
        sampler: Sampler,
        parts: Parts,
        seed: u64,
        samples: usize,
        sharding: &Sharding,
    ) -> Result<Self, DataError> {
        sharding.check()?;
        let shards = sharding.shards;
        let entries = match sampler {
            Sampler::Resampled { repeats: 0, .. } => {
                return Err(DataError::Setting("a sample is repeated at least once".to_owned()));
            }
            Sampler::Shuffle | Sampler::Blocks | Sampler::Resampled { .. } if u32::try_from(samples).is_err() => {
                return Err(DataError::Setting(format!(
                    "{samples} samples are too many: an order has fewer than 2^32"
                )));
            }
            Sampler::Shuffle | Sampler::Blocks | Sampler::Resampled { .. } => samples,
            Sampler::Distributed { .. } if samples.max(shards) >= RANDPERM_END => {
                return Err(DataError::Setting(format!(
                    "PyTorch's order of {samples} samples over {shards} shards: it is known for fewer than {RANDPERM_END} of each"
                )));
            }
            Sampler::Distributed { drop_last: true } => samples / shards * shards,
            Sampler::Distributed { drop_last: false } => samples.next_multiple_of(shards),
        };
        if entries == 0 {
            return Err(DataError::NoSamples { samples, shards });
        }
        let global_batch = sharding.global_batch();
        Ok(TrainOrder { sampler, parts, seed, samples, entries, shards, global_batch, drops_last: false })
    }

    /// Whether an epoch leaves out its last global batch if that is not full, as PyTorch's `drop_last`.
    ///
    /// # Errors
    /// `drops` is set, and an epoch has no full batch.
    pub fn drop_last(self, drops: bool) -> Result<Self, DataError> {
        let TrainOrder { samples, shards, global_batch, .. } = self;
        match drops && self.entries < global_batch {
            true => Err(DataError::TooFewSamples { samples, global_batch, shards, batch: global_batch / shards }),
            false => Ok(TrainOrder { drops_last: drops, ..self }),
        }
    }

    /// Global batches per epoch.
    pub fn batches(&self) -> usize {
        self.batches_after(0)
    }

    /// Global batches left in an epoch after its first `consumed` entries.
    pub fn batches_after(&self, consumed: usize) -> usize {
        self.entries_after(consumed).div_ceil(self.global_batch)
    }

    /// The entries that these batches have.
    pub fn entries_after(&self, consumed: usize) -> usize {
        self.in_batches(self.entries.saturating_sub(consumed))
    }

    /// How many of the last entries of an epoch have a place in a batch.
    fn in_batches(&self, rest: usize) -> usize {
        if self.drops_last { rest - rest % self.global_batch } else { rest }
    }

    /// Samples that an epoch leaves out; they differ between epochs.
    pub fn dropped(&self) -> usize {
        self.samples.saturating_sub(self.entries_after(0))
    }

    /// The order of `epoch`.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        self.rest_of_epoch(epoch, 0)
    }

    /// The order of the rest of `epoch` after its first `consumed` entries, whatever the size of their global batches.
    /// A resumed run repeats no sample and leaves out none that [`drop_last`](Self::drop_last) does not (apart from samples that
    /// [`Sampler::Distributed`] repeats).
    pub fn rest_of_epoch(&self, epoch: u64, consumed: usize) -> EpochOrder {
        let entries = match (self.sampler, &self.parts) {
            (Sampler::Resampled { repeats, .. }, Parts::Classes(classes)) => {
                Entries::Draws(draws(self.seed, epoch, self.samples, Some(classes), repeats))
            }
            (Sampler::Resampled { repeats, .. }, _) => {
                Entries::Draws(draws(self.seed, epoch, self.samples, None, repeats))
            }
            (Sampler::Distributed { .. }, _) => {
                let mut indices = torch_randperm(self.samples, self.seed.wrapping_add(epoch));
                indices.truncate(self.entries);
                for entry in indices.len()..self.entries {
                    indices.push(indices[entry - self.samples]);
                }
                Entries::Samples(indices)
            }
            (_, Parts::Blocks(blocks)) => Entries::Samples(blocks.order(self.seed, epoch)),
            (Sampler::Shuffle | Sampler::Blocks, _) => {
                Entries::Samples(RandomStream::new(self.seed, ORDER, epoch, 0).permutation(self.samples))
            }
        };
        let repeats = match self.sampler {
            Sampler::Resampled { repeats, .. } => repeats,
            Sampler::Shuffle | Sampler::Blocks | Sampler::Distributed { .. } => 1,
        };
        let stride = match self.sampler {
            Sampler::Shuffle | Sampler::Blocks | Sampler::Resampled { repeats: 1, .. } => 1,
            // So that repetitions of a sample are on different shards, as torchvision's are on different ranks.
            Sampler::Distributed { .. } | Sampler::Resampled { .. } => self.shards,
        };
        self.after(entries, consumed, stride, repeats)
    }

    /// The rest of `epoch` after its first `consumed` entries in an order of the program's own: indices of samples, which may repeat, or
    /// be left out. Each occurrence in the epoch is augmented by random numbers of its own. The sampler does not matter then.
    ///
    /// # Errors
    /// The order is empty, has an index out of range, or fewer entries than are consumed, or than a batch that must be full.
    pub fn own(&self, epoch: u64, order: Vec<usize>, consumed: usize) -> Result<EpochOrder, DataError> {
        let samples = self.samples;
        let entries = order.len();
        let global_batch = self.global_batch;
        let problem = if let Some(index) = order.iter().find(|index| **index >= samples) {
            format!("has the sample {index}, but there are {samples}, counted from 0")
        } else if order.is_empty() {
            "has no sample".to_owned()
        } else if entries < consumed {
            format!("has {entries} samples, but {consumed} of it are done: resume the run with the same order")
        } else if self.drops_last && entries < global_batch {
            format!(
                "has {entries} samples, fewer than one global batch of {global_batch}, and drop_last leaves that out"
            )
        } else {
            return Ok(self.after(Entries::Draws(numbered(samples, order.into_iter())), consumed, 1, 1));
        };
        Err(DataError::Setting(format!("the program's own order of epoch {} {problem}", epoch + 1)))
    }

    /// The rest of an epoch with these entries.
    fn after(&self, entries: Entries, consumed: usize, stride: usize, repeats: usize) -> EpochOrder {
        let consumed = consumed.min(entries.count());
        let end = consumed + self.in_batches(entries.count() - consumed);
        let samples = self.samples;
        let shards = self.shards;
        let global_batch = self.global_batch;
        EpochOrder { entries, samples, consumed, end, shards, stride, repeats, global_batch }
    }
}

/// The order of one epoch, or of its rest.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    entries: Entries,
    samples: usize,
    /// The entries that are done.
    consumed: usize,
    /// The entries before the end of the last batch.
    end: usize,
    shards: usize,
    /// The distance in the epoch of samples that are neighbours in a shard.
    stride: usize,
    /// How often a sample is repeated in a row.
    repeats: usize,
    global_batch: usize,
}

/// The entries of a whole epoch, in the sampler's order.
#[derive(Clone, Debug)]
enum Entries {
    /// Samples: an epoch of millions begins at once because these are few bytes.
    Samples(Vec<u32>),
    /// Draws: draw d is an occurrence of sample d % samples.
    Draws(Vec<usize>),
}

impl Entries {
    fn count(&self) -> usize {
        match self {
            Entries::Samples(samples) => samples.len(),
            Entries::Draws(draws) => draws.len(),
        }
    }
}

impl EpochOrder {
    /// Number of global batches.
    pub fn batches(&self) -> usize {
        self.remaining().div_ceil(self.global_batch)
    }

    /// The samples of these batches.
    pub fn remaining(&self) -> usize {
        self.end - self.consumed
    }

    /// The same order with at most so many global batches.
    pub fn first_batches(mut self, batches: usize) -> Self {
        self.end = self.end.min(self.first(batches));
        self
    }

    /// Samples of global batch `batch`: as many as it has places, but for the last one; 0 past that.
    pub fn samples_of(&self, batch: usize) -> usize {
        self.end.saturating_sub(self.first(batch)).min(self.global_batch)
    }

    /// The sample indices of global batch `batch`, in the order of their places; empty past the last one.
    pub fn global_batch(&self, batch: usize) -> Vec<usize> {
        self.entries_of(self.positions(batch, 0..self.global_batch))
    }

    /// The part of that batch that belongs to the local shards of `sharding`, shard after shard.
    pub fn local(&self, batch: usize, sharding: &Sharding) -> Vec<usize> {
        self.entries_of(self.local_positions(batch, sharding))
    }

    /// The positions of the places of that part. Those from [`entries`](Self::entries) on are of places without a sample.
    pub(crate) fn local_positions(&self, batch: usize, sharding: &Sharding) -> impl Iterator<Item = usize> {
        self.positions(batch, sharding.local_samples())
    }

    /// The position of a place of a global batch; `None` past the last one.
    pub(crate) fn position(&self, batch: usize, place: usize) -> Option<usize> {
        self.positions(batch, place..place + 1).next()
    }

    /// The place in a global batch with whose sample that of `place` is mixed. Neighbours are pairs: places 0 and 1, 2 and 3,
    /// of those that have a sample. A last one without a neighbour stays as it is. N repetitions of a sample follow each other, so then
    /// pairs are N places apart. This is a function of the batch's size and the sampler, so neither shards nor ranks change it. A
    /// shard of a full batch has all partners of its samples if its size is a multiple of 2 N.
    pub fn partner(&self, batch: usize, place: usize) -> Option<usize> {
        let places = self.places(batch);
        let number = places.number(place).ok()?;
        let block = 2 * self.repeats;
        let first = number - number % block;
        let half = (places.samples - first).min(block) / 2;
        let partner = match number - first {
            offset if offset < half => number + half,
            offset if offset < 2 * half => number - half,
            _ => return None,
        };
        Some(places.place(partner))
    }

    /// The sample at a position of the epoch. The first position follows the last one.
    fn entry(&self, position: usize) -> usize {
        self.sample(self.draw(position))
    }

    /// The draw at that position, which is a sample's index unless the epoch has the sample more than once. Later occurrences
    /// have other numbers.
    pub(crate) fn draw(&self, position: usize) -> usize {
        let position = position % self.entries();
        match &self.entries {
            Entries::Samples(samples) => samples[position] as usize,
            Entries::Draws(draws) => draws[position],
        }
    }

    /// The sample of a draw.
    pub(crate) fn sample(&self, draw: usize) -> usize {
        draw % self.samples
    }

    /// Number of entries of the whole epoch.
    pub(crate) fn entries(&self) -> usize {
        self.entries.count()
    }

    /// The samples of positions, without those of places that have none.
    fn entries_of(&self, positions: impl Iterator<Item = usize>) -> Vec<usize> {
        positions.filter(|&position| position < self.entries()).map(|position| self.entry(position)).collect()
    }

    /// The position of a global batch's first entry.
    fn first(&self, batch: usize) -> usize {
        self.consumed.saturating_add(batch.saturating_mul(self.global_batch))
    }

    fn places(&self, batch: usize) -> Places {
        let batch_of_shard = self.global_batch / self.shards;
        Places { samples: self.samples_of(batch), shards: self.shards, batch: batch_of_shard }
    }

    /// The positions of these places of a global batch; none past the last one. Places without a sample are those of the positions
    /// after the end of the epoch, where it begins again.
    ///
    /// A shard's k-th batch in PyTorch is the entries s + n · (k · batch + i) of the epoch, all of which lie in the k-th
    /// global batch: for each shard s of n, the entries s, s + n, s + 2n, … of it.
    fn positions(&self, batch: usize, places: Range<usize>) -> impl Iterator<Item = usize> {
        let of_batch = self.places(batch);
        let is_there = of_batch.samples > 0 && places.end <= self.global_batch;
        let first = self.first(batch);
        let stride = self.stride;
        let offset = move |place: usize| match of_batch.number(place) {
            Ok(_) if stride > 1 => place / of_batch.batch + place % of_batch.batch * stride,
            Ok(number) => number,
            Err(gap) => of_batch.samples + gap,
        };
        let places = if is_there { places } else { 0..0 };
        places.map(move |place| first + offset(place))
    }
}

/// The order of evaluation: by index, every sample exactly once over all shards. Each shard has the same number of
/// batches; on some the last one may be short or empty.
#[derive(Clone, Debug)]
pub struct EvalOrder {
    samples: usize,
    /// How many of them are evaluated.
    taken: usize,
    sharding: Sharding,
}

impl EvalOrder {
    /// The order of `samples` samples for the local shards.
    ///
    /// # Errors
    /// A number of `sharding` is zero or out of range.
    pub fn new(samples: usize, sharding: Sharding) -> Result<Self, DataError> {
        sharding.check()?;
        Ok(EvalOrder { samples, taken: samples, sharding })
    }

    /// Takes only as many samples as so many batches of every shard have, evenly spaced.
    pub fn limited(self, batches: usize) -> Self {
        let taken = batches.saturating_mul(self.sharding.global_batch()).min(self.samples);
        EvalOrder { taken, ..self }
    }

    /// Number of samples that are evaluated, over all shards.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Number of batches of every shard.
    pub fn batches(&self) -> usize {
        self.taken.div_ceil(self.sharding.global_batch())
    }

    /// The sample indices of the local shards in global batch `batch`; at the end fewer than a full batch, or none.
    pub fn indices(&self, batch: usize) -> impl Iterator<Item = usize> + use<> {
        let first = batch * self.sharding.global_batch();
        let Range { start, end } = self.sharding.local_samples();
        let (samples, taken) = (self.samples as u128, self.taken as u128);
        let places = (first + start).min(self.taken)..(first + end).min(self.taken);
        // The product may exceed 64 bits.
        places.map(move |place| (place as u128 * samples / taken) as usize)
    }
}
