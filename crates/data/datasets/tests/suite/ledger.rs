//! The ledger: what each step of a run has trained on is what the sampler says, for every source and sampler, through stops,
//! resumes and other numbers of ranks; and evaluation sees each sample once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use enmasse_data::{DataError, Dataset, DecodePool, EvalLoader, Locality, Sampler, Sharding, TrainLoader, TrainOrder};
use enmasse_datasets::{OpenOptions, open_whole};
use enmasse_image::{EvalTransform, Image, RandomResizedCrop, TrainTransform};
use proptest::prelude::*;

const SIZE: usize = 8;

/// An entry: sample, class, and pixels of the augmented image.
type Entry = (u64, i32, Vec<u8>);

/// The same forty images from Parquet files, from archives, and from a folder by a manifest.
fn sources(root: &Path) -> Vec<(&'static str, Arc<dyn Dataset>)> {
    let whole = |path: &Path| open_whole(path, &OpenOptions::default()).unwrap().dataset;
    let parquet = root.join("parquet");
    fs::create_dir(&parquet).unwrap();
    for (name, from) in [("a.parquet", "snappy"), ("b.parquet", "gzip")] {
        fs::copy(format!("tests/fixtures/parquet.{from}.parquet"), parquet.join(name)).unwrap();
    }
    let rows = whole(&parquet);
    let (shards, files) = (root.join("shards"), root.join("files"));
    fs::create_dir(&shards).unwrap();
    fs::create_dir(&files).unwrap();
    let mut manifest = "path,label\n".to_owned();
    let mut image = Vec::new();
    for (number, samples) in (0..rows.len()).collect::<Vec<_>>().chunks(9).enumerate() {
        let mut archive = tar::Builder::new(File::create(shards.join(format!("{number}.tar"))).unwrap());
        for &i in samples {
            assert!(rows.locality().unwrap().read_file(i, &mut image).unwrap());
            let name = format!("{i:02}.png");
            let label = rows.label(i).to_string();
            fs::write(files.join(&name), &image).unwrap();
            manifest += &format!("{name},{label}\n");
            for (name, bytes) in [(name, image.as_slice()), (format!("{i:02}.cls"), label.as_bytes())] {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, name, bytes).unwrap();
            }
        }
        archive.finish().unwrap();
    }
    fs::write(files.join("list.csv"), manifest).unwrap();
    let of_files = whole(&files.join("list.csv"));
    vec![("Parquet", rows), ("archives", whole(&shards)), ("manifest", of_files)]
}

/// A sampler, and whether an epoch leaves out a last batch that is not full.
type Order = (Sampler, bool);

fn loader(data: &Arc<dyn Dataset>, (sampler, drops): Order, sharding: Sharding, threads: usize) -> TrainLoader {
    let pool = DecodePool::new(threads).unwrap();
    let transform = TrainTransform::empty(SIZE).then(RandomResizedCrop::new(SIZE));
    TrainLoader::with_sampler(&pool, data.clone(), transform, sharding, 7, sampler).unwrap().drop_last(drops).unwrap()
}

/// Ranks, each by the end of its shards, which begin at the end of those before it.
type Ranks = [usize];

/// The batches of an epoch after its first `consumed` entries: each batch of all ranks together. Places without a sample have images,
/// and the loss has the weight of those with one.
fn batches(
    data: &Arc<dyn Dataset>,
    order: Order,
    (epoch, consumed): (u64, usize),
    (ranks, batch): (&Ranks, usize),
) -> Vec<Vec<Entry>> {
    let shards = *ranks.last().unwrap();
    let mut together: Vec<Vec<Entry>> = Vec::new();
    let mut weights = Vec::new();
    for (rank, &end) in ranks.iter().enumerate() {
        let local = rank.checked_sub(1).map_or(0, |before| ranks[before])..end;
        let threads = 1 + local.len() % 2;
        let own = loader(data, order, Sharding { local, shards, batch }, threads).epoch(epoch, consumed);
        for (step, own) in own.enumerate() {
            let own = own.unwrap();
            let images = own.images.chunks_exact(SIZE * SIZE * 3).map(<[u8]>::to_vec);
            let entries = own.indices.iter().copied().zip(own.labels.iter().copied()).zip(images);
            let entries = entries.map(|((index, label), pixels)| (index, label, pixels));
            let (counted, others): (Vec<Entry>, Vec<Entry>) = entries.partition(|(_, label, _)| *label >= 0);
            assert_eq!(counted.len(), own.valid);
            assert!(
                others
                    .iter()
                    .all(|(index, _, pixels)| *index < data.len() as u64 && pixels.iter().any(|&byte| byte > 0))
            );
            together.resize(together.len().max(step + 1), Vec::new());
            together[step].extend(counted);
            weights.resize(together.len(), own.loss_weight);
            assert_eq!(weights[step], own.loss_weight);
        }
    }
    let counted = together.iter().map(|batch_of_all| (shards * batch) as f32 / batch_of_all.len() as f32);
    assert!(counted.eq(weights));
    together
}

