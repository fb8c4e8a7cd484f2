//! Mixed images: a ledger of what is mixed with what.

use std::ops::Range;
use std::sync::Arc;

use enmasse_data::{
    Batch, DataError, Dataset, DecodePool, EvalLoader, Locality, Sampler, Sharding, TrainLoader, TrainOrder,
};
use enmasse_image::{EvalTransform, Image, Mixing, TrainTransform};
use proptest::prelude::*;

const BOTH: Mixing = Mixing { mixup_alpha: 0.8, cutmix_alpha: 1.0 };
const MIXUP: Mixing = Mixing { cutmix_alpha: 0.0, ..BOTH };
const CUTMIX: Mixing = Mixing { mixup_alpha: 0.0, ..BOTH };

#[test]
fn settings_out_of_range() {
    let check = |mixing: Mixing, batch: usize, expected: &str| {
        let pool = DecodePool::new(1).unwrap();
        let list = TrainTransform::new(8).mixed(mixing);
        let loader = TrainLoader::new(&pool, Arc::new(Coded::new(8)), list, Sharding::one(0, 1, batch), 0);
        assert_eq!(loader.err().map(|error| error.to_string()).unwrap_or_default(), expected);
    };
    check(BOTH, 2, "");
    let range =
        |name: &str, alpha: &str| format!("the alpha of {name}, {alpha}, is out of range: use a finite number from 0");
    check(Mixing { mixup_alpha: -0.5, ..BOTH }, 2, &range("mixup", "-0.5"));
    check(Mixing { cutmix_alpha: f64::NAN, ..BOTH }, 2, &range("cutmix", "NaN"));
    check(Mixing { cutmix_alpha: f64::INFINITY, ..BOTH }, 2, &range("cutmix", "inf"));
    let neither = "images are to be mixed, but neither by mixup nor by cutmix";
    check(Mixing { mixup_alpha: 0.0, cutmix_alpha: 0.0 }, 2, neither);
    let alone = "a global batch of one image has none to mix it with: use a larger batch, or no mixup and cutmix";
    check(BOTH, 1, alone);
}

/// Images of which all bytes are the index; some cannot be read. The label is the index.
struct Coded {
    len: usize,
    bad: Vec<usize>,
}

impl Coded {
    fn new(len: usize) -> Self {
        Coded { len, bad: Vec::new() }
    }
}

