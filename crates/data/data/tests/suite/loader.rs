//! The loader: the same batches for any number of threads, errors at their place, and no hangs.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use enmasse_data::{
    Batch, Batches, DataError, Dataset, DecodePool, EvalLoader, Locality, Sampler, Sharding, TrainLoader, TrainOrder,
};
use enmasse_image::{
    AugMix, AutoAugment, AutoAugmentPolicy, Canvas, ColorJitter, Crop, CropBox, EvalCrop, EvalTransform, GaussianBlur,
    Grayscale, Image, Normalization, PaddingMode, RandAugment, RandomAffine, RandomCrop, RandomErasing,
    RandomGrayscale, RandomHorizontalFlip, RandomPerspective, RandomResizedCrop, RandomRotation, RandomStream,
    RandomVerticalFlip, Resampling, TrainTransform, Transform, TrivialAugmentWide,
};
use enmasse_tensor::{HostBuffer, HostMemory, SystemMemory};

/// Images whose pixels encode their index; some may be faulty.
struct Coded {
    len: usize,
    bad: Vec<usize>,
    panics: bool,
    reads: AtomicUsize,
    threads: Mutex<HashSet<ThreadId>>,
}

fn coded(len: usize) -> Coded {
    Coded { len, bad: vec![], panics: false, reads: AtomicUsize::new(0), threads: Mutex::default() }
}

impl Dataset for Coded {
    fn len(&self) -> usize {
        self.len
    }
    fn label(&self, index: usize) -> usize {
        index % 3
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.threads.lock().unwrap().insert(std::thread::current().id());
        if self.bad.contains(&index) {
            assert!(!self.panics, "no such thing as {index}");
            return Err(DataError::Setting(format!("image {index} is bad")));
        }
        let (width, height) = (9 + index % 4, 8 + index % 5);
        Ok(Image::new(width, height, (0..width * height * 3).map(|i| (i * 7 + index * 31) as u8).collect())?)
    }
}

/// Its first image is not read before the sender is gone.
struct Stalled(Mutex<Receiver<()>>);

impl Dataset for Stalled {
    fn len(&self) -> usize {
        8
    }
    fn label(&self, _: usize) -> usize {
        0
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        if index == 0 {
            let _ = self.0.lock().unwrap().recv();
        }
        Ok(Image::new(8, 8, vec![0; 192])?)
    }
    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Stalled {
    fn name(&self, index: usize) -> String {
        format!("{index}.jpg")
    }
}

/// With a single rank nobody else noticed that a disk did not answer, and the run waited for ever.
#[test]
fn a_loader_waited_for_ever_for_a_disk_that_does_not_answer() {
    let (disk, answer) = channel::<()>();
    let pool = DecodePool::new(2).unwrap().timeout(Duration::from_millis(1500));
    let dataset = Arc::new(Stalled(Mutex::new(answer)));
    let loader = EvalLoader::new(&pool, dataset, EvalTransform::new(8), ALONE).unwrap();
    let mut batches = loader.pass();
    let error = batches.next().unwrap().unwrap_err();
    drop(disk);
    assert_eq!(
        error.to_string(),
        "sample 0 (0.jpg): neither this image nor another could be read for 1.5 s; check its disk or file server, \
         or raise the timeout"
    );
    assert!(batches.next().is_none());
}

const ALONE: Sharding = Sharding { local: 0..1, shards: 1, batch: 4 };

fn train(dataset: Coded, threads: usize, sharding: Sharding) -> TrainLoader {
    let pool = DecodePool::new(threads).unwrap();
    TrainLoader::new(&pool, Arc::new(dataset), TrainTransform::new(8), sharding, 5).unwrap()
}

/// Every random transform after a crop.
fn augmented() -> TrainTransform {
    TrainTransform::new(8)
        .then(RandomVerticalFlip { probability: 0.5 })
        .then(RandomRotation::new(30.0))
        .then(RandomAffine { translate: (0.2, 0.2), ..RandomAffine::new(10.0) })
        .then(RandomPerspective::new(0.5))
        .then(RandAugment::default())
        .then(TrivialAugmentWide::default())
        .then(AutoAugment::new(AutoAugmentPolicy::Cifar10))
        .then(AugMix::default())
        .then(ColorJitter::new(0.4, 0.4, 0.4, 0.1))
        .then(RandomGrayscale { probability: 0.1 })
        .then(GaussianBlur::new(8, 0.5))
        .then(RandomErasing::new(
            0.5,
            Normalization { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] },
        ))
}

