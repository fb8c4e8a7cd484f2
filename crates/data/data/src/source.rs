//! Where the images of a batch come from: the samples of an epoch or of a pass, and how a thread makes each of them.
//!
//! What is made depends on the task, the order and the files alone. A sample is read, transformed, and perhaps replaced or mixed with
//! another one, in memory of the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use enmasse_image::{EvalCrop, EvalTransform, Image, RegionRequest, TrainTransform};

use crate::bad_sample::MAX_IN_A_ROW;
use crate::batch::{Made, NO_LABEL, Pending, Unreadable};
use crate::error::describe_sample;
use crate::pool::ThreadBuffers;
use crate::task::Task;
use crate::{BadSample, DataError, Dataset, EpochOrder, EvalOrder, Extent, Sharding};

/// The samples, and their processing.
pub(crate) enum Samples {
    Train {
        order: EpochOrder,
        sharding: Sharding,
        transform: Arc<TrainTransform>,
        seed: u64,
        epoch: u64,
        /// Whether the values of mixed samples are the larger of both.
        unites: bool,
    },
    /// Each batch once for each crop. The numbers of its places are those of the samples times the number of crops, plus that of the crop.
    Eval { order: EvalOrder, transform: Arc<EvalTransform>, crops: Arc<[EvalCrop]> },
}

impl Samples {
    /// The places of a batch: positions in the order of the epoch, or numbers of indices and crops.
    pub fn places(&self, batch: usize) -> Vec<usize> {
        match self {
            Samples::Train { order, sharding, .. } => order.local_positions(batch, sharding).collect(),
            Samples::Eval { order, crops, .. } => {
                let (batch, crop) = (batch / crops.len(), batch % crops.len());
                order.indices(batch).map(|index| index * crops.len() + crop).collect()
            }
        }
    }

    /// The places of a batch's global batch by its samples.
    pub fn loss_weight(&self, batch: usize) -> f32 {
        match self {
            Samples::Train { order, sharding, .. } => sharding.global_batch() as f32 / order.samples_of(batch) as f32,
            Samples::Eval { .. } => 1.0,
        }
    }

    /// Whether a place has a sample. Otherwise its image is there for batch norm alone.
    fn has_sample(&self, place: usize) -> bool {
        match self {
            Samples::Train { order, .. } => place < order.entries(),
            Samples::Eval { .. } => true,
        }
    }

    /// The tasks that make a batch.
    pub fn tasks(&self, batch: usize) -> Vec<Task> {
        match self {
            Samples::Train { order, sharding, transform, .. } if transform.mixing().is_some() => {
                Task::pairs(order, batch, sharding)
            }
            Samples::Train { .. } | Samples::Eval { .. } => Task::ones(&self.places(batch)),
        }
    }

    /// The samples for a place, in the order in which they are tried.
    fn candidates(&self, place: usize) -> impl Iterator<Item = Candidate> {
        let tries = match self {
            Samples::Train { order, .. } => MAX_IN_A_ROW.min(order.entries()),
            Samples::Eval { .. } => 1,
        };
        (place..place + tries).map(move |place| match self {
            Samples::Train { order, .. } => {
                let draw = order.draw(place);
                Candidate { index: order.sample(draw), draw: draw as u64 }
            }
            Samples::Eval { crops, .. } => Candidate { index: place / crops.len(), draw: (place % crops.len()) as u64 },
        })
    }
}

/// A sample, and the number under which its transforms draw: the sample's index, or another one for a repetition in an epoch. In
/// evaluation it is the number of the crop.
#[derive(Clone, Copy)]
struct Candidate {
    index: usize,
    draw: u64,
}

/// Makes the samples of batches.
pub(crate) struct Source {
    pub samples: Samples,
    pub dataset: Arc<dyn Dataset>,
    /// Edge of the images.
    pub size: usize,
    /// Number of a sample's values to predict.
    pub values: usize,
    /// Whether unreadable samples are skipped.
    pub skips: bool,
}

