//! One batch: its memory, how many threads fill it, and how its memory returns to the loader.
//!
//! Images are RGB bytes `[size, size, 3]`. The device reads the buffer into which they are written,
//! so a [`HostMemory`] allocates it, which a device may define (page-locked memory of a GPU). The
//! memory of dropped batches serves later ones: a driver may take long to allocate more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use enmasse_tensor::{AlignedBuffer, HostBuffer, HostMemory};

use crate::pieces::{Piece, Split, split};
use crate::pool::lock;
use crate::{BadSample, DataError};

/// The label of a place without a sample.
pub(crate) const NO_LABEL: i32 = -1;

/// The index of a place without an image.
const NO_IMAGE: u64 = u64::MAX;

/// The local shards' pieces of a global batch, shard after shard. Dropping it returns its memory to the loader.
#[derive(Debug)]
pub struct Batch {
    /// Images, `[local batch, size, size, 3]`. In evaluation they are zero for missing samples; in training they are those of other
    /// samples, which batch norm sees.
    pub images: HostBuffer,
    /// Classes, `[local batch]`; -1 for missing samples.
    pub labels: Vec<i32>,
    /// Indices of the images' samples, `[local batch]`; `u64::MAX` where there is none.
    pub indices: Vec<u64>,
    /// The numbers that key the random numbers of the samples, `[local batch]`: their indices, and others for the repetitions of a
    /// sample in an epoch.
    pub draws: Vec<u64>,
    /// Of mixtures of classes those of the other samples, `[local batch]`; empty otherwise. See [`lambdas`](Self::lambdas).
    pub other_labels: Vec<i32>,
    /// Of mixtures of classes the share of each label, `[local batch]`; empty otherwise. It is at least a half: if the other sample has
    /// the larger share, the two labels are exchanged.
    pub lambdas: Vec<f32>,
    /// The values to predict, `[local batch, values]`, if the loader was asked for them; empty otherwise. 0 for missing samples. Of
    /// mixtures they are mixed like the images.
    pub targets: Vec<f32>,
    /// The places of the global batch by its samples, which makes a mean over all places one over the samples; above 1 only in the last
    /// batch of an epoch of training, and 1 in evaluation.
    pub loss_weight: f32,
    /// Number of samples. They are missing in the last batch, and in evaluation in the places of unreadable samples that are
    /// skipped. The others keep their places, so that each shard has the same samples for any number of ranks.
    pub valid: usize,
    /// The samples that were skipped in making this batch because they cannot be read, each once.
    pub unreadable: Vec<BadSample>,
    /// How many samples have images that were converted to RGB ([`ImageRegion::converted_from`](enmasse_image::ImageRegion::converted_from)).
    pub converted: usize,
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
            draws: std::mem::take(&mut self.draws),
            other_labels: std::mem::take(&mut self.other_labels),
            lambdas: std::mem::take(&mut self.lambdas),
            targets: std::mem::take(&mut self.targets),
        };
        let mut spare = lock(&self.home.spare);
        // The fields are public, so the owner may have kept the images.
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
    draws: Vec<u64>,
    other_labels: Vec<i32>,
    lambdas: Vec<f32>,
    targets: Vec<f32>,
}

impl Buffers {
    /// Clears the places without an image, whose memory may hold an earlier one.
    fn clear_gaps(&mut self, image: usize) {
        let gaps = self.indices.iter().enumerate().filter(|(_, index)| **index == NO_IMAGE);
        gaps.for_each(|(place, _)| self.images[place * image..(place + 1) * image].fill(0));
    }
}

/// A sample in the making: what a thread read beside its pixels.
#[derive(Clone)]
pub(crate) struct Made {
    pub index: usize,
    /// See [`Batch::draws`].
    pub draw: u64,
    pub label: i32,
    /// The label of the sample that is mixed into it.
    pub other_label: i32,
    /// The share of its own label.
    pub share: f32,
    /// See [`Batch::targets`].
    pub targets: Vec<f32>,
    /// Whether its image was converted to RGB.
    pub converted: bool,
}

/// Samples that cannot be read, by their index.
pub(crate) type Unreadable = BTreeMap<usize, BadSample>;

/// The memory of dropped batches, kept for later ones.
pub(crate) struct Recycler {
    memory: Arc<dyn HostMemory>,
    /// Number of samples in a batch.
    batch: usize,
    /// Bytes of an image.
    image: usize,
    /// Whether images are mixed.
    mixed: bool,
    /// Number of a sample's values to predict.
    values: usize,
    spare: Mutex<Vec<Buffers>>,
    most: usize,
}

impl Recycler {
    /// For batches of `batch` images of `image` bytes each, which may be mixed, with `values` to predict of each. Keeps the memory of at
    /// most `most` batches.
    pub fn new(
        memory: Arc<dyn HostMemory>,
        batch: usize,
        image: usize,
        mixed: bool,
        values: usize,
        most: usize,
    ) -> Self {
        Recycler { memory, batch, image, mixed, values, spare: Mutex::default(), most }
    }

    /// Size of a batch's images, in bytes.
    fn bytes(&self) -> usize {
        self.batch.saturating_mul(self.image)
    }

    /// Whether a sample has the label of another one, too: of a mixture whose targets are classes.
    fn has_other_labels(&self) -> bool {
        self.mixed && self.values == 0
    }

    /// Bytes that a batch takes, its labels and indices among them.
    pub fn resident_bytes(&self) -> usize {
        let of_a_mixture = if self.has_other_labels() { size_of::<i32>() + size_of::<f32>() } else { 0 };
        let of_a_sample = size_of::<i32>() + 2 * size_of::<u64>() + of_a_mixture + self.values * size_of::<f32>();
        AlignedBuffer::resident_bytes(self.bytes()).saturating_add(self.batch.saturating_mul(of_a_sample))
    }