fn eval(dataset: Coded, threads: usize, sharding: Sharding) -> EvalLoader {
    let pool = DecodePool::new(threads).unwrap();
    EvalLoader::new(&pool, Arc::new(dataset), EvalTransform::new(8), sharding).unwrap()
}

type Content = (Vec<u8>, Vec<i32>, Vec<u64>, usize);

fn content(batch: Result<Batch, DataError>) -> Content {
    let batch = batch.unwrap();
    (batch.images.to_vec(), batch.labels.clone(), batch.indices.clone(), batch.valid)
}

#[test]
fn threads_do_not_change_batches() {
    let run = |threads| {
        let pool = DecodePool::new(threads).unwrap();
        let loader = TrainLoader::new(&pool, Arc::new(coded(23)), augmented(), ALONE, 5).unwrap();
        (0..3).flat_map(|epoch| loader.epoch(epoch, 0).map(content).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let expected = run(1);
    assert_eq!(expected.len(), 18);
    assert_eq!((run(2), run(5)), (expected.clone(), expected));
}

/// An image is made in its batch where all transforms but the first only flip, and on a canvas otherwise.
#[test]
fn batches_hold_what_the_transforms_make_of_each_sample() {
    let check = |list: TrainTransform| {
        let pool = DecodePool::new(2).unwrap();
        let loader = TrainLoader::new(&pool, Arc::new(coded(23)), list.clone(), ALONE, 5).unwrap();
        for batch in loader.epoch(1, 0).map(Result::unwrap) {
            for (pixels, &index) in batch.images.chunks_exact(8 * 8 * 3).zip(&batch.indices) {
                let mut canvas = Canvas::new(coded(23).read(index as usize).unwrap());
                list.apply(&mut canvas, 5, 1, index);
                assert!(pixels == canvas.image().pixels(), "sample {index}, {list}");
            }
        }
    };
    let flip = RandomHorizontalFlip { probability: 0.5 };
    let crop = || TrainTransform::empty(8).then(RandomResizedCrop::new(8));
    check(crop());
    check(TrainTransform::new(8));
    check(TrainTransform::new(8).then_keyed("once more", flip.clone()));
    check(TrainTransform::empty(8).then(EvalTransform { resize: 8, ..EvalTransform::new(8) }).then(flip.clone()));
    check(TrainTransform::empty(8).then(EvalTransform { resize: 5, ..EvalTransform::new(8) }).then(flip.clone()));
    check(TrainTransform::empty(8).then(flip.clone()).then(RandomResizedCrop::new(8)));
    check(crop().then(RandomVerticalFlip { probability: 0.5 }).then(flip.clone()));
    check(
        TrainTransform::empty(8)
            .then(RandomCrop {
                size: 8,
                padding: 2,
                padding_mode: PaddingMode::Constant,
                resampling: Resampling::Bilinear,
            })
            .then(flip),
    );
}

#[test]
fn epochs_differ_and_resume_continues() {
    let loader = train(coded(23), 2, ALONE);
    let whole: Vec<Content> = loader.epoch(1, 0).map(content).collect();
    assert_ne!(whole, loader.epoch(2, 0).map(content).collect::<Vec<_>>());
    for first in 0..=loader.batches() {
        assert_eq!(loader.epoch(1, first * 4).map(content).collect::<Vec<_>>(), whole[first..]);
    }
    assert_eq!(loader.epoch(1, 99).count(), 0);
}

/// Every way to cut `shards` shards into contiguous ranges: each bit says whether there is a cut after a shard.
fn hostings(shards: usize) -> impl Iterator<Item = Vec<Range<usize>>> {
    (0..1 << (shards - 1)).map(move |cuts: usize| {
        let ends = (1..=shards).filter(|&end| end == shards || cuts >> (end - 1) & 1 == 1);
        ends.scan(0, |start, end| Some(std::mem::replace(start, end)..end)).collect()
    })
}

/// For any division of shards, the hosts' batches one after the other equal those of one host with all shards,
/// including augmentation.
#[test]
fn hosts_together_equal_a_single_host() {
    let pool = DecodePool::new(2).unwrap();
    let samplers =
        [Sampler::Shuffle, Sampler::Distributed { drop_last: false }, Sampler::Distributed { drop_last: true }];
    let train = |sharding: &Sharding, sampler| -> Vec<Content> {
        let data = Arc::new(coded(23));
        let loader = TrainLoader::with_sampler(&pool, data, augmented(), sharding.clone(), 5, sampler).unwrap();
        loader.epoch(1, 0).map(content).collect()
    };
    let evaluate = |sharding: &Sharding| -> Vec<Content> {
        let loader = EvalLoader::new(&pool, Arc::new(coded(23)), EvalTransform::new(8), sharding.clone()).unwrap();
        loader.pass().map(content).collect()
    };
    let check = |shards: usize, batches: &dyn Fn(&Sharding) -> Vec<Content>| {
        let host = |local| batches(&Sharding { local, shards, batch: 2 });
        let whole = host(0..shards);
        for hosting in hostings(shards) {
            let mut together: Vec<Content> = vec![Default::default(); whole.len()];
            for local in &hosting {
                let part = host(local.clone());
                assert_eq!(part.len(), whole.len());
                for (all, (images, labels, indices, valid)) in together.iter_mut().zip(part) {
                    assert_eq!(labels.iter().filter(|label| **label >= 0).count(), valid);
                    all.0.extend(images);
                    all.1.extend(labels);
                    all.2.extend(indices);
                    all.3 += valid;
                }
            }
            assert_eq!(together, whole, "{hosting:?}");
        }
    };
    for shards in 1..6 {
        samplers.iter().for_each(|&sampler| check(shards, &|sharding| train(sharding, sampler)));
        check(shards, &evaluate);
    }
}

/// Batches follow the order of a sampler, also in the rest of a resumed epoch. A repeated sample is augmented in the
/// same way.
#[test]
fn batches_follow_the_sampler() {
    let sampler = Sampler::Distributed { drop_last: false };
    for shard in 0..4 {
        let sharding = Sharding::one(shard, 4, 1);
        let pool = DecodePool::new(2).unwrap();
        let data = Arc::new(coded(3));
        let order = TrainOrder::with_sampler(sampler, 5, 3, &sharding).unwrap().epoch(2);
        let expected = [order.local(0, &sharding)[0] as u64];
        let loader = TrainLoader::with_sampler(&pool, data, TrainTransform::new(8), sharding, 5, sampler).unwrap();
        let batches: Vec<Content> = loader.epoch(2, 0).map(content).collect();
        assert_eq!((batches.len(), loader.batches(), loader.order().batches_after(0), loader.dropped()), (1, 1, 1, 0));
        assert_eq!(batches[0].2, expected);
        assert_eq!((loader.epoch(2, 4).count(), loader.order().batches_after(4)), (0, 0));
    }
    let whole = |shard, shards, batch| {
        let pool = DecodePool::new(1).unwrap();
        let sharding = Sharding::one(shard, shards, batch);
        TrainLoader::with_sampler(&pool, Arc::new(coded(11)), TrainTransform::new(8), sharding, 5, sampler).unwrap()
    };
    let index = |batch: Content| batch.2;
    let alone: Vec<u64> = whole(0, 1, 1).epoch(3, 0).map(content).flat_map(index).collect();
    let before: Vec<u64> = whole(0, 1, 2).epoch(3, 0).take(2).map(content).flat_map(index).collect();
    let after = |shard| -> Vec<u64> { whole(shard, 2, 1).epoch(3, 4).map(content).flat_map(index).collect() };
    let after: Vec<u64> = after(0).into_iter().zip(after(1)).flat_map(|(one, two)| [one, two]).collect();
    // Eleven samples and, for two shards, the first one repeated.
    assert_eq!([before, after].concat(), [&alone[..], &alone[..1]].concat());
}

#[test]
fn evaluation_marks_missing_samples() {
    let check = |samples, shards, expected: &[&[usize]]| {
        for (shard, expected) in expected.iter().enumerate() {
            let loader = eval(coded(samples), 2, Sharding::one(shard, shards, 4));
            let batches: Vec<Content> = loader.pass().map(content).collect();
            assert_eq!(batches.iter().map(|batch| batch.3).collect::<Vec<_>>(), *expected);
            for (images, labels, indices, valid) in batches {
                assert_eq!((images.len(), labels.len(), indices.len()), (4 * 8 * 8 * 3, 4, 4));
                assert!(labels[valid..].iter().all(|&label| label == -1));
                assert!(indices[valid..].iter().all(|&index| index == u64::MAX));
                assert!(images[valid * 192..].iter().all(|&byte| byte == 0));
                assert!(labels.iter().zip(&indices).take(valid).all(|(&label, &index)| label == (index % 3) as i32));
            }
        }
    };
    check(10, 1, &[&[4, 4, 2]]);
    check(10, 2, &[&[4, 2], &[4, 0]]);
    check(1, 3, &[&[1], &[0], &[0]]);
    check(0, 2, &[&[], &[]]);
}

/// Memory that counts its buffers and refuses the last ones.
struct Scarce {
    left: AtomicUsize,
    system: SystemMemory,
}

impl HostMemory for Scarce {
    fn allocate(&self, bytes: usize) -> io::Result<HostBuffer> {
        let took = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        took.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.system.allocate(bytes)
    }
}

/// Batches use the memory that the loader is given: a few buffers, reused. A refused buffer is an error.
#[test]
fn batches_lie_in_the_given_memory() {
    let check = |buffers, kept: usize, expected: Result<usize, &str>| {
        let memory = Arc::new(Scarce { left: AtomicUsize::new(buffers), system: SystemMemory });
        let loader = eval(coded(40), 1, ALONE).in_memory(memory.clone());
        let mut held = VecDeque::new();
        let passes = (0..3).flat_map(|_| loader.pass()).map(|batch| {
            held.push_back(batch?);
            held.truncate(kept);
            Ok(1)
        });
        match (passes.sum::<Result<usize, DataError>>(), expected) {
            (Ok(batches), Ok(left)) => assert_eq!((batches, memory.left.load(Ordering::Relaxed)), (30, left)),
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
            (other, expected) => panic!("{other:?} instead of {expected:?}"),
        }
    };
    check(9, 0, Ok(6));
    check(9, 2, Ok(4));
    check(1, 0, Err("cannot allocate 768 bytes for the images of a batch: out of memory; lower the batch size"));
}

#[test]
fn a_batch_may_keep_its_images() {
    let loader = eval(coded(16), 1, ALONE);
    for batch in loader.pass().chain(loader.pass()) {
        let mut batch = batch.unwrap();
        assert_eq!(std::mem::take(&mut batch.images).len(), 768);
    }
}

#[test]
fn errors_surface_at_their_batch() {
    let check = |panics, expected: &str| {
        let loader = eval(Coded { bad: vec![6, 5], panics, ..coded(16) }, 3, ALONE);
        let mut batches = loader.pass();
        assert!(batches.next().unwrap().is_ok());
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(batches.next().is_none());
        drop(batches);
        // The pool survives, and a later pass fails at the same place.
        assert!(loader.pass().nth(1).unwrap().is_err());
    };
    check(false, "image 5 is bad");
    check(true, "sample 5: reading or transforming it panicked: no such thing as 5");
}

#[test]
fn dropping_an_iterator_stops_its_work() {
    let dataset = Arc::new(coded(4000));
    let pool = DecodePool::new(2).unwrap();
    let loader = EvalLoader::new(&pool, dataset.clone(), EvalTransform::new(8), ALONE).unwrap();
    for taken in 0..5 {
        assert_eq!(loader.pass().take(taken).count(), taken);
    }
    assert!(dataset.threads.lock().unwrap().len() <= 2);
    drop((loader, pool));
    // The threads have ended: no other owner holds the data set, and most of it was not read.
    assert_eq!(Arc::strong_count(&dataset), 1);
    assert!(dataset.reads.load(Ordering::Relaxed) < 200);
}

/// A data set that blocks until it is released.
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Dataset for Gate {
    fn len(&self) -> usize {
        8
    }
    fn label(&self, _: usize) -> usize {
        0
    }
    fn read(&self, _: usize) -> Result<Image, DataError> {
        let open = self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap();
        assert!(*open);
        Ok(Image::new(8, 8, vec![0; 192])?)
    }
}

#[test]
fn waiting_is_measured() {
    let gate = Arc::new(Gate { open: Mutex::new(false), opened: Condvar::new() });
    let pool = DecodePool::new(1).unwrap();
    let loader = EvalLoader::new(&pool, gate.clone(), EvalTransform::new(8), ALONE).unwrap();
    let mut batches = loader.pass();
    assert_eq!(batches.waited(), Duration::ZERO);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| batches.next().unwrap().unwrap().valid);
        *gate.open.lock().unwrap() = true;
        gate.opened.notify_all();
        assert_eq!(waiter.join().unwrap(), 4);
    });
    assert!(batches.waited() > Duration::ZERO && batches.waited() <= began.elapsed());
}

