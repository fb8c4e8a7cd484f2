//! Balanced classes and repeated augmentation: a ledger of what each epoch draws, for any number of ranks, and over resumes.

use std::collections::BTreeMap;
use std::sync::Arc;

use enmasse_data::{Batches, DataError, Dataset, DecodePool, Sampler, Sharding, TrainLoader, TrainOrder};
use enmasse_image::{Image, RandomResizedCrop, TrainTransform};
use proptest::prelude::*;

/// Images of classes of these sizes, one class after the other.
struct Sized(Vec<usize>);

impl Dataset for Sized {
    fn len(&self) -> usize {
        self.0.iter().sum()
    }

    fn label(&self, index: usize) -> usize {
        let mut end = 0;
        self.0
            .iter()
            .position(|size| {
                end += size;
                index < end
            })
            .unwrap()
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        Ok(Image::new(12, 12, (0..12 * 12 * 3).map(|byte| (byte * 7 + index * 31) as u8).collect())?)
    }
}

fn order(sizes: &[usize], balanced: bool, repeats: usize, shards: usize, batch: usize) -> TrainOrder {
    let sharding = Sharding::one(0, shards, batch);
    TrainOrder::of(&Sized(sizes.to_vec()), Sampler::Resampled { balanced, repeats }, 7, &sharding).unwrap()
}

/// All entries of an epoch.
fn entries(order: &TrainOrder, epoch: u64) -> Vec<usize> {
    let epoch = order.epoch(epoch);
    (0..epoch.batches()).flat_map(|batch| epoch.global_batch(batch)).collect()
}

#[test]
fn without_either_it_is_the_usual_order() {
    let usual = TrainOrder::new(7, 23, 4).unwrap();
    let resampled = order(&[20, 3], false, 1, 1, 4);
    for epoch in [0, 1, 5] {
        assert_eq!(entries(&usual, epoch), entries(&resampled, epoch));
    }
    assert_eq!((resampled.batches(), resampled.dropped()), (6, 0));
}

