//! Orders in which samples are sampled more or less often than once an epoch: each class equally
//! often, or each sample several times in a row (repeated augmentation).
//!
//! Samples come from endless streams: permutations, one after the other, so that a sample returns
//! only after all others of its stream. An epoch goes on where the one before has ended, which
//! follows from its number alone, so nothing is kept between epochs. A repetition of a sample in an
//! epoch is another draw of it, with random numbers of its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use enmasse_tensor::RandomStream;

use crate::Dataset;

/// The purpose of the random numbers of an order.
pub(crate) const ORDER: &str = "sample order";

/// The samples of each class, without classes that have none.
#[derive(Clone, Debug)]
pub(crate) struct Classes(Arc<Vec<(usize, Vec<u32>)>>);

impl Classes {
    pub fn of(dataset: &dyn Dataset) -> Self {
        let mut classes: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for index in 0..dataset.len() {
            // A list of more samples than this would not fit into any memory.
            classes.entry(dataset.label(index)).or_default().push(u32::try_from(index).unwrap_or(u32::MAX));
        }
        Classes(Arc::new(classes.into_iter().collect()))
    }
}

/// The entries of `epoch`: `samples` of them, as draws. Draw d is the (d / samples)-th occurrence of sample d % samples in the
/// epoch, from 0, so that every occurrence has random numbers of its own.
pub(crate) fn draws(seed: u64, epoch: u64, samples: usize, classes: Option<&Classes>, repeats: usize) -> Vec<usize> {
    let distinct = samples.div_ceil(repeats);
    let chosen = match classes {
        None => {
            let first = epoch.saturating_mul(distinct as u64);
            stream(samples, first..first.saturating_add(distinct as u64), |round| {
                RandomStream::new(seed, ORDER, round, 0).permutation(samples)
            })
        }
        Some(classes) => balanced(seed, epoch, distinct, classes),
    };
    let repeated = chosen.iter().flat_map(|&sample| std::iter::repeat_n(sample as usize, repeats)).take(samples);
    numbered(samples, repeated)
}

/// The draws of an epoch, in which each of `samples` samples may occur several times.
pub(crate) fn numbered(samples: usize, order: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut occurrences = vec![0; samples];
    let number = |sample: usize| {
        let draw = sample + occurrences[sample] * samples;
        occurrences[sample] += 1;
        draw
    };
    order.map(number).collect()
}

/// `count` samples of an epoch, of every class as many as of each other, give or take one, in random order.
fn balanced(seed: u64, epoch: u64, count: usize, classes: &Classes) -> Vec<u32> {
    let number = classes.0.len() as u128;
    // Up to any point of the run the draws of classes differ by one at most, and add up to all draws: the sum of
    // ⌊(x + k) / K⌋ over k from 0 to K - 1 is x (Hermite's identity).
    let drawn = |epoch: u64, class: usize| ((u128::from(epoch) * count as u128 + class as u128) / number) as u64;
    let of_class = |(place, (label, samples)): (usize, &(usize, Vec<u32>))| {
        let places = stream(samples.len(), drawn(epoch, place)..drawn(epoch + 1, place), |round| {
            RandomStream::new(seed, "balanced order", round, *label as u64).permutation(samples.len())
        });
        places.into_iter().map(|place| samples[place as usize]).collect::<Vec<u32>>()
    };
    let all: Vec<u32> = classes.0.iter().enumerate().flat_map(of_class).collect();
    RandomStream::new(seed, ORDER, epoch, 0)
        .permutation(all.len())
        .into_iter()
        .map(|place| all[place as usize])
        .collect()
}

/// A range of the endless stream of permutations of `length` numbers, one for each round.
fn stream(length: usize, range: Range<u64>, permutation: impl Fn(u64) -> Vec<u32>) -> Vec<u32> {
    let length = length as u64;
    let mut found = Vec::with_capacity((range.end - range.start) as usize);
    let mut next = range.start;
    while next < range.end {
        let round = next / length;
        let skipped = next % length;
        let taken = (length - skipped).min(range.end - next);
        found.extend(permutation(round).into_iter().skip(skipped as usize).take(taken as usize));
        next += taken;
    }
    found
}