#[test]
fn settings_out_of_range() {
    let pool = DecodePool::new(1).unwrap();
    let check = |transform: TrainTransform, sharding, expected: &str| {
        let loader = TrainLoader::new(&pool, Arc::new(coded(7)), transform, sharding, 0);
        let error = loader.and_then(|loader| loader.drop_last(true)).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let two = Sharding::one(0, 2, 4);
    let list = || TrainTransform::empty(8);
    let default = |crop, flip| TrainTransform::crop_and_flip(8, &crop, Resampling::Bilinear, flip);
    let part = RandomResizedCrop { scale: (0.5, 0.1), ..RandomResizedCrop::new(8) };
    check(TrainTransform::new(8), two, "7 samples, fewer than one global batch of 8 (2 shards of 4)");
    check(TrainTransform::new(0), ALONE, "size of 0 pixels");
    check(list().then(part), ALONE, "scale must lie");
    check(default(resized(), f64::NAN), ALONE, "use one in [0, 1]");
    check(
        default(Crop::Padded { padding: 8, mode: PaddingMode::Constant }, 0.5),
        ALONE,
        "margins of 8 pixels are too wide for images of 8",
    );
    check(default(Crop::None { resize: 0 }, 0.5), ALONE, "size of 0 pixels");
    let twice = TrainTransform::new(8).then(RandomHorizontalFlip { probability: 0.1 });
    check(twice, ALONE, "two transforms draw under the key random_horizontal_flip: give one of them another");
}

/// Adds what it draws to each byte.
struct Brighten;

impl Transform for Brighten {
    fn name(&self) -> &str {
        "brighten"
    }
    fn parameters(&self) -> String {
        "most=255".to_owned()
    }
    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let more = random.below(256) as u8;
        canvas.pixels_mut().iter_mut().for_each(|byte| *byte = byte.wrapping_add(more));
    }
}