impl Dataset for Coded {
    fn len(&self) -> usize {
        self.len
    }
    fn label(&self, index: usize) -> usize {
        index
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        match self.bad.contains(&index) {
            true => Err(DataError::Image { name: self.name(index), problem: "broken".to_owned() }),
            false => Ok(Image::new(8, 8, vec![index as u8; 192])?),
        }
    }
    fn targets(&self, index: usize) -> Vec<f32> {
        vec![index as f32, 100.0 - index as f32]
    }
    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Coded {
    fn name(&self, index: usize) -> String {
        format!("{index}.jpg")
    }
}

const SEED: u64 = 5;
const EPOCH: u64 = 2;
const LIST: [fn(usize) -> TrainTransform; 2] =
    [|size| TrainTransform::empty(size).mixed(BOTH), |size| TrainTransform::new(size).mixed(BOTH)];

fn loader(data: Coded, list: TrainTransform, sharding: Sharding, sampler: Sampler, threads: usize) -> TrainLoader {
    let pool = DecodePool::new(threads).unwrap();
    TrainLoader::with_sampler(&pool, Arc::new(data), list, sharding, SEED, sampler).unwrap().skip_unreadable(true)
}

/// A place of a batch with a sample: its pixels, label and sample, and the other label with the share of the own one.
type Seen = (Vec<u8>, i32, u64, i32, f32);

fn seen(batch: Result<Batch, DataError>) -> Vec<Seen> {
    let batch = batch.unwrap();
    let pixels = batch.images.chunks_exact(192).map(<[u8]>::to_vec);
    let labels = batch.labels.iter().zip(&batch.indices).zip(batch.other_labels.iter().zip(&batch.lambdas));
    pixels
        .zip(labels)
        .map(|(pixels, ((&label, &index), (&other, &share)))| (pixels, label, index, other, share))
        .filter(|(_, label, ..)| *label >= 0)
        .collect()
}

/// The shards of ranks, given where those of each end.
fn shards(ends: &[usize]) -> impl Iterator<Item = Range<usize>> {
    ends.iter().scan(0, |start, &end| Some(std::mem::replace(start, end)..end))
}

/// The batches of all ranks together.
fn together(ranks: &[usize], batch: usize, sampler: Sampler, threads: usize, consumed: usize) -> Vec<Vec<Seen>> {
    let count = *ranks.last().unwrap();
    let mut all: Vec<Vec<Seen>> = Vec::new();
    for local in shards(ranks) {
        let sharding = Sharding { local, shards: count, batch };
        let loader = loader(Coded::new(61), LIST[1](8), sharding, sampler, threads);
        for (step, batch) in loader.epoch(EPOCH, consumed).map(seen).enumerate() {
            if all.len() == step {
                all.push(Vec::new());
            }
            all[step].extend(batch);
        }
    }
    all
}

/// Places of one shard, and of several with one pair in two of them; any ranks, any threads, and after a stop.
#[test]
fn mixtures_depend_on_the_batch_alone() {
    for sampler in [Sampler::Shuffle, Sampler::Resampled { balanced: true, repeats: 2 }] {
        let alone = together(&[1], 24, Sampler::Shuffle, 1, 0);
        assert_eq!(alone.len(), 3);
        let check = |batch: usize, divisions: &[&[usize]]| {
            let expected = together(divisions[0], batch, sampler, 3, 0);
            // Without repetitions not even the number of shards matters.
            assert!(sampler != Sampler::Shuffle || expected == alone, "{batch}");
            for ranks in divisions {
                assert!(together(ranks, batch, sampler, 1, 0) == expected, "{batch}: {ranks:?}");
                assert!(together(ranks, batch, sampler, 2, 24) == expected[1..], "{batch}: {ranks:?} after a stop");
            }
        };
        check(12, &[&[2], &[1, 2]]);
        check(6, &[&[4], &[1, 2, 3, 4], &[3, 4]]);
        check(3, &[&[8], &[1, 2, 3, 4, 5, 6, 7, 8], &[1, 5, 8], &[4, 8]]);
        check(1, &[&[24], &[1, 24], &[11, 13, 24]]);
    }
}

proptest! {
    /// Pairs are mutual, lie within a batch, and leave at most one place alone. Repetitions of a sample are not mixed with each
    /// other where shards hold whole pairs.
    #[test]
    fn partners(shards in 1usize..5, batch in 1usize..14, repeats in 1usize..4) {
        let global = shards * batch;
        let sampler = Sampler::Resampled { balanced: false, repeats };
        let sharding = Sharding::one(0, shards, batch);
        let order = TrainOrder::with_sampler(sampler, SEED, global * 3, &sharding).unwrap().epoch(EPOCH);
        let samples = order.global_batch(1);
        let mut alone = 0;
        for place in 0..global {
            match order.partner(1, place) {
                None => alone += 1,
                Some(partner) => {
                    prop_assert!(partner < global && partner != place);
                    prop_assert_eq!(order.partner(1, partner), Some(place));
                    if batch % (2 * repeats) == 0 {
                        prop_assert_eq!(place / batch, partner / batch);
                        prop_assert!(samples[place] != samples[partner]);
                    }
                }
            }
        }
        prop_assert_eq!(alone, global % 2);
    }

    /// The ledger: over an epoch the lambdas of each sample add up to the number of its places, and images have what their
    /// labels say.
    #[test]
    fn every_sample_keeps_its_weight(
        samples in 2usize..60,
        shards in 1usize..4,
        batch in 1usize..8,
        kind in 0usize..3,
        epoch in 0u64..4,
    ) {
        let global = shards * batch;
        prop_assume!(global >= 2 && samples >= global);
        let mixing = [BOTH, MIXUP, CUTMIX][kind];
        let list = TrainTransform::empty(8).mixed(mixing);
        let mut weights = vec![0.0; samples];
        let mut places = vec![0.0; samples];
        for shard in 0..shards {
            let sharding = Sharding::one(shard, shards, batch);
            for batch in loader(Coded::new(samples), list.clone(), sharding, Sampler::Shuffle, 2).epoch(epoch, 0) {
                for (pixels, label, index, other, share) in seen(batch) {
                    prop_assert!((0.5..=1.0).contains(&share));
                    prop_assert!(index == label as u64 || index == other as u64);
                    weights[label as usize] += f64::from(share);
                    weights[other as usize] += 1.0 - f64::from(share);
                    places[index as usize] += 1.0;
                    // The mean of plain images is that of their labels, up to the rounding of bytes.
                    let mean = pixels.iter().map(|&byte| f64::from(byte)).sum::<f64>() / 192.0;
                    let expected = f64::from(share) * f64::from(label) + (1.0 - f64::from(share)) * f64::from(other);
                    prop_assert!((mean - expected).abs() <= 0.5 + 1e-4, "{mean}, not {expected}");
                }
            }
        }
        prop_assert_eq!(places.iter().sum::<f64>(), samples as f64);
        for (weight, places) in weights.iter().zip(&places) {
            prop_assert!((weight - places).abs() < 1e-4, "{weight}, not {places}");
        }
    }
}

/// A substitute is mixed like any sample, on both ranks of a pair, and both name the sample that it replaces.
#[test]
fn an_unreadable_partner_is_replaced() {
    let order = TrainOrder::new(SEED, 13, 6).unwrap().epoch(EPOCH);
    let entries: Vec<usize> = (0..2).flat_map(|batch| order.global_batch(batch)).collect();
    let run = |ranks: &[usize], bad: &[usize]| {
        let (mut all, mut skipped) = (Vec::new(), Vec::new());
        for local in shards(ranks) {
            let sharding = Sharding { local, shards: 2, batch: 3 };
            let data = Coded { len: 13, bad: bad.to_vec() };
            let batch = loader(data, LIST[0](8), sharding, Sampler::Shuffle, 2).epoch(EPOCH, 0).next().unwrap();
            skipped.push(batch.as_ref().unwrap().unreadable.iter().map(ToString::to_string).collect::<Vec<_>>());
            all.extend(seen(batch));
        }
        (all, skipped)
    };
    let whole = run(&[2], &[]).0;
    // The sample of place 3, which shares a pair with place 2 of the other shard. The next one, of place 4, takes the place.
    let (found, skipped) = run(&[1, 2], &[entries[3]]);
    let broken = format!("{}.jpg (broken)", entries[3]);
    assert_eq!(skipped, [[broken.clone()], [broken]]);
    assert_eq!(found, run(&[2], &[entries[3]]).0);
    let indices: Vec<u64> = found.iter().map(|seen| seen.2).collect();
    assert_eq!(indices, [0, 1, 2, 4, 4, 5].map(|position| entries[position] as u64));
    assert_eq!((&found[..2], &found[4..]), (&whole[..2], &whole[4..]));
    let labels = [found[2].1, found[2].3];
    assert!(labels.contains(&(entries[2] as i32)) && labels.contains(&(entries[4] as i32)), "{labels:?}");
    // A substitute that is the partner itself: both places show it as it is.
    let (found, _) = run(&[2], &[entries[4]]);
    assert_eq!(found[4].0, vec![entries[5] as u8; 192]);
    assert_eq!((found[4].1, found[4].3), (entries[5] as i32, entries[5] as i32));
}

/// A pair fails as a whole, also on a rank that has only the readable half of it.
#[test]
fn an_unreadable_partner_is_an_error() {
    let order = TrainOrder::new(SEED, 13, 6).unwrap().epoch(EPOCH);
    let bad = order.global_batch(0)[3];
    for shard in [0, 1] {
        let pool = DecodePool::new(2).unwrap();
        let data = Arc::new(Coded { len: 13, bad: vec![bad] });
        let loader = TrainLoader::new(&pool, data, LIST[0](8), Sharding::one(shard, 2, 3), SEED).unwrap();
        let mut batches = loader.epoch(EPOCH, 0);
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(error.contains(&format!("{bad}.jpg")) && error.contains("broken"), "{error}");
        assert!(batches.next().is_none());
    }
}

/// The values of both samples, in the shares of their images; 0 in places without a sample.
#[test]
fn values_are_mixed_like_images() {
    for list in [TrainTransform::empty(8), LIST[0](8)] {
        let loader = loader(Coded::new(13), list, Sharding::one(0, 1, 6), Sampler::Shuffle, 2);
        let (mut samples, mut gaps) = (0, 0);
        for batch in loader.with_targets(2).epoch(EPOCH, 0) {
            let batch = batch.unwrap();
            assert!(batch.other_labels.is_empty() && batch.lambdas.is_empty());
            for (place, values) in batch.targets.chunks_exact(2).enumerate() {
                if batch.labels[place] < 0 {
                    gaps += 1;
                    assert_eq!(values, [0.0; 2]);
                    continue;
                }
                samples += 1;
                let pixels = &batch.images[place * 192..(place + 1) * 192];
                let mean = pixels.iter().map(|&byte| f32::from(byte)).sum::<f32>() / 192.0;
                assert!((mean - values[0]).abs() <= 0.5 + 1e-4, "{mean}, not {values:?}");
                assert!((values[0] + values[1] - 100.0).abs() < 1e-4, "{values:?}");
            }
        }
        assert_eq!((samples, gaps), (13, 5));
    }
}

/// Labels of both samples are there, whatever their shares.
#[test]
fn labels_of_mixed_images_are_united() {
    let loader = loader(Coded::new(13), LIST[0](8), Sharding::one(0, 1, 6), Sampler::Shuffle, 2);
    let mut mixed = 0;
    for batch in loader.with_targets(2).unite_targets(true).epoch(EPOCH, 0) {
        let batch = batch.unwrap();
        for (pair, (values, indices)) in batch.targets.chunks_exact(4).zip(batch.indices.chunks_exact(2)).enumerate() {
            let sample = |index: u64| [index as f32, 100.0 - index as f32];
            // A place without a sample has no values.
            if batch.labels[2 * pair + 1] < 0 {
                continue;
            }
            let [one, other] = [0, 1].map(|at| sample(indices[at]));
            let united = [one[0].max(other[0]), one[1].max(other[1])];
            assert_eq!(values, [united, united].concat());
            mixed += usize::from(one != other);
        }
    }
    assert!(mixed > 3, "{mixed}");
}

#[test]
fn every_sample_has_as_many_values_as_the_task_takes() {
    let pool = DecodePool::new(1).unwrap();
    let transform = EvalTransform { resize: 8, ..EvalTransform::new(8) };
    let check = |count: usize, expected: Result<&[f32], &str>| {
        let loader =
            EvalLoader::new(&pool, Arc::new(Coded::new(1)), transform.clone(), Sharding::one(0, 1, 2)).unwrap();
        let found = loader.with_targets(count).pass().next().unwrap();
        let found = found.map(|batch| batch.targets.clone()).map_err(|error| error.to_string());
        assert_eq!(found, expected.map(<[f32]>::to_vec).map_err(str::to_owned));
    };
    check(0, Ok(&[]));
    check(2, Ok(&[0.0, 100.0, 0.0, 0.0]));
    check(1, Err("sample 0 (0.jpg): it has 2 values to predict, and the task takes 1"));
}

#[test]
fn without_mixing_there_are_no_shares() {
    let sharding = Sharding::one(0, 1, 4);
    for batch in loader(Coded::new(9), TrainTransform::new(8), sharding, Sampler::Shuffle, 2).epoch(0, 0) {
        let batch = batch.unwrap();
        assert!(batch.other_labels.is_empty() && batch.lambdas.is_empty());
    }
}
