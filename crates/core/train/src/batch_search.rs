//! What a search for a batch finds: which batches fit, and how fast they are.

use serde::Serialize;

/// A batch is faster only if it trains more images per second by this factor.
const FASTER: f64 = 1.05;
/// Batches in a row that are no faster, after which no larger ones are measured.
const NO_FASTER: usize = 2;
/// No batch is measured whose step would take longer, in seconds.
const LONGEST: f64 = 20.0;

/// What limits the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchBound {
    /// The memory that is free.
    #[default]
    Memory,
    /// The number of images for training; also beyond 65,536, the most that is looked at.
    Data,
}

/// A batch that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BatchPoint {
    /// Samples of a shard.
    pub batch: usize,
    /// Over all ranks.
    pub images_per_second: f64,
    /// The mean of a step.
    pub step_seconds: f64,
    /// What a rank takes at its peak: of its device's memory if that has its own.
    pub memory_bytes: usize,
}

/// The result of [`Trainer::find_batch`](crate::Trainer::find_batch). Its JSON form is a contract with scripts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BatchSearch {
    /// The largest batch that fits.
    pub largest: usize,
    /// Why no larger one does.
    pub limit: BatchBound,
    /// The smallest batch that is as fast as any.
    pub suggestion: usize,
    /// Shards of a global batch.
    pub shards: usize,
    /// The batches that were measured: powers of two.
    pub points: Vec<BatchPoint>,
}

impl BatchSearch {
    pub(crate) fn suggest(&mut self) {
        let fastest = self.points.iter().map(|point| point.images_per_second).fold(0.0, f64::max);
        let is_fast = |point: &&BatchPoint| point.images_per_second * FASTER >= fastest;
        self.suggestion = self.points.iter().find(is_fast).map_or(1, |point| point.batch);
    }
}

/// The batch to measure next; `None` at the end.
pub(crate) fn next_batch(search: &BatchSearch) -> Option<usize> {
    let Some(last) = search.points.last() else { return Some(1) };
    let speeds = || search.points.iter().map(|point| point.images_per_second);
    let mut fastest = 0.0;
    let no_faster = speeds().fold(0, |count, speed| {
        let is_faster = speed > fastest * FASTER;
        fastest = f64::max(fastest, speed);
        if is_faster { 0 } else { count + 1 }
    });
    let next = last.batch * 2;
    (next <= search.largest && no_faster < NO_FASTER && last.step_seconds * 2.0 <= LONGEST).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_while_they_are_faster() {
        let check = |largest: usize, speeds: &[f64], measured: usize, suggestion: usize| {
            let mut search = BatchSearch { largest, ..BatchSearch::default() };
            while let Some(batch) = next_batch(&search) {
                let images_per_second = speeds[search.points.len()];
                let step_seconds = batch as f64 / images_per_second;
                search.points.push(BatchPoint { batch, images_per_second, step_seconds, ..BatchPoint::default() });
            }
            search.suggest();
            assert_eq!((search.points.len(), search.suggestion), (measured, suggestion), "{largest} {speeds:?}");
        };
        check(1, &[9.0], 1, 1);
        check(8, &[10.0, 15.0, 20.0, 25.0], 4, 8);
        check(7, &[10.0, 15.0, 20.0], 3, 4);
        check(64, &[10.0, 15.0, 20.0, 20.1, 20.2], 5, 4);
        check(64, &[10.0, 15.0, 14.0, 20.0, 20.0, 20.0], 6, 8);
        // A step of 16 would take 32 seconds.
        check(64, &[0.25, 0.5, 0.5, 0.5], 4, 2);
    }
}