/// A custom transform draws under its key, and under two keys if it occurs twice; the draws of the others stay the
/// same.
#[test]
fn each_transform_draws_for_itself() {
    let contents = |transform: TrainTransform| -> Vec<Content> {
        let pool = DecodePool::new(2).unwrap();
        let loader = TrainLoader::new(&pool, Arc::new(coded(8)), transform, ALONE, 5).unwrap();
        loader.epoch(3, 0).map(content).collect()
    };
    let default = contents(TrainTransform::new(8));
    let drawn = |key: &str, index: u64| RandomStream::new(5, &format!("augment {key}"), 3, index).below(256) as u8;
    let check = |transform: TrainTransform, keys: &[&str], text: &str| {
        assert!(transform.to_string().ends_with(text), "{transform}");
        for ((found, _, indices, _), (before, ..)) in contents(transform).into_iter().zip(&default) {
            for (place, (found, before)) in found.chunks_exact(192).zip(before.chunks_exact(192)).enumerate() {
                let more = keys.iter().fold(0u8, |sum, key| sum.wrapping_add(drawn(key, indices[place])));
                assert!(found.iter().zip(before).all(|(&found, &before)| found == before.wrapping_add(more)));
            }
        }
    };
    let list = || TrainTransform::new(8).then(Brighten);
    check(list(), &["brighten"], "; brighten most=255");
    check(list().then_keyed("again", Brighten), &["brighten", "again"], "; again: brighten most=255");
}