impl Source {
    /// What the tasks of so many batches read of servers, in their order.
    pub fn needs(self: Arc<Self>, batches: usize) -> impl Iterator<Item = Vec<Extent>> {
        let tasks = {
            let own = self.clone();
            (0..batches).flat_map(move |batch| own.samples.tasks(batch))
        };
        tasks.map(move |task| {
            let first = task.positions().filter_map(|position| self.samples.candidates(position).next());
            first.filter_map(|candidate| self.dataset.locality()?.extent(candidate.index)).collect()
        })
    }

    /// Runs a task, and stores what it made in the places of its batch.
    pub fn run(&self, task: &Task, scratch: &mut ThreadBuffers, batch: &Pending) {
        let mut unreadable = Unreadable::new();
        match task {
            &Task::One { place, position } => {
                let mut piece = batch.begin(place);
                let result = self.fill(position, scratch, &mut piece, &mut unreadable);
                batch.finish(place, result, piece, unreadable);
            }
            Task::Pair(pair) => {
                let positions = pair.map(|place| place.position);
                let mut images = std::mem::take(&mut scratch.pair);
                let (made, mut error) = match self.fill_pair(positions, scratch, &mut images, &mut unreadable) {
                    Ok(made) => (made, None),
                    Err(error) => (None, Some(error)),
                };
                for (number, image) in images.iter().enumerate() {
                    let Some(place) = pair[number].local else { continue };
                    let mut piece = batch.begin(place);
                    let made = made.as_ref().map(|made| made[number].clone());
                    if made.is_some() {
                        piece.copy_from_slice(image.pixels());
                    }
                    let result = error.take().map_or(Ok(made), Err);
                    batch.finish(place, result, piece, std::mem::take(&mut unreadable));
                }
                scratch.pair = images;
            }
        }
    }

    /// Makes the samples of two places in `images`, as [`fill`](Self::fill) does, and mixes them.
    fn fill_pair(
        &self,
        [first, second]: [usize; 2],
        scratch: &mut ThreadBuffers,
        images: &mut [Image; 2],
        unreadable: &mut Unreadable,
    ) -> Result<Option<[Made; 2]>, DataError> {
        let Samples::Train { transform, seed, epoch, unites, .. } = &self.samples else { return Ok(None) };
        let bytes = self.size * self.size * 3;
        for image in images.iter_mut() {
            image.reshape(self.size, self.size).map_err(|source| DataError::Memory { bytes, source })?;
        }
        let [one, other] = images.each_mut().map(Image::pixels_mut);
        let Some(first) = self.fill(first, scratch, one, unreadable)? else { return Ok(None) };
        let Some(second) = self.fill(second, scratch, other, unreadable)? else { return Ok(None) };
        let share = transform.mix([one, other], *seed, *epoch, first.draw) as f32;
        let mixed = |own: &Made, other: &Made| {
            let value = |(own, other): (&f32, &f32)| match unites {
                true => own.max(*other),
                false => share * own + (1.0 - share) * other,
            };
            let targets = own.targets.iter().zip(&other.targets).map(value).collect();
            let own = Made { targets, ..own.clone() };
            match share {
                0.5.. => Made { other_label: other.label, share, ..own },
                _ => Made { label: other.label, other_label: own.label, share: 1.0 - share, ..own },
            }
        };
        Ok(Some([mixed(&first, &second), mixed(&second, &first)]))
    }

