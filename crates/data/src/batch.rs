//! One batch: its memory, how many threads fill it, and how its memory returns to the loader.
//!
//! The device reads the buffer into which the pictures are written, so a [`HostMemory`] allocates it. The memory of
//! dropped batches serves later ones: a driver may take long to allocate more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use enmasse_tensor::{AlignedBuffer, HostBuffer, HostMemory};

use crate::pool::lock;
use crate::{BadSample, DataError};

/// The hosted shards' pieces of a global batch, shard after shard. Dropping it returns its memory to the loader.
#[derive(Debug)]
pub struct Batch {
    /// Pictures, `[hosted batch, size, size, 3]`; zero for missing samples.
    pub images: HostBuffer,
    /// Classes, `[hosted batch]`; -1 for missing samples.
    pub labels: Vec<i32>,
    /// Sample indices, `[hosted batch]`; `u64::MAX` for missing samples.
    pub indices: Vec<u64>,
    /// Number of samples. They are missing only in evaluation: at the end of the last batch, and in the places of unreadable
    /// samples that are skipped. The others keep their places, so that each shard has the same samples for any number of ranks.
    pub valid: usize,
    /// The samples that were skipped in making this batch because they cannot be read, each once.
    pub unreadable: Vec<BadSample>,
    home: Arc<Recycler>,
}

impl Batch {
    /// The places that have a sample, in order.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.labels.iter().enumerate().filter(|(_, label)| **label >= 0).map(|(place, _)| place)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let buffers = Buffers {
            images: std::mem::take(&mut self.images),
            labels: std::mem::take(&mut self.labels),
            indices: std::mem::take(&mut self.indices),
        };
        let mut spare = lock(&self.home.spare);
        // The fields are public, so the owner may have kept the pictures.
        if spare.len() < self.home.most && buffers.images.len() == self.home.bytes() {
            spare.push(buffers);
        }
    }
}

#[derive(Default)]
struct Buffers {
    images: HostBuffer,
    labels: Vec<i32>,
    indices: Vec<u64>,
}

impl Buffers {
    /// Clears the places without a sample, whose memory may hold an earlier picture, and returns the number of the others.
    fn clear_gaps(&mut self, picture: usize) -> usize {
        let gaps: Vec<usize> = (0..self.labels.len()).filter(|&place| self.labels[place] < 0).collect();
        gaps.iter().for_each(|place| self.images[place * picture..(place + 1) * picture].fill(0));
        self.labels.len() - gaps.len()
    }
}

/// A sample in the making: what a thread read beside its pixels.
pub(crate) struct Made {
    pub index: usize,
    pub label: i32,
}

/// Samples that cannot be read, by their index.
pub(crate) type Unreadable = BTreeMap<usize, BadSample>;

/// The memory of dropped batches, kept for later ones.
pub(crate) struct Recycler {
    memory: Arc<dyn HostMemory>,
    /// Number of samples in a batch.
    batch: usize,
    /// Bytes of a picture.
    picture: usize,
    spare: Mutex<Vec<Buffers>>,
    most: usize,
}

impl Recycler {
    /// For batches of `batch` pictures of `picture` bytes each. Keeps the memory of at most `most` batches.
    pub fn new(memory: Arc<dyn HostMemory>, batch: usize, picture: usize, most: usize) -> Self {
        Recycler { memory, batch, picture, spare: Mutex::default(), most }
    }

    /// Size of a batch's pictures, in bytes.
    fn bytes(&self) -> usize {
        self.batch.saturating_mul(self.picture)
    }

    /// Bytes that a batch takes, its labels and indices among them.
    pub fn resident_bytes(&self) -> usize {
        const OF_A_SAMPLE: usize = size_of::<i32>() + size_of::<u64>();
        AlignedBuffer::resident_bytes(self.bytes()).saturating_add(self.batch.saturating_mul(OF_A_SAMPLE))
    }