#[test]
fn settings_out_of_range() {
    let sharding = Sharding::one(0, 1, 1);
    let check = |sampler: Sampler, expected: &str| {
        let error = TrainOrder::with_sampler(sampler, 0, 5, &sharding).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(Sampler::Resampled { balanced: false, repeats: 0 }, "a sample is repeated at least once");
    let labels = "an order of balanced classes needs the labels of a data set";
    check(Sampler::Resampled { balanced: true, repeats: 1 }, labels);
    let none = TrainOrder::of(&Sized(vec![]), Sampler::Resampled { balanced: true, repeats: 1 }, 0, &sharding);
    assert!(none.unwrap_err().to_string().contains("hold 0 samples"));
}

proptest! {
    /// Every class is drawn equally often in an epoch and over all epochs, and a sample returns only after all others of its
    /// class.
    #[test]
    fn classes_are_balanced(sizes in prop::collection::vec(0usize..12, 1..6), epochs in 1u64..5) {
        let dataset = Sized(sizes.clone());
        prop_assume!(dataset.len() > 0);
        let order = order(&sizes, true, 1, 1, 1);
        let mut resampled = vec![0; dataset.len()];
        let mut of_classes = vec![0; sizes.len()];
        for epoch in 0..epochs {
            let entries = entries(&order, epoch);
            prop_assert_eq!(entries.len(), dataset.len());
            let mut of_epoch = vec![0; sizes.len()];
            entries.iter().for_each(|&index| of_epoch[dataset.label(index)] += 1);
            for (class, count) in of_epoch.iter().enumerate() {
                of_classes[class] += count;
            }
            entries.iter().for_each(|&index| resampled[index] += 1);
            let filled = |counts: &[usize]| counts.iter().zip(&sizes).filter(|(_, size)| **size > 0).map(|(count, _)| *count).collect::<Vec<_>>();
            for counts in [filled(&of_epoch), filled(&of_classes)] {
                prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
            }
            for class in 0..sizes.len() {
                let counts: Vec<usize> = (0..dataset.len()).filter(|&index| dataset.label(index) == class).map(|index| resampled[index]).collect();
                let (least, most) = (counts.iter().min(), counts.iter().max());
                prop_assert!(most.unwrap_or(&0) - least.unwrap_or(&0) <= 1, "class {class}: {counts:?}");
            }
        }
    }

    /// The repetitions of a sample follow each other in the epoch, so that its shards share them, and as many epochs as there are
    /// repetitions have every sample equally often.
    #[test]
    fn repetitions_are_neighbours(groups in 1usize..8, repeats in 1usize..5, first in 0u64..3) {
        let samples = groups * repeats;
        let order = order(&[samples], false, repeats, 1, 1);
        let mut counts = vec![0; samples];
        for epoch in first * repeats as u64..(first + 1) * repeats as u64 {
            let entries = entries(&order, epoch);
            for group in entries.chunks(repeats) {
                prop_assert!(group.iter().all(|index| index == &group[0]), "{entries:?}");
            }
            entries.iter().for_each(|&index| counts[index] += 1);
        }
        prop_assert!(counts.iter().all(|&count| count == repeats), "{counts:?}");
    }

    /// Shards together give the global batch, whose entries go round the shards; a resumed epoch has the remaining entries, with
    /// another global batch too.
    #[test]
    fn pieces_and_rests(
        sizes in prop::collection::vec(1usize..20, 1..4),
        (balanced, repeats) in (any::<bool>(), 1usize..4),
        (shards, batch, after) in (1usize..5, 1usize..4, 1usize..6),
        cut in 0usize..5,
    ) {
        let samples: usize = sizes.iter().sum();
        prop_assume!(samples >= (shards * batch).max(after));
        let all = entries(&order(&sizes, balanced, repeats, 1, 1), 3);
        let split = order(&sizes, balanced, repeats, shards, batch);
        let epoch = split.epoch(3);
        for step in 0..epoch.batches() {
            let global = all[step * shards * batch..].chunks(shards * batch).next().unwrap_or_default();
            let few = global.len() / shards;
            let longer = global.len() % shards;
            for shard in 0..shards {
                let own = epoch.local(step, &Sharding::one(shard, shards, batch));
                let expected: Vec<usize> = match repeats {
                    1 => global[shard * few + shard.min(longer)..][..few + usize::from(shard < longer)].to_vec(),
                    _ => global.iter().skip(shard).step_by(shards).copied().collect(),
                };
                prop_assert_eq!(own, expected);
            }
        }
        let consumed = cut.min(samples / (shards * batch)) * shards * batch;
        let rest = order(&sizes, balanced, repeats, 1, after);
        let rest = rest.rest_of_epoch(3, consumed);
        let seen: Vec<usize> = (0..rest.batches()).flat_map(|step| rest.global_batch(step)).collect();
        prop_assert_eq!(&seen[..], &all[consumed..]);
    }
}

/// One rank's batches, for each of its shards in turn: index and pixels.
fn ledger(local: std::ops::Range<usize>, consumed: usize, threads: usize) -> Vec<Vec<(u64, Vec<u8>)>> {
    batches(loader(local, threads).epoch(2, consumed))
}

fn loader(local: std::ops::Range<usize>, threads: usize) -> TrainLoader {
    let sampler = Sampler::Resampled { balanced: true, repeats: 2 };
    let sharding = Sharding { local, shards: 4, batch: 2 };
    let transform = TrainTransform::empty(8).then(RandomResizedCrop::new(8));
    let pool = DecodePool::new(threads).unwrap();
    let dataset = Arc::new(Sized(vec![25, 5, 3]));
    TrainLoader::with_sampler(&pool, dataset, transform, sharding, 7, sampler).unwrap()
}

fn batches(batches: Batches) -> Vec<Vec<(u64, Vec<u8>)>> {
    let batches = batches.map(|batch| {
        let batch = batch.unwrap();
        let image = |place: usize| batch.images[place * 192..(place + 1) * 192].to_vec();
        batch.places().map(|place| (batch.indices[place], image(place))).collect()
    });
    batches.collect()
}

#[test]
fn the_ledger_is_the_same_on_any_number_of_ranks_and_after_a_stop() {
    let alone = ledger(0..4, 0, 2);
    assert_eq!(alone.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8, 8, 8, 1]);
    for ranks in [vec![0..1, 1..2, 2..3, 3..4], vec![0..2, 2..4], vec![0..3, 3..4]] {
        let pieces: Vec<_> = ranks.into_iter().map(|local| ledger(local, 0, 1)).collect();
        for (step, batch) in alone.iter().enumerate() {
            let together: Vec<_> = pieces.iter().flat_map(|piece| piece[step].clone()).collect();
            assert!(together == *batch, "step {step}");
        }
    }
    // Stopped after two of the batches, and gone on with another number of ranks.
    let rests: Vec<_> = [0..2, 2..4].into_iter().map(|local| ledger(local, 16, 1)).collect();
    for (step, batch) in alone[2..].iter().enumerate() {
        assert!([rests[0][step].clone(), rests[1][step].clone()].concat() == *batch, "step {step} after the stop");
    }
}

/// The repetitions of a sample were the same image: its random numbers followed from its index and the epoch alone.
#[test]
fn repetitions_are_augmented_differently() {
    // A class of three images has a third of the epoch.
    check_versions(ledger(0..4, 0, 2));
    let loader = loader(0..4, 2);
    let own = loader.order().own(2, vec![7; 9], 0).unwrap();
    check_versions(batches(loader.epoch_in(2, own)));
}

#[track_caller]
fn check_versions(batches: Vec<Vec<(u64, Vec<u8>)>>) {
    let mut versions: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    for (index, pixels) in batches.into_iter().flatten() {
        versions.entry(index).or_default().push(pixels);
    }
    let most = versions.values().map(Vec::len).max().unwrap();
    assert!(most >= 4, "{most}");
    for (index, mut pixels) in versions {
        let count = pixels.len();
        pixels.sort();
        pixels.dedup();
        assert_eq!(pixels.len(), count, "sample {index}");
    }
}