/// The order of batches of one sample, of which larger ones are made. PyTorch's depends on the number of shards.
fn entries(data: &Arc<dyn Dataset>, sampler: Sampler, epoch: u64) -> Vec<Entry> {
    batches(data, (sampler, false), (epoch, 0), (&[1], 1)).into_iter().flatten().collect()
}

fn resampled(balanced: bool, repeats: usize) -> Sampler {
    Sampler::Resampled { balanced, repeats }
}

/// A run that stops twice, in the middle of an epoch, and goes on with other numbers of ranks, shards, and samples in a batch, with a
/// last batch that is not full and without it.
#[test]
fn every_entry_is_trained_on_once_through_stops_and_changes_of_ranks() {
    let root = tempfile::tempdir().unwrap();
    let sources = sources(root.path());
    let samplers = [
        Sampler::Shuffle,
        Sampler::Blocks,
        resampled(true, 1),
        resampled(false, 3),
        resampled(true, 2),
        Sampler::Distributed { drop_last: false },
        Sampler::Distributed { drop_last: true },
    ];
    let (alone, four, uneven, eight): (&Ranks, &Ranks, &Ranks, &Ranks) = (&[1], &[1, 2, 3, 4], &[3, 4], &[2, 4, 6, 8]);
    // Ranks, samples of a shard, and the steps before the next stop.
    let histories: [Vec<(&Ranks, usize, usize)>; 4] = [
        vec![(alone, 6, 99)],
        vec![(four, 2, 2), (uneven, 2, 1), (alone, 8, 99)],
        vec![(eight, 1, 1), (four, 1, 3), (alone, 5, 99)],
        vec![(alone, 7, 3), (eight, 1, 99)],
    ];
    for (source, data) in &sources {
        for sampler in samplers {
            // Archives and Parquet files alone have blocks.
            if sampler == Sampler::Blocks && *source == "manifest" {
                assert!(data.locality().unwrap().blocks().is_none());
                continue;
            }
            let expected = [entries(data, sampler, 3), entries(data, sampler, 4)];
            for (history, drops) in histories.iter().flat_map(|history| [(history, false), (history, true)]) {
                let (mut place, mut batch) = (0, 0);
                let told = format!("{source} {sampler:?} {drops} {history:?}");
                for &(ranks, own_batch, steps) in history {
                    batch = own_batch * ranks.last().unwrap();
                    let found = batches(data, (sampler, drops), (3, place), (ranks, own_batch));
                    let left = expected[0].len() - place;
                    assert_eq!(found.len(), if drops { left / batch } else { left.div_ceil(batch) }, "{told}");
                    for mut found in found.into_iter().take(steps) {
                        let end = expected[0].len().min(place + batch);
                        let mut expected = expected[0][place..end].to_vec();
                        if !matches!(
                            sampler,
                            Sampler::Shuffle | Sampler::Blocks | Sampler::Resampled { repeats: 1, .. }
                        ) {
                            // The entries go round the shards.
                            found.sort();
                            expected.sort();
                        }
                        assert!(found == expected, "{told} from {place} on");
                        place = end;
                    }
                }
                // The next epoch begins anew, whatever was left of this one.
                assert!(expected[0].len() - place < if drops { batch } else { 1 }, "{told}");
            }
            let next: Vec<Entry> = batches(data, (sampler, false), (4, 0), (four, 2)).into_iter().flatten().collect();
            assert_eq!(next.len(), 40);
            assert!(next.iter().all(|entry| expected[1].contains(entry)));
        }
    }
    // A source changes nothing but the order by blocks.
    for sampler in samplers.into_iter().filter(|sampler| *sampler != Sampler::Blocks) {
        let all: Vec<_> = sources.iter().map(|(_, data)| entries(data, sampler, 3)).collect();
        assert!(all.iter().all(|entries| *entries == all[0]), "{sampler:?}");
    }
}