    /// Makes the sample of a place in `out`. If that is to be skipped, it makes the first readable candidate, and adds the samples
    /// before it to `unreadable`. `None` leaves the place empty; what is in `out` then does not count.
    fn fill(
        &self,
        place: usize,
        scratch: &mut ThreadBuffers,
        out: &mut [u8],
        unreadable: &mut Unreadable,
    ) -> Result<Option<Made>, DataError> {
        let mut skipped = None;
        for (number, candidate) in self.samples.candidates(place).enumerate() {
            let index = candidate.index;
            match self.make(candidate, scratch, out) {
                Ok((label, targets)) => {
                    let label = if self.samples.has_sample(place) { label } else { NO_LABEL };
                    let draw = match &self.samples {
                        Samples::Train { .. } => candidate.draw,
                        // Nothing is drawn.
                        Samples::Eval { .. } => index as u64,
                    };
                    let converted = scratch.view.converted_from().is_some();
                    return Ok(Some(Made { index, draw, label, other_label: label, share: 1.0, targets, converted }));
                }
                Err(error) if self.skips && error.is_unreadable() => {
                    let sample = BadSample::new(self.dataset.name(index), &error);
                    unreadable.insert(index, sample.clone());
                    skipped = Some((number + 1, sample));
                }
                Err(error) => return Err(error),
            }
        }
        match (&self.samples, skipped) {
            (Samples::Train { .. }, Some((count, last))) => Err(DataError::Unreadable { count, last }),
            (Samples::Train { .. }, None) | (Samples::Eval { .. }, _) => Ok(None),
        }
    }

    /// Reads and transforms one sample into `out`; returns its label and its values to predict. A panic in the data set or a transform
    /// becomes an error.
    fn make(
        &self,
        candidate: Candidate,
        scratch: &mut ThreadBuffers,
        out: &mut [u8],
    ) -> Result<(i32, Vec<f32>), DataError> {
        let result = catch_unwind(AssertUnwindSafe(|| self.try_make(candidate, scratch, out)));
        result.unwrap_or_else(|panic| {
            let index = candidate.index;
            let name = catch_unwind(AssertUnwindSafe(|| describe_sample(self.dataset.as_ref(), index)));
            let name = name.unwrap_or_else(|_| format!("sample {index}"));
            Err(DataError::panicked(name, &*panic))
        })
    }

    /// What a sample's transforms need of an image of `width` × `height`. Only training images may be shrunk.
    fn wanted(&self, draw: u64, width: usize, height: usize) -> RegionRequest {
        match &self.samples {
            Samples::Train { transform, seed, epoch, .. } => transform.wanted((*seed, *epoch, draw), width, height),
            Samples::Eval { transform, crops, .. } => transform.wanted(crops[draw as usize], width, height),
        }
    }

    /// The error of a place whose sample is not read for too long.
    pub fn stalled(&self, place: usize, timeout: Duration) -> DataError {
        let index = self.samples.candidates(place).next().map_or(place, |candidate| candidate.index);
        DataError::stalled(self.dataset.as_ref(), index, timeout)
    }

    /// The error of a sample that does not fit.
    fn misfit(&self, index: usize, problem: impl Into<String>) -> DataError {
        DataError::of_sample(self.dataset.as_ref(), index, problem)
    }

    fn try_make(
        &self,
        Candidate { index, draw }: Candidate,
        scratch: &mut ThreadBuffers,
        out: &mut [u8],
    ) -> Result<(i32, Vec<f32>), DataError> {
        let ThreadBuffers { view, canvas, .. } = scratch;
        let wanted = |width: usize, height: usize| self.wanted(draw, width, height);
        self.dataset.read_part(index, &wanted, view).map_err(|error| match error {
            // The data set's own error does not name the sample.
            DataError::Setting(problem) => self.misfit(index, problem),
            other => other,
        })?;
        if view.image().pixels().is_empty() {
            return Err(self.misfit(index, "the image has no pixels"));
        }
        let made = match &self.samples {
            Samples::Train { transform, seed, epoch, .. } => {
                transform.apply_to_region(view, canvas, (*seed, *epoch, draw), out)
            }
            Samples::Eval { transform, crops, .. } => {
                transform.apply_to_region(view, canvas, crops[draw as usize], out)
            }
        };
        made.map_err(|error| self.misfit(index, error.to_string()))?;
        let targets = if self.values > 0 { self.dataset.targets(index) } else { Vec::new() };
        if targets.len() != self.values {
            let problem = format!("it has {} values to predict, and the task takes {}", targets.len(), self.values);
            return Err(self.misfit(index, problem));
        }
        let label = self.dataset.label(index);
        let label = i32::try_from(label).map_err(|_| self.misfit(index, format!("its label {label} is too large")))?;
        Ok((label, targets))
    }
}
