//! Measures how many images per second the loader makes from a folder of class folders, from a packed file, or from data on a
//! server, of which `--cache DIR` keeps what was fetched.
//!
//! `cargo run --release -p enmasse-data --example loader_bench -- DATA [--threads N] [--batch B] [--size PIXELS] [--passes P] [--fast]`
//!
//! Prints one JSON line each for the training and the evaluation transform. `images_per_second` is the median over the
//! passes after the first, and `processor_ms` their processor time per image, of all threads; `first_batch_ms` is the time from
//! requesting an iterator to holding its first batch. `--fast` decodes at a smaller size where that will do. `--difference` prints instead how far the
//! training images are from those decoded at full size, in levels of 256.
//!
//! `DATA --pack FILE [--resize PIXELS | --raw PIXELS]` packs a folder instead, all of it for training, and `FILE --make SAMPLES` a
//! data set of images of one pixel. `FILE --start` prints the milliseconds in which a packed file opens and an epoch starts, and
//! `DATA --open` those in which any data open.
//! `DATA --order --ranks N [--from ENTRIES] [--until ENTRIES]` loads an epoch, or a part of it, on N ranks with a thread each, and prints how many
//! samples came exactly once, and a digest of which samples were in which global batch.
//! `DATA --ranks N` compares N ranks that have a thread each with N ranks that share a pool of N threads.
//! `FILE --copy` makes batches of whole raw images of `--size`, and prints their bytes per second beside those that as many threads
//! copy in memory.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use enmasse_data::{Batches, DataError, Dataset, DecodePool, EvalLoader, Sharding, TrainLoader};
use enmasse_datasets::{
    DataKind, Folder, OpenOptions, PackForm, PackOptions, RemoteOptions, TaskKind, Unpacked, is_packed, is_remote,
    open, pack,
};
use enmasse_image::{EvalTransform, Image, ReadOptions, TrainTransform};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), DataError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let value = |flag: &str| {
        let position = arguments.iter().position(|argument| argument == flag);
        position.and_then(|at| arguments.get(at + 1))
    };
    let number = |flag: &str, default: usize| value(flag).and_then(|text| text.parse().ok()).unwrap_or(default);
    let Some(root) = arguments.first().map(Path::new) else {
        return Err(DataError::Setting("usage: loader_bench DATA [--threads N] [--batch B] [--size PIXELS]".into()));
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = number("--threads", cores);
    let size = number("--size", 224);
    let passes = number("--passes", 5);
    let sharding = Sharding::one(0, 1, number("--batch", 32));
    let pool = DecodePool::new(threads)?;
    let reading = ReadOptions { convert_rgb: true, fast: given("--fast"), ..ReadOptions::default() };
    if given("--make") {
        let form = PackForm::Raw { size: 1 };
        return pack_all(&pool, Arc::new(Dots(number("--make", 1_300_000))), form, root);
    }
    if given("--start") {
        return start(&pool, root, size, sharding);
    }
    if given("--difference") {
        return difference(&pool, root, size, sharding);
    }
    let began = Instant::now();
    let data = match is_packed(root) || is_remote(root) {
        true => {
            let remote = RemoteOptions { cache: value("--cache").map(Into::into), ..RemoteOptions::default() };
            open(root, &OpenOptions { reading, remote, ..OpenOptions::default() })?.train
        }
        false => Arc::new(Folder::scan(root)?.read_with(reading)),
    };
    if given("--open") {
        let open_ms = began.elapsed().as_secs_f64() * 1e3;
        println!(r#"{{"samples":{},"open_ms":{open_ms:.1}}}"#, data.len());
        return Ok(());
    }
    if let Some(file) = value("--pack") {
        let resize = value("--resize").and_then(|text| text.parse().ok());
        let form = match value("--raw").and_then(|text| text.parse().ok()) {
            Some(size) => PackForm::Raw { size },
            None => PackForm::Files { resize, quality: 90 },
        };
        return pack_all(&pool, data, form, Path::new(file));
    }
    if given("--copy") {
        return copy(&pool, data, threads, size, passes);
    }
    if given("--order") {
        let part = number("--from", 0)..number("--until", usize::MAX).min(data.len());
        return order(&data, number("--ranks", 1), number("--batch", 32), size, part);
    }
    if given("--ranks") {
        return ranks(&data, number("--ranks", 2), number("--batch", 32), size, passes);
    }
    let train = TrainLoader::new(&pool, data.clone(), TrainTransform::new(size), sharding.clone(), 0)?;
    measure("train", threads, passes, data.len(), |epoch| train.epoch(epoch, 0))?;
    let eval = EvalLoader::new(&pool, data.clone(), EvalTransform::new(size), sharding)?;
    measure("eval", threads, passes, data.len(), |_| eval.pass())
}

/// Images of one pixel.
struct Dots(usize);

impl Dataset for Dots {
    fn len(&self) -> usize {
        self.0
    }

    fn label(&self, index: usize) -> usize {
        index % 1000
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        Ok(Image::new(1, 1, vec![index as u8; 3])?)
    }
}

/// Packs a data set for training, and its first image for validation.
fn pack_all(pool: &DecodePool, data: Arc<dyn Dataset>, form: PackForm, file: &Path) -> Result<(), DataError> {
    struct First(Arc<dyn Dataset>);
    impl Dataset for First {
        fn len(&self) -> usize {
            1
        }

        fn label(&self, index: usize) -> usize {
            self.0.label(index)
        }

        fn read(&self, index: usize) -> Result<Image, DataError> {
            self.0.read(index)
        }
    }
    let count = (0..data.len()).map(|index| data.label(index) + 1).max().unwrap_or(0);
    let classes = (0..count).map(|class| class.to_string()).collect();
    let parts = [data.clone(), Arc::new(First(data)) as Arc<dyn Dataset>];
    let unpacked = Unpacked {
        root: "/".into(),
        kind: DataKind::Folder,
        task: TaskKind::Classification,
        classes,
        parts,
        test: None,
    };
    let began = Instant::now();
    let packed = pack(&unpacked, &PackOptions { form, most_skipped: 0 }, pool, file, |_| {})?;
    let seconds = began.elapsed().as_secs_f64();
    println!(r#"{{"samples":{},"bytes":{},"seconds":{seconds:.1}}}"#, packed.samples[0], packed.bytes);
    Ok(())
}

/// Ranks that take their batches in step, with a thread each of their own or from one pool: the medians of how long an epoch takes.
fn ranks(data: &Arc<dyn Dataset>, ranks: usize, batch: usize, size: usize, passes: usize) -> Result<(), DataError> {
    let shared = DecodePool::new(ranks)?;
    let own = (0..ranks).map(|_| DecodePool::new(1)).collect::<Result<Vec<_>, _>>()?;
    let mut seconds = [Vec::new(), Vec::new()];
    for pass in 0..2 * passes {
        let in_step = Barrier::new(ranks);
        let began = Instant::now();
        let run = &|rank: usize| -> Result<(), DataError> {
            let pool = if pass % 2 == 0 { &own[rank] } else { &shared };
            let sharding = Sharding::one(rank, ranks, batch);
            let loader = TrainLoader::new(pool, data.clone(), TrainTransform::new(size), sharding, 0)?;
            for batch in loader.epoch(pass as u64 / 2, 0) {
                batch?;
                in_step.wait();
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a rank does not panic"))
        })?;
        seconds[pass % 2].push(began.elapsed().as_secs_f64());
    }
    let [own, shared] = seconds.each_mut().map(|seconds| median(seconds));
    println!(
        r#"{{"ranks":{ranks},"batch":{batch},"seconds_with_own_threads":{own:.3},"seconds_with_one_pool":{shared:.3}}}"#
    );
    Ok(())
}

/// Loads a part of an epoch on ranks that have a thread each. The digest is a sum over all samples, so neither the number of ranks nor where
/// an epoch is cut changes it, as long as the global batches stay the same.
fn order(
    data: &Arc<dyn Dataset>,
    ranks: usize,
    batch: usize,
    size: usize,
    part: Range<usize>,
) -> Result<(), DataError> {
    let seen: Vec<AtomicU8> = (0..data.len()).map(|_| AtomicU8::new(0)).collect();
    let global_batch = ranks * batch;
    let began = Instant::now();
    let numbers = part.start / global_batch..part.end.div_ceil(global_batch);
    let run = |rank: usize| -> Result<u64, DataError> {
        let pool = DecodePool::new(1)?;
        let sharding = Sharding::one(rank, ranks, batch);
        let loader = TrainLoader::new(&pool, data.clone(), TrainTransform::new(size), sharding, 0)?;
        let mut digest = 0u64;
        for (number, batch) in numbers.clone().zip(loader.epoch(0, part.start)) {
            let batch = batch?;
            for index in batch.places().map(|place| batch.indices[place]) {
                seen[index as usize].fetch_add(1, Ordering::Relaxed);
                let mut hasher = DefaultHasher::new();
                (number, index).hash(&mut hasher);
                digest = digest.wrapping_add(hasher.finish());
            }
        }
        Ok(digest)
    };
    let digests = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        let ends = threads.into_iter().map(|thread| thread.join().expect("a rank does not panic"));
        ends.collect::<Result<Vec<u64>, _>>()
    })?;
    let digest = digests.into_iter().fold(0, u64::wrapping_add);
    let times: Vec<u8> = seen.into_iter().map(AtomicU8::into_inner).collect();
    let [samples, once] =
        [times.iter().map(|&times| usize::from(times)).sum(), times.iter().filter(|&&times| times == 1).count()];
    let rate = samples as f64 / began.elapsed().as_secs_f64();
    println!(
        r#"{{"ranks":{ranks},"samples":{samples},"once":{once},"digest":{digest},"images_per_second":{rate:.1}}}"#
    );
    Ok(())
}