#[test]
fn transforms_that_leave_another_size() {
    let pool = DecodePool::new(1).unwrap();
    let transform = TrainTransform::empty(8).then(RandomCrop {
        size: 9,
        padding: 1,
        padding_mode: PaddingMode::Constant,
        resampling: Resampling::Bilinear,
    });
    let loader = TrainLoader::new(&pool, Arc::new(coded(8)), transform, ALONE, 5).unwrap();
    let error = loader.epoch(0, 0).next().unwrap().unwrap_err().to_string();
    let first = TrainOrder::new(5, 8, 4).unwrap().epoch(0).global_batch(0)[0];
    assert_eq!(error, format!("sample {first}: the transforms leave 9x9 pixels instead of 8x8"));
}

/// A data set's own mistakes name the sample by its index and its name, and cannot be skipped.
#[test]
fn samples_that_do_not_fit() {
    struct Wrong(fn() -> Result<Image, DataError>);
    impl Dataset for Wrong {
        fn len(&self) -> usize {
            4
        }
        fn label(&self, index: usize) -> usize {
            if index == 3 { usize::MAX } else { 0 }
        }
        fn read(&self, index: usize) -> Result<Image, DataError> {
            if index == 2 { (self.0)() } else { Ok(Image::new(8, 8, vec![0; 192])?) }
        }
        fn locality(&self) -> Option<&dyn Locality> {
            Some(self)
        }
    }

    impl Locality for Wrong {
        fn name(&self, index: usize) -> String {
            format!("{index}.raw")
        }
    }
    let check = |read, expected: &str| {
        let pool = DecodePool::new(2).unwrap();
        let loader = EvalLoader::new(&pool, Arc::new(Wrong(read)), EvalTransform::new(8), ALONE).unwrap();
        let error = loader.skip_unreadable(true).pass().next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let wrong = "sample 2 (2.raw): an image of 8x8 RGB pixels has 192 bytes, not 64";
    check(|| Ok(Image::new(8, 8, vec![0; 64])?), wrong);
    check(|| Ok(Image::new(0, 8, vec![])?), "sample 2 (2.raw): there are no images of 0x8 pixels");
    check(
        || Ok(Image::new(usize::MAX, 8, vec![])?),
        &format!("sample 2 (2.raw): there are no images of {}x8 pixels", usize::MAX),
    );
    check(|| Ok(Image::default()), "sample 2 (2.raw): the image has no pixels");
    check(|| panic!("a bug"), "sample 2 (2.raw): reading or transforming it panicked: a bug");
    check(|| Ok(Image::new(8, 8, vec![0; 192])?), &format!("sample 3 (3.raw): its label {} is too large", usize::MAX));
}

/// As for folders.
fn resized() -> Crop {
    Crop::Resized { scale: RandomResizedCrop::SCALE, ratio: RandomResizedCrop::RATIO }
}

/// Draws and pixels of the default transforms, which a run resumed by a later version must reproduce.
#[test]
fn usual_transforms_keep_their_bits() {
    let check = |crop: Crop, flip: f64, size, expected: u64| {
        let pool = DecodePool::new(2).unwrap();
        let loader = TrainLoader::new(
            &pool,
            Arc::new(coded(64)),
            TrainTransform::crop_and_flip(size, &crop, Resampling::Bilinear, flip),
            ALONE,
            11,
        )
        .unwrap();
        let bytes = (0..2).flat_map(|epoch| loader.epoch(epoch, 0)).flat_map(|batch| content(batch).0);
        // The FNV-1a hash.
        let found =
            bytes.fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
        assert_eq!(found, expected, "{crop:?} at {size}: {found:#x}");
    };
    check(resized(), 0.5, 8, 0xf4b13a2c38f35f4);
    check(Crop::Padded { padding: 4, mode: PaddingMode::Constant }, 0.5, 9, 0x10cc0e4c15897e08);
    check(Crop::None { resize: 10 }, 0.0, 10, 0x7cc9c5774e45f83d);
}

/// In torchvision's order: the corners and the middle, then those of the flipped image.
#[test]
fn crops_of_corners_are_parts_of_the_resized_image() {
    const SIZE: usize = 5;
    let data = Arc::new(coded(20));
    let pool = DecodePool::new(2).unwrap();
    let transform = EvalTransform { resize: 8, ..EvalTransform::new(SIZE) };
    let loader = EvalLoader::new(&pool, data.clone(), transform, Sharding::one(0, 1, 8)).unwrap();
    let batches: Vec<Batch> =
        loader.cropped(&EvalCrop::several(10).unwrap()).unwrap().pass().map(Result::unwrap).collect();
    assert_eq!(batches.len(), 30);
    for (turn, batch) in batches.iter().enumerate() {
        let number = turn % 10;
        assert_eq!(batch.valid, [8, 8, 4][turn / 10]);
        for place in batch.places() {
            let index = batch.indices[place] as usize;
            assert_eq!((index, batch.labels[place]), (turn / 10 * 8 + place, (index % 3) as i32));
            let found = &batch.images[place * SIZE * SIZE * 3..][..SIZE * SIZE * 3];
            let image = data.read(index).unwrap();
            let (width, height) = (image.width(), image.height());
            let short = width.min(height);
            let long = 8 * width.max(height) / width.min(height);
            let (width, height) = if width == short { (8, long) } else { (long, 8) };
            let mut canvas = Canvas::new(image.clone());
            canvas.resize(CropBox::whole(image.width(), image.height()), width, height);
            let mut rows: Vec<Vec<[u8; 3]>> =
                canvas.image().pixels().chunks_exact(width * 3).map(|row| row.as_chunks().0.to_vec()).collect();
            if number >= 5 {
                rows.iter_mut().for_each(|row| row.reverse());
            }
            let middle = |length: usize| ((length - SIZE) as f64 / 2.0).round_ties_even() as usize;
            let (left, top) = match number % 5 {
                4 => (middle(width), middle(height)),
                corner => ((width - SIZE) * (corner % 2), (height - SIZE) * (corner / 2)),
            };
            let expected: Vec<u8> = rows[top..][..SIZE].iter().flat_map(|row| row[left..][..SIZE].concat()).collect();
            assert_eq!(found, expected, "crop {number} of image {index}");
        }
    }
    let small = EvalLoader::new(&pool, data, EvalTransform { resize: 4, ..EvalTransform::new(5) }, ALONE).unwrap();
    let error = small.cropped(&EvalCrop::several(5).unwrap()).err().unwrap().to_string();
    let expected =
        "images whose shorter side is resized to 4 pixels have no crops of 5 in their corners; take the middle alone";
    assert_eq!(error, expected);
}

/// A model of one channel saw the red of colour images.
#[test]
fn an_image_of_one_channel_is_the_luminance_of_its_colours() {
    let pool = DecodePool::new(2).unwrap();
    let images = |batches: Batches| batches.flat_map(|batch| content(batch).0).collect::<Vec<u8>>();
    let grey_of = |colours: &[u8]| {
        let grey = |&[red, green, blue]: &[u8; 3]| {
            [((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8; 3]
        };
        colours.as_chunks().0.iter().flat_map(grey).collect::<Vec<u8>>()
    };
    // With margins, and without them.
    for resize in [4, 9] {
        let pass = |grayscale| {
            let transform = EvalTransform { resize, grayscale, ..EvalTransform::new(8) };
            images(EvalLoader::new(&pool, Arc::new(coded(23)), transform, ALONE).unwrap().pass())
        };
        let (colours, grey) = (pass(false), pass(true));
        assert!(colours != grey && grey == grey_of(&colours), "{resize}");
    }
    let epoch = |transform: TrainTransform| {
        images(TrainLoader::new(&pool, Arc::new(coded(23)), transform, ALONE, 5).unwrap().epoch(0, 0))
    };
    let colours = epoch(TrainTransform::new(8));
    let grey = epoch(TrainTransform::new(8).then(Grayscale));
    assert!(colours != grey && grey == grey_of(&colours));
}