#[test]
fn data_smaller_than_a_global_batch_were_refused() {
    let root = tempfile::tempdir().unwrap();
    for (source, data) in sources(root.path()) {
        for sampler in [Sampler::Shuffle, resampled(true, 2), Sampler::Distributed { drop_last: true }] {
            let mut expected = entries(&data, sampler, 3);
            expected.sort();
            // Of the second, places outnumber images by more than two to one. A shard of the last one has no sample, which PyTorch's
            // sampler does not allow.
            let few: [(&Ranks, usize); 3] = [(&[1], 41), (&[2, 4], 25), (&[1, 41], 1)];
            let most = if sampler == (Sampler::Distributed { drop_last: true }) { 2 } else { 3 };
            for (ranks, batch) in few.into_iter().take(most) {
                let mut found = batches(&data, (sampler, false), (3, 0), (ranks, batch));
                assert_eq!(found.len(), 1, "{source} {sampler:?} {ranks:?}");
                found[0].sort();
                assert!(found[0] == expected, "{source} {sampler:?} {ranks:?}");
                let order = TrainOrder::of(data.as_ref(), sampler, 7, &Sharding::one(0, *ranks.last().unwrap(), batch));
                let error = order.unwrap().drop_last(true).unwrap_err();
                assert!(matches!(error, DataError::TooFewSamples { samples: 40, .. }), "{error}");
            }
        }
    }
}

/// How often each sample, and each class, comes in an epoch.
#[test]
fn samplers_draw_as_they_say() {
    let root = tempfile::tempdir().unwrap();
    for (source, data) in sources(root.path()) {
        let check = |sampler: Sampler, samples: Range<usize>, classes: Range<usize>| {
            let (mut of_sample, mut of_class) = (BTreeMap::<u64, usize>::new(), BTreeMap::<i32, usize>::new());
            for (index, label, _) in entries(&data, sampler, 2) {
                *of_sample.entry(index).or_default() += 1;
                *of_class.entry(label).or_default() += 1;
            }
            let count = |index: u64| of_sample.get(&index).copied().unwrap_or(0);
            assert!((0..40).all(|index| samples.contains(&count(index))), "{source} {sampler:?} {of_sample:?}");
            assert!(of_class.values().all(|count| classes.contains(count)), "{source} {sampler:?} {of_class:?}");
            assert_eq!(of_class.len(), 3);
        };
        // Fourteen, fourteen and twelve images of the classes.
        check(Sampler::Shuffle, 1..2, 12..15);
        if data.locality().unwrap().blocks().is_some() {
            check(Sampler::Blocks, 1..2, 12..15);
        }
        check(resampled(true, 1), 0..3, 13..15);
        check(resampled(false, 4), 0..5, 0..41);
        check(Sampler::Distributed { drop_last: true }, 1..2, 12..15);
    }
}

