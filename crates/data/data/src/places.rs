//! Where the samples of a global batch are.
//!
//! The last batch of an epoch may have fewer samples than places, and has the plan of all others.
//! Each shard has as many of its samples as any other, or one less, in its first places. The other
//! places show the first samples of the epoch once more, again and again if the whole epoch is
//! smaller than one batch. They have no label there, so only batch norm sees them.
//!
//! The plan divides the loss by all places, and multiplies it by places per sample
//! (`CompileOptions::weighted_loss`). A resume with another global batch needs no other plan, and
//! no batch norm has a single value.

/// The places of a global batch, shard after shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Samples of the global batch, never more than its places.
    pub samples: usize,
    pub shards: usize,
    /// Places of a shard.
    pub batch: usize,
}

impl Places {
    /// Samples of a shard.
    fn of_shard(&self, shard: usize) -> usize {
        self.samples / self.shards + usize::from(shard < self.samples % self.shards)
    }

    /// Samples of the shards before this one.
    fn before(&self, shard: usize) -> usize {
        shard * (self.samples / self.shards) + shard.min(self.samples % self.shards)
    }

    /// The number of a place's sample, in the order of places: `Ok`. `Err` has the number of a place without a sample among those.
    pub fn number(&self, place: usize) -> Result<usize, usize> {
        let shard = place / self.batch;
        let number = place % self.batch;
        match number < self.of_shard(shard) {
            true => Ok(self.before(shard) + number),
            false => Err(place - self.before(shard + 1)),
        }
    }

    /// The place of the sample with a number.
    pub fn place(&self, number: usize) -> usize {
        let few = self.samples / self.shards;
        let longer = self.samples % self.shards;
        let of_longer = longer * (few + 1);
        let (shard, number) = match number.checked_sub(of_longer) {
            None => (number / (few + 1), number % (few + 1)),
            Some(rest) => (longer + rest / few.max(1), rest % few.max(1)),
        };
        shard * self.batch + number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_shared_evenly() {
        // The numbers of samples, and those of other places.
        let check = |samples: usize, shards: usize, batch: usize, expected: &[Result<usize, usize>]| {
            let places = Places { samples, shards, batch };
            let found: Vec<_> = (0..shards * batch).map(|place| places.number(place)).collect();
            assert_eq!(found, expected);
            for number in 0..samples {
                assert_eq!(places.number(places.place(number)), Ok(number), "{places:?}");
            }
        };
        check(4, 2, 2, &[Ok(0), Ok(1), Ok(2), Ok(3)]);
        check(3, 2, 2, &[Ok(0), Ok(1), Ok(2), Err(0)]);
        check(1, 2, 2, &[Ok(0), Err(0), Err(1), Err(2)]);
        check(4, 3, 3, &[Ok(0), Ok(1), Err(0), Ok(2), Err(1), Err(2), Ok(3), Err(3), Err(4)]);
        check(2, 1, 3, &[Ok(0), Ok(1), Err(0)]);
    }
}