/// The medians of how long a packed file takes to open, and a loader to start an epoch and make its first batch.
fn start(pool: &DecodePool, file: &Path, size: usize, sharding: Sharding) -> Result<(), DataError> {
    const TIMES: usize = 21;
    let mut open_ms = Vec::new();
    let mut first_batch_ms = Vec::new();
    let mut samples = 0;
    for epoch in 0..TIMES as u64 {
        let began = Instant::now();
        let data = open(file, &OpenOptions::default())?.train;
        open_ms.push(began.elapsed().as_secs_f64() * 1e3);
        samples = data.len();
        let loader = TrainLoader::new(pool, data, TrainTransform::new(size), sharding.clone(), 0)?;
        let began = Instant::now();
        let batch = loader.epoch(epoch, 0).next();
        first_batch_ms.push(began.elapsed().as_secs_f64() * 1e3);
        batch.transpose()?;
    }
    let [open_ms, first_batch_ms] = [open_ms, first_batch_ms].map(|mut times| median(&mut times));
    println!(r#"{{"samples":{samples},"open_ms":{open_ms:.2},"first_batch_ms":{first_batch_ms:.2}}}"#);
    Ok(())
}

/// Bytes per second of batches of whole images, and of copies in memory.
fn copy(
    pool: &DecodePool,
    data: Arc<dyn Dataset>,
    threads: usize,
    size: usize,
    passes: usize,
) -> Result<(), DataError> {
    let loader = EvalLoader::new(
        pool,
        data.clone(),
        EvalTransform { resize: size, ..EvalTransform::new(size) },
        Sharding::one(0, 1, 256),
    )?;
    let bytes = size * size * 3;
    let mut rates = Vec::new();
    for _ in 0..=passes {
        let began = Instant::now();
        loader.pass().try_for_each(|batch| batch.map(drop))?;
        rates.push((data.len() * bytes) as f64 / began.elapsed().as_secs_f64() / 1e9);
    }
    // Records are checked in the first pass.
    let batches = median(&mut rates[1..]);
    let mut copies: Vec<f64> = (0..5).map(|_| copied(threads)).collect();
    let memory = median(&mut copies);
    println!(
        r#"{{"size":{size},"threads":{threads},"batches_gb_per_second":{batches:.2},"memory_gb_per_second":{memory:.2},"share":{:.2}}}"#,
        batches / memory
    );
    Ok(())
}

/// Gigabytes per second that threads copy from one buffer to another, each too large for a cache.
fn copied(threads: usize) -> f64 {
    const BYTES: usize = 256 << 20;
    const TIMES: usize = 4;
    let buffers = (0..threads).map(|thread| (vec![thread as u8 + 1; BYTES], vec![0u8; BYTES])).collect::<Vec<_>>();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (from, mut to) in buffers {
            scope.spawn(move || (0..TIMES).for_each(|_| std::hint::black_box(&mut to).copy_from_slice(&from)));
        }
    });
    (threads * TIMES * BYTES) as f64 / began.elapsed().as_secs_f64() / 1e9
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(
    transform: &str,
    threads: usize,
    passes: usize,
    samples: usize,
    start: impl Fn(u64) -> Batches,
) -> Result<(), DataError> {
    let mut rates = Vec::new();
    let mut first_batch = None;
    let mut processor = Duration::ZERO;
    for pass in 0..passes.max(1) {
        if pass <= 1 {
            processor = processor_time();
        }
        let began = Instant::now();
        let mut images = 0;
        for batch in start(pass as u64) {
            images += batch?.valid;
            first_batch.get_or_insert_with(|| began.elapsed());
        }
        rates.push(images as f64 / began.elapsed().as_secs_f64());
    }
    let measured = (passes.max(2) - 1) * samples;
    let processor_ms = (processor_time() - processor).as_secs_f64() * 1e3 / measured as f64;
    let first_pass = rates[0];
    if rates.len() > 1 {
        rates.remove(0);
    }
    println!(
        r#"{{"transform":"{transform}","threads":{threads},"samples":{samples},"images_per_second":{:.1},"processor_ms":{processor_ms:.4},"first_pass_images_per_second":{:.1},"first_batch_ms":{:.1}}}"#,
        median(&mut rates),
        first_pass,
        first_batch.unwrap_or_default().as_secs_f64() * 1e3,
    );
    Ok(())
}

