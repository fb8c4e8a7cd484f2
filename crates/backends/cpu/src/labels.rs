//! The labels of a batch as losses and targets take them: one for each sample, or two of a mixture with their lambdas.

use enmasse_device::StepInputs;

use crate::instruction::FromBatch;
use crate::region::Region;

/// The labels of a shard's samples. Their addresses are known when a step begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLabels {
    pub own: FromBatch<i32>,
    /// Of mixtures: the other labels, and the lambdas of the own ones.
    pub mixture: Option<(FromBatch<i32>, FromBatch<f32>)>,
}

impl BatchLabels {
    /// Those of this step's batch.
    pub(crate) fn of(&self, step: &StepInputs) -> Labels {
        let mixture = self.mixture.map(|(others, lambdas)| (others.of(step), lambdas.of(step)));
        Labels { own: self.own.of(step), mixture }
    }
}

/// The labels of a shard's samples in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels {
    pub own: Region<i32>,
    pub mixture: Option<(Region<i32>, Region<f32>)>,
}

impl Labels {
    /// # Safety
    /// Regions are valid, and have this sample.
    pub(crate) unsafe fn at(&self, sample: usize) -> SampleLabels {
        // SAFETY: the caller's promise.
        unsafe {
            let own = *self.own.at(sample, 1);
            match self.mixture {
                None => SampleLabels { own, other: own, share: 1.0 },
                Some((others, lambdas)) => {
                    SampleLabels { own, other: *others.at(sample, 1), share: f64::from(*lambdas.at(sample, 1)) }
                }
            }
        }
    }
}

/// A sample's label, and that of the sample that is mixed into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleLabels {
    /// Below 0 for a place without a sample.
    pub own: i32,
    pub other: i32,
    /// The share of the own label, from 0 to 1; the other one has the rest.
    pub share: f64,
}

impl SampleLabels {
    /// Both labels with their lambdas. A place without a sample has none.
    pub(crate) fn lambdas(self) -> impl Iterator<Item = (usize, f64)> {
        let both = [(self.own, self.share), (self.other, 1.0 - self.share)];
        let of_labels = move |(label, share)| Some((usize::try_from(label).ok()?, share));
        both.into_iter().filter(move |_| self.own >= 0).filter_map(of_labels)
    }

    /// The share of a class, from 0 to 1.
    pub(crate) fn share_of(self, class: usize) -> f64 {
        self.lambdas().filter(|&(label, _)| label == class).map(|(_, share)| share).sum()
    }
}
