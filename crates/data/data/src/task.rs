//! What one task of a loader makes: the image of a place in a batch, or the two images of a pair
//! that is mixed (`--mixup`, `--cutmix`).
//!
//! Pairs are neighbouring places of the global batch (`EpochOrder::partner`), so neither shards nor
//! ranks change them. A pair is one task, so no thread waits for another: it makes both images and
//! mixes their bytes. Where two ranks share a pair, both make it.
//!
//! The list of transforms says whether to mix (`TrainTransform::mixing`), and so do its text, which
//! ranks compare, and the plan, which has two more inputs for it. The loader puts the label with
//! the larger share first, so counting correct predictions needs no second label. Evaluation plans
//! have no such inputs, and refuse a mixed batch.

use crate::{EpochOrder, Sharding};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The sample of a place in the batch: at a position in the order of the epoch, or in evaluation the sample itself.
    One { place: usize, position: usize },
    /// Two samples that are mixed, at least one of which has a place in the batch.
    Pair([Half; 2]),
}

/// A sample of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Half {
    pub position: usize,
    /// Its place in the batch, unless another rank hosts it.
    pub local: Option<usize>,
}

impl Task {
    /// The tasks of the hosted part of a global batch whose images are mixed in pairs. Where the shards of two ranks share a
    /// pair, both make it.
    pub fn pairs(order: &EpochOrder, batch: usize, sharding: &Sharding) -> Vec<Task> {
        let local = sharding.local_samples();
        let half = |number: usize| {
            let position = order.position(batch, number)?;
            Some(Half { position, local: local.contains(&number).then(|| number - local.start) })
        };
        let task = |number: usize| match order.partner(batch, number) {
            None => Some(Task::One { place: number - local.start, position: order.position(batch, number)? }),
            // The partner's turn was before.
            Some(partner) if partner < number && local.contains(&partner) => None,
            Some(partner) => Some(Task::Pair([half(number.min(partner))?, half(number.max(partner))?])),
        };
        local.clone().filter_map(task).collect()
    }

    /// The positions of its samples.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        let positions = match *self {
            Task::One { position, .. } => [Some(position), None],
            Task::Pair([first, second]) => [Some(first.position), Some(second.position)],
        };
        positions.into_iter().flatten()
    }

    /// A task for each place, given the positions.
    pub fn ones(positions: &[usize]) -> Vec<Task> {
        positions.iter().enumerate().map(|(place, &position)| Task::One { place, position }).collect()
    }
}