/// Compares the images of an epoch, fast and exact.
fn difference(pool: &DecodePool, root: &Path, size: usize, sharding: Sharding) -> Result<(), DataError> {
    let folder = Folder::scan(root)?;
    let epoch = |fast: bool| -> Result<Batches, DataError> {
        let reading = ReadOptions { convert_rgb: true, fast, ..ReadOptions::default() };
        let data = Arc::new(folder.clone().read_with(reading));
        Ok(TrainLoader::new(pool, data, TrainTransform::new(size), sharding.clone(), 0)?.epoch(0, 0))
    };
    let mut counts = [0u64; 256];
    let mut changed = 0;
    let mut images = 0;
    for (fast, exact) in epoch(true)?.zip(epoch(false)?) {
        let (fast, exact) = (fast?, exact?);
        let each = |images: &[u8]| images.chunks_exact(size * size * 3).map(<[u8]>::to_vec).collect::<Vec<_>>();
        for (fast, exact) in each(&fast.images).iter().zip(each(&exact.images)).take(exact.valid) {
            images += 1;
            if *fast != exact {
                changed += 1;
                fast.iter().zip(&exact).for_each(|(a, b)| counts[usize::from(a.abs_diff(*b))] += 1);
            }
        }
    }
    let all: u64 = counts.iter().sum::<u64>().max(1);
    let mean = counts.iter().zip(0u64..).map(|(count, level)| count * level).sum::<u64>() as f64 / all as f64;
    let within = |levels: usize| counts[..=levels].iter().sum::<u64>() as f64 / all as f64;
    println!(
        r#"{{"size":{size},"images":{images},"decoded_smaller":{changed},"mean_difference":{mean:.3},"within_2":{:.4},"within_8":{:.4},"largest":{}}}"#,
        within(2),
        within(8),
        counts.iter().rposition(|&count| count > 0).unwrap_or(0),
    );
    Ok(())
}

/// Processor time of all threads.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
