//! Unreadable samples that are skipped: the substitutes in training, the gaps in evaluation, and the same for any ranks.

use std::io;
use std::sync::Arc;

use enmasse_data::{
    Batch, DataError, Dataset, DecodePool, EvalLoader, Locality, Sampler, Sharding, TrainLoader, TrainOrder,
};
use enmasse_image::{EvalTransform, Image, TrainTransform};

const SEED: u64 = 5;
const EPOCH: u64 = 3;
const PYTORCH: Sampler = Sampler::Distributed { drop_last: false };

/// Images whose pixels encode their index, some of which cannot be read.
#[derive(Clone)]
struct Coded {
    len: usize,
    bad: Vec<usize>,
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
            false => Ok(Image::new(9, 8, (0..216).map(|i| (i * 7 + index * 31) as u8).collect())?),
        }
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

/// The samples of the epoch in the order of a sampler.
fn entries(len: usize, sampler: Sampler) -> Vec<usize> {
    let order = TrainOrder::with_sampler(sampler, SEED, len, &Sharding::one(0, 1, 1)).unwrap().epoch(EPOCH);
    (0..len).map(|position| order.global_batch(position)[0]).collect()
}

fn train(data: &Coded, sharding: Sharding, sampler: Sampler) -> TrainLoader {
    let pool = DecodePool::new(3).unwrap();
    let data = Arc::new(data.clone());
    let loader = TrainLoader::with_sampler(&pool, data, TrainTransform::new(8), sharding, SEED, sampler).unwrap();
    loader.skip_unreadable(true)
}

/// The shards of each of `ranks` ranks.
fn shares(shards: usize, ranks: usize, batch: usize) -> impl Iterator<Item = Sharding> {
    (0..ranks).map(move |rank| Sharding { local: rank * shards / ranks..(rank + 1) * shards / ranks, shards, batch })
}

/// What all ranks see: the samples, their labels and pixels, batch after batch and rank after rank, and the samples that
/// they skip.
fn together(parts: Vec<Vec<Batch>>) -> (Vec<Vec<u64>>, Vec<Vec<u8>>, Vec<String>) {
    let batches = parts.iter().map(Vec::len).max().unwrap_or(0);
    let mut indices = vec![Vec::new(); batches];
    let mut pixels = Vec::new();
    let mut skipped = Vec::new();
    for number in 0..batches {
        for part in &parts {
            let batch = &part[number];
            assert!(batch.places().all(|place| batch.labels[place] as u64 == batch.indices[place]));
            assert_eq!(batch.places().count(), batch.valid);
            indices[number].extend(batch.places().map(|place| batch.indices[place]));
            pixels.extend(batch.places().map(|place| batch.images[place * 192..(place + 1) * 192].to_vec()));
            skipped.extend(batch.unreadable.iter().map(ToString::to_string));
        }
    }
    skipped.sort();
    skipped.dedup();
    (indices, pixels, skipped)
}

/// Six shards of one sample each, or three of two in PyTorch's order. Positions are those in the order of the epoch.
#[test]
fn the_next_sample_of_the_epoch_takes_the_place() {
    let check = |len: usize, sampler: Sampler, bad: &[usize], expected: &[usize], met: &[usize]| {
        let entries = entries(len, sampler);
        let whole = Coded { len, bad: Vec::new() };
        let data = Coded { bad: bad.iter().map(|&position| entries[position]).collect(), ..whole.clone() };
        let (shards, batch) = if sampler == Sampler::Shuffle { (6, 1) } else { (3, 2) };
        let mut met: Vec<String> = met.iter().map(|&position| format!("{}.jpg (broken)", entries[position])).collect();
        met.sort();
        let expected: Vec<u64> = expected.iter().map(|&position| entries[position] as u64).collect();
        let of = |data: &Coded, ranks| {
            let part = |sharding| train(data, sharding, sampler).epoch(EPOCH, 0).map(Result::unwrap).collect();
            together(shares(shards, ranks, batch).map(part).collect())
        };
        let first = of(&data, 1);
        for ranks in 1..=3 {
            let (indices, pixels, skipped) = of(&data, ranks);
            assert_eq!((indices.concat(), &skipped), (expected.clone(), &met), "{ranks} ranks, bad {bad:?}");
            assert_eq!(pixels, first.1);
        }
        // A substitute is drawn like itself.
        let (indices, pixels, _) = of(&whole, 1);
        for (index, found) in expected.iter().zip(&first.1) {
            if let Some(place) = indices.concat().iter().position(|own| own == index) {
                assert_eq!(*found, pixels[place]);
            }
        }
    };
    check(7, Sampler::Shuffle, &[], &[0, 1, 2, 3, 4, 5, 6], &[]);
    check(7, Sampler::Shuffle, &[0], &[1, 1, 2, 3, 4, 5, 6], &[0]);
    check(7, Sampler::Shuffle, &[2, 3], &[0, 1, 4, 4, 4, 5, 6], &[2, 3]);
    // The sample of the last batch, then the first one.
    check(7, Sampler::Shuffle, &[5], &[0, 1, 2, 3, 4, 6, 6], &[5]);
    check(7, Sampler::Shuffle, &[5, 6], &[0, 1, 2, 3, 4, 0, 0], &[5, 6]);
    check(7, Sampler::Shuffle, &[6], &[0, 1, 2, 3, 4, 5, 0], &[6]);
    check(6, Sampler::Shuffle, &[0, 5], &[1, 1, 2, 3, 4, 1], &[0, 5]);
    check(7, Sampler::Shuffle, &[0, 1, 2, 3, 4, 6], &[5; 7], &[0, 1, 2, 3, 4, 6]);
    check(13, Sampler::Shuffle, &[11, 12, 0], &[1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 1], &[0, 11, 12]);
    check(6, PYTORCH, &[], &[0, 3, 1, 4, 2, 5], &[]);
    check(6, PYTORCH, &[1, 5], &[0, 3, 2, 4, 2, 0], &[1, 5]);
}