/// The last batch is not full: it counts as many samples as it has, on every number of ranks.
#[test]
fn evaluation_sees_each_sample_once() {
    let root = tempfile::tempdir().unwrap();
    for (source, data) in sources(root.path()) {
        for (ranks, batch) in [(1, 1), (1, 7), (2, 7), (4, 3), (8, 1), (8, 3)] {
            let mut seen = Vec::new();
            for rank in 0..ranks {
                let pool = DecodePool::new(2).unwrap();
                let sharding = Sharding::one(rank, ranks, batch);
                let transform = EvalTransform { resize: SIZE, ..EvalTransform::new(SIZE) };
                let pass = EvalLoader::new(&pool, data.clone(), transform, sharding).unwrap();
                for batch in pass.pass() {
                    let batch = batch.unwrap();
                    let own: Vec<usize> = batch.places().map(|place| batch.indices[place] as usize).collect();
                    assert_eq!(own.len(), batch.valid);
                    for (place, index) in batch.places().zip(own) {
                        let pixels = &batch.images[place * SIZE * SIZE * 3..][..SIZE * SIZE * 3];
                        assert_eq!(pixels, data.read(index).unwrap().pixels());
                        seen.push(index);
                    }
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..40).collect::<Vec<_>>(), "{source} on {ranks} ranks");
        }
    }
}

/// Samples in blocks of these lengths.
struct Blocky(Vec<usize>);

impl Dataset for Blocky {
    fn len(&self) -> usize {
        self.0.iter().sum()
    }

    fn label(&self, _: usize) -> usize {
        0
    }

    fn read(&self, _: usize) -> Result<Image, DataError> {
        Ok(Image::new(1, 1, vec![0; 3])?)
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Blocky {
    fn blocks(&self) -> Option<Vec<usize>> {
        Some(self.0.clone())
    }
}

proptest! {
    /// Each sample comes once; of each sixteen blocks all samples come before those of the next sixteen; and epochs differ.
    #[test]
    fn blocks_are_read_a_few_at_a_time(lengths in prop::collection::vec(0usize..9, 1..60), epoch in 0u64..9) {
        let data = Blocky(lengths.clone());
        prop_assume!(data.len() > 0);
        let order = TrainOrder::of(&data, Sampler::Blocks, 5, &Sharding::one(0, 1, 1)).unwrap();
        let samples = |epoch: u64| {
            let epoch = order.epoch(epoch);
            (0..epoch.batches()).flat_map(|batch| epoch.global_batch(batch)).collect::<Vec<usize>>()
        };
        let all = samples(epoch);
        let mut sorted = all.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..data.len()).collect::<Vec<_>>());
        let block_of = |sample: usize| {
            let ends = lengths.iter().scan(0, |end, length| { *end += length; Some(*end) });
            ends.take_while(|end| *end <= sample).count()
        };
        // The blocks that are begun and not ended, at any place.
        let mut left = lengths.clone();
        for &sample in &all {
            left[block_of(sample)] -= 1;
            let begun = (0..lengths.len()).filter(|&block| left[block] > 0 && left[block] < lengths[block]).count();
            prop_assert!(begun <= 16);
        }
        if data.len() > 20 {
            prop_assert_ne!(all, samples(epoch + 1));
        }
    }
}

#[test]
fn orders_of_blocks_that_cannot_be_made() {
    let check =
        |order: Result<TrainOrder, DataError>, expected: &str| assert_eq!(order.unwrap_err().to_string(), expected);
    let sharding = Sharding::one(0, 1, 1);
    let needs = "an order of blocks needs the blocks of a data set";
    check(TrainOrder::with_sampler(Sampler::Blocks, 0, 5, &sharding), needs);
    struct Wrong(Option<Vec<usize>>);
    impl Dataset for Wrong {
        fn len(&self) -> usize {
            5
        }
        fn label(&self, _: usize) -> usize {
            0
        }
        fn read(&self, _: usize) -> Result<Image, DataError> {
            Ok(Image::new(1, 1, vec![0; 3])?)
        }
        fn locality(&self) -> Option<&dyn Locality> {
            Some(self)
        }
    }

    impl Locality for Wrong {
        fn blocks(&self) -> Option<Vec<usize>> {
            self.0.clone()
        }
    }
    let of = |blocks: Option<Vec<usize>>| TrainOrder::of(&Wrong(blocks), Sampler::Blocks, 0, &sharding);
    check(of(None), "an order of blocks needs a data set that has blocks");
    let wrong = "the blocks of the data set have another number of samples than the data set";
    check(of(Some(vec![3, 1])), wrong);
    check(of(Some(vec![])), wrong);
    check(of(Some(vec![usize::MAX, 6])), wrong);
    assert!(of(Some(vec![2, 3])).is_ok());
}