    /// Memory for one batch; its contents are undefined.
    fn buffers(&self) -> Result<Buffers, DataError> {
        if let Some(buffers) = lock(&self.spare).pop() {
            return Ok(buffers);
        }
        let bytes = self.bytes();
        let images = self.memory.allocate(bytes).map_err(|source| DataError::Memory { bytes, source })?;
        Ok(Buffers { images, labels: Vec::new(), indices: Vec::new() })
    }
}

impl fmt::Debug for Recycler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} spare batches of {} pictures of {} bytes", lock(&self.spare).len(), self.batch, self.picture)
    }
}

/// The longest piece in which time without a picture is counted.
const SLICE: Duration = Duration::from_secs(1);

/// A batch that is being filled.
pub(crate) struct Pending {
    /// A task for each: it makes the sample of this place.
    pub places: Vec<usize>,
    state: Mutex<State>,
    done: Condvar,
    home: Arc<Recycler>,
}

struct State {
    buffers: Buffers,
    /// Tasks.
    unfinished: BTreeSet<usize>,
    unreadable: Unreadable,
    /// The error of the earliest sample with an error.
    failed: Option<(usize, DataError)>,
}

impl Pending {
    /// A batch of the samples of `places`, none of which is done yet. Fails if there is no memory for it.
    pub fn new(places: Vec<usize>, home: &Arc<Recycler>) -> Result<Self, DataError> {
        let mut buffers = home.buffers()?;
        buffers.labels.clear();
        buffers.labels.resize(home.batch, -1);
        buffers.indices.clear();
        buffers.indices.resize(home.batch, u64::MAX);
        let unfinished = (0..places.len()).collect();
        let state = Mutex::new(State { buffers, unfinished, unreadable: Unreadable::new(), failed: None });
        Ok(Pending { places, state, done: Condvar::new(), home: home.clone() })
    }

    /// Stores the sample of place `task`, if it has one, and those that were skipped on the way to it.
    pub fn finish(
        &self,
        task: usize,
        result: Result<Option<Made>, DataError>,
        pixels: &[u8],
        mut unreadable: Unreadable,
    ) {
        let mut state = lock(&self.state);
        state.unreadable.append(&mut unreadable);
        match result {
            Ok(Some(Made { index, label })) => {
                // Copying under the lock takes microseconds; decoding, outside it, milliseconds.
                state.buffers.images[task * pixels.len()..][..pixels.len()].copy_from_slice(pixels);
                state.buffers.labels[task] = label;
                state.buffers.indices[task] = index as u64;
            }
            Ok(None) => {}
            Err(error) if state.failed.as_ref().is_none_or(|&(earlier, _)| task < earlier) => {
                state.failed = Some((task, error));
            }
            Err(_) => {}
        }
        state.unfinished.remove(&task);
        if state.unfinished.is_empty() {
            self.done.notify_all();
        }
    }

    /// The batch, once all its samples are done; the error of the earliest failed sample. If none becomes done for
    /// `patience`, the place of one that is not.
    pub fn wait(&self, patience: Duration) -> Result<Result<Batch, DataError>, usize> {
        let mut state = lock(&self.state);
        // Counted in slices: while the process is stopped, at most one of them passes.
        let mut waited = Duration::ZERO;
        while let Some(&task) = state.unfinished.first() {
            let slice = patience.saturating_sub(waited).min(SLICE);
            if slice.is_zero() {
                return Err(self.places[task]);
            }
            let before = state.unfinished.len();
            let waiting = self.done.wait_timeout_while(state, slice, |state| !state.unfinished.is_empty());
            state = waiting.unwrap_or_else(PoisonError::into_inner).0;
            waited = if state.unfinished.len() < before { Duration::ZERO } else { waited + slice };
        }
        Ok(self.close(&mut state))
    }

    fn close(&self, state: &mut State) -> Result<Batch, DataError> {
        if let Some((_, error)) = state.failed.take() {
            return Err(error);
        }
        let valid = state.buffers.clear_gaps(self.home.picture);
        let Buffers { images, labels, indices } = std::mem::take(&mut state.buffers);
        let unreadable = std::mem::take(&mut state.unreadable).into_values().collect();
        Ok(Batch { images, labels, indices, valid, unreadable, home: self.home.clone() })
    }
}