#[test]
fn a_resumed_epoch_has_the_same_substitutes() {
    let entries = entries(23, Sampler::Shuffle);
    let data = Coded { len: 23, bad: vec![entries[0], entries[9], entries[10], entries[21], entries[22]] };
    let rest = |consumed| {
        let loader = train(&data, Sharding::one(0, 1, 2), Sampler::Shuffle);
        let batches = loader.epoch(EPOCH, consumed).map(|batch| batch.unwrap());
        batches.map(|batch| (batch.indices.clone(), batch.images.to_vec())).collect::<Vec<_>>()
    };
    let whole = rest(0);
    for done in 0..=11 {
        assert_eq!(rest(done * 2), whole[done..]);
    }
}

#[test]
fn too_many_in_a_row_are_an_error() {
    let check = |len: usize, bad: usize, expected: Result<usize, &str>| {
        let entries = entries(len, Sampler::Shuffle);
        let data = Coded { len, bad: entries[..bad].to_vec() };
        let found = train(&data, Sharding::one(0, 1, 4), Sampler::Shuffle).epoch(EPOCH, 0).next().unwrap();
        let last = |text: &str| text.replace("LAST", &format!("{}.jpg (broken)", entries[bad.min(100) - 1]));
        match (found, expected) {
            (Ok(found), Ok(position)) => assert_eq!(found.indices[0], entries[position] as u64),
            (Err(found), Err(expected)) => assert_eq!(found.to_string(), last(expected)),
            (found, _) => panic!("{bad} of {len}: {found:?}"),
        }
    };
    check(300, 99, Ok(99));
    let hundred = "100 samples in a row cannot be read, the last one LAST; this is no exception: check the data set";
    check(300, 100, Err(hundred));
    check(300, 300, Err(hundred));
    check(7, 6, Ok(6));
    check(7, 7, Err(&hundred.replace("100", "7")));
}

/// Samples that are left out, batch by batch, at any number of ranks.
#[test]
fn evaluation_leaves_them_out() {
    let check = |len: usize, bad: &[usize], valid: &[usize]| {
        for ranks in 1..=3 {
            let part = |sharding| {
                let pool = DecodePool::new(3).unwrap();
                let data = Arc::new(Coded { len, bad: bad.to_vec() });
                let loader = EvalLoader::new(&pool, data, EvalTransform::new(8), sharding).unwrap();
                let batches = loader.skip_unreadable(true).pass().map(Result::unwrap);
                batches
                    .inspect(|batch| {
                        let places: Vec<usize> = batch.places().collect();
                        for at in (0..batch.labels.len()).filter(|at| !places.contains(at)) {
                            assert_eq!((batch.labels[at], batch.indices[at]), (-1, u64::MAX));
                            assert!(batch.images[at * 192..(at + 1) * 192].iter().all(|&byte| byte == 0));
                        }
                    })
                    .collect()
            };
            let (indices, _, skipped) = together(shares(6, ranks, 1).map(part).collect());
            assert_eq!(indices.iter().map(Vec::len).collect::<Vec<_>>(), valid, "{ranks} ranks");
            let readable: Vec<u64> = (0..len).filter(|index| !bad.contains(index)).map(|index| index as u64).collect();
            assert_eq!(indices.concat(), readable);
            let expected: Vec<String> = bad.iter().map(|index| format!("{index}.jpg (broken)")).collect();
            assert_eq!(skipped, expected);
        }
    };
    check(8, &[], &[6, 2]);
    check(8, &[0], &[5, 2]);
    check(8, &[3, 7], &[5, 1]);
    check(8, &[6, 7], &[6, 0]);
    check(7, &[0, 1, 2, 3, 4, 5, 6], &[0, 0]);
}

/// Errors of one sample, and errors of the system or of the program, which skipping would hide.
#[test]
fn errors_that_can_be_skipped() {
    let read = |kind| DataError::Read { path: "a.jpg".into(), source: io::Error::from(kind) };
    let check = |error: DataError, expected: bool| assert_eq!(error.is_unreadable(), expected, "{error}");
    check(DataError::Image { name: "a.jpg".to_owned(), problem: "broken".to_owned() }, true);
    check(read(io::ErrorKind::NotFound), true);
    check(read(io::ErrorKind::PermissionDenied), true);
    check(read(io::ErrorKind::IsADirectory), true);
    check(read(io::ErrorKind::UnexpectedEof), true);
    check(read(io::ErrorKind::OutOfMemory), false);
    check(read(io::ErrorKind::TimedOut), false);
    check(DataError::Sample { name: "sample 1".to_owned(), problem: "too small".to_owned() }, false);
    check(DataError::Panicked { name: "sample 1".to_owned(), message: "a bug".to_owned() }, false);
    check(DataError::Setting("wrong".to_owned()), false);
}