    /// Memory for one batch; its contents are undefined.
    fn buffers(&self) -> Result<Buffers, DataError> {
        if let Some(buffers) = lock(&self.spare).pop() {
            return Ok(buffers);
        }
        let bytes = self.bytes();
        let images = self.memory.allocate(bytes).map_err(|source| DataError::Memory { bytes, source })?;
        Ok(Buffers { images, ..Buffers::default() })
    }
}

impl fmt::Debug for Recycler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} spare batches of {} images of {} bytes", lock(&self.spare).len(), self.batch, self.image)
    }
}

/// The longest piece in which time without an image is counted.
const SLICE: Duration = Duration::from_secs(1);

/// A batch that is being filled.
pub(crate) struct Pending {
    /// The position in the order of the epoch, or the sample, of each place.
    pub places: Vec<usize>,
    loss_weight: f32,
    state: Mutex<State>,
    done: Condvar,
    home: Arc<Recycler>,
}

struct State {
    /// All but the images.
    buffers: Buffers,
    /// The images, until the batch is handed over, and the pieces of those that nobody has begun.
    images: Option<Split>,
    pieces: Vec<Option<Piece>>,
    /// Places.
    unfinished: BTreeSet<usize>,
    unreadable: Unreadable,
    converted: usize,
    /// The error of the earliest place with an error, whose own sample it may not be: pairs fail together.
    failed: Option<(usize, DataError)>,
}

impl Pending {
    /// A batch of the samples of `places`, none of which is done yet. Fails if there is no memory for it.
    pub fn new(places: Vec<usize>, loss_weight: f32, home: &Arc<Recycler>) -> Result<Self, DataError> {
        let mut buffers = home.buffers()?;
        buffers.labels.clear();
        buffers.labels.resize(home.batch, NO_LABEL);
        buffers.indices.clear();
        buffers.indices.resize(home.batch, NO_IMAGE);
        buffers.draws.clear();
        buffers.draws.resize(home.batch, NO_IMAGE);
        let mixed = if home.has_other_labels() { home.batch } else { 0 };
        buffers.other_labels.clear();
        buffers.other_labels.resize(mixed, NO_LABEL);
        buffers.lambdas.clear();
        buffers.lambdas.resize(mixed, 1.0);
        buffers.targets.clear();
        buffers.targets.resize(home.batch * home.values, 0.0);
        let (images, pieces) = split(std::mem::take(&mut buffers.images), home.image);
        let state = Mutex::new(State {
            buffers,
            images: Some(images),
            pieces: pieces.into_iter().map(Some).collect(),
            unfinished: (0..places.len()).collect(),
            unreadable: Unreadable::new(),
            converted: 0,
            failed: None,
        });
        Ok(Pending { places, loss_weight, state, done: Condvar::new(), home: home.clone() })
    }

    /// The memory for the image of a place, which is begun once.
    ///
    /// # Panics
    /// If it has been begun.
    pub fn begin(&self, place: usize) -> Piece {
        lock(&self.state).pieces[place].take().expect("each place has one task")
    }

    /// Stores the sample of a place, if it has one, and those that were skipped on the way to it. Its image is in `piece`.
    pub fn finish(
        &self,
        place: usize,
        result: Result<Option<Made>, DataError>,
        piece: Piece,
        mut unreadable: Unreadable,
    ) {
        drop(piece);
        let mut state = lock(&self.state);
        state.unreadable.append(&mut unreadable);
        match result {
            Ok(Some(Made { index, draw, label, other_label, share, targets, converted })) => {
                state.converted += usize::from(converted && label != NO_LABEL);
                let buffers = &mut state.buffers;
                buffers.labels[place] = label;
                buffers.indices[place] = index as u64;
                buffers.draws[place] = draw;
                if self.home.has_other_labels() {
                    buffers.other_labels[place] = other_label;
                    buffers.lambdas[place] = share;
                }
                if label != NO_LABEL {
                    let values = self.home.values;
                    buffers.targets[place * values..(place + 1) * values].copy_from_slice(&targets);
                }
            }
            Ok(None) => {}
            Err(error) if state.failed.as_ref().is_none_or(|&(earlier, _)| place < earlier) => {
                state.failed = Some((place, error));
            }
            Err(_) => {}
        }
        state.unfinished.remove(&place);
        if state.unfinished.is_empty() {
            self.done.notify_all();
        }
    }

    /// The batch, once all its samples are done; the error of the earliest failed place. If none becomes done for
    /// `timeout`, the place of one that is not.
    pub fn wait(&self, timeout: Duration) -> Result<Result<Batch, DataError>, usize> {
        let mut state = lock(&self.state);
        // Counted in slices: while the process is stopped, at most one of them passes.
        let mut waited = Duration::ZERO;
        while let Some(&place) = state.unfinished.first() {
            let slice = timeout.saturating_sub(waited).min(SLICE);
            if slice.is_zero() {
                return Err(self.places[place]);
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
        state.pieces.clear();
        let images = state.images.take().and_then(Split::join);
        state.buffers.images = images.expect("a place is done when its piece is gone");
        state.buffers.clear_gaps(self.home.image);
        let valid = state.buffers.labels.iter().filter(|label| **label >= 0).count();
        let Buffers { images, labels, indices, draws, other_labels, lambdas, targets } =
            std::mem::take(&mut state.buffers);
        let unreadable = std::mem::take(&mut state.unreadable).into_values().collect();
        let loss_weight = self.loss_weight;
        let converted = state.converted;
        let home = self.home.clone();
        Ok(Batch {
            images,
            labels,
            indices,
            draws,
            other_labels,
            lambdas,
            targets,
            loss_weight,
            valid,
            unreadable,
            converted,
            home,
        })
    }
}
