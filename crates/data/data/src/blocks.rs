//! An order that reads data in the order in which they lie, block after block, and is random all
//! the same.
//!
//! The blocks of a data set ([`Locality::blocks`](crate::Locality::blocks)) are put into random order. Then the samples of
//! each 16 neighbours are shuffled among each other, so that no more than these blocks are read at
//! a time.

use std::ops::Range;
use std::sync::Arc;

use enmasse_tensor::RandomStream;

use crate::resampled::ORDER;
use crate::{DataError, Dataset};

/// Blocks whose samples are shuffled among each other.
const TOGETHER: usize = 16;

/// Where the blocks of a data set end.
#[derive(Clone, Debug)]
pub(crate) struct Blocks(Arc<Vec<u32>>);

impl Blocks {
    /// The blocks of `dataset`. Fails if it has none, or if they do not add up to its samples.
    pub fn of(dataset: &dyn Dataset) -> Result<Self, DataError> {
        let refused = |problem: &str| Err(DataError::Setting(problem.to_owned()));
        let Some(lengths) = dataset.locality().and_then(|locality| locality.blocks()) else {
            return refused("an order of blocks needs a data set that has blocks");
        };
        let ends = lengths.into_iter().scan(0u32, |end, length| {
            *end = end.saturating_add(u32::try_from(length).unwrap_or(u32::MAX));
            Some(*end)
        });
        let ends: Vec<u32> = ends.collect();
        match ends.last().map_or(0, |&end| end as usize) == dataset.len() {
            true => Ok(Blocks(Arc::new(ends))),
            false => refused("the blocks of the data set have another number of samples than the data set"),
        }
    }

    fn samples(&self, block: u32) -> Range<u32> {
        block.checked_sub(1).map_or(0, |before| self.0[before as usize])..self.0[block as usize]
    }

    /// All samples in the order of `epoch`, each once.
    pub fn order(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let blocks = RandomStream::new(seed, "block order", epoch, 0).permutation(self.0.len());
        let mut order = Vec::with_capacity(self.0.last().map_or(0, |&end| end as usize));
        for (number, together) in (0..).zip(blocks.chunks(TOGETHER)) {
            let samples: Vec<u32> = together.iter().flat_map(|&block| self.samples(block)).collect();
            let places = RandomStream::new(seed, ORDER, epoch, number).permutation(samples.len());
            order.extend(places.into_iter().map(|place| samples[place as usize]));
        }
        order
    }
}
