//! Data on a server: what is known of archives, their versions, and images that are fetched before they are needed.

/// Of its answers, these tests need none.
#[allow(dead_code)]
#[path = "../../../../support/remote/tests/suite/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use enmasse_data::{DataError, Dataset, DecodePool, EvalLoader, Extent, Locality, Sharding, TrainLoader, TrainOrder};
use enmasse_datasets::{DataKind, OpenData, OpenOptions, PackForm, RemoteOptions, open};
use enmasse_image::{EvalTransform, Image, TrainTransform};
use server::Server;
use tempfile::{TempDir, tempdir};

use crate::packed_file::{batches, of_memory, packed};
use crate::parquet::fixture;
use crate::shards::{IMAGE, archive, numbered};

/// Bytes of a piece.
const PIECE: u64 = 1 << 20;

const ALONE: Sharding = Sharding { local: 0..1, shards: 1, batch: 4 };

/// The files below a folder with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let objects = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let files = objects.flat_map(|object| fs::read_dir(object).unwrap().map(|entry| entry.unwrap().path()));
    files.filter(|path| path.extension().is_some_and(|own| own == extension)).collect()
}

#[test]
fn archives_are_searched_once_for_each_version() {
    let cache = tempdir().unwrap();
    let server = Server::start(&[]);
    let archives = [0, 10].map(|first| numbered(first, 10, &["a", "b"]));
    server.put("0.tar", &archives[0]);
    server.put("1.tar", &archives[1]);
    let options = OpenOptions {
        remote: RemoteOptions { cache: Some(cache.path().to_owned()), ..RemoteOptions::default() },
        ..OpenOptions::default()
    };
    let opened = || open(Path::new(&format!("{}/{{0..1}}.tar", server.address)), &options).unwrap();
    let requests = || {
        let mut found = server.requests();
        found.sort();
        found
    };
    let first = opened();
    assert_eq!((first.train.len(), first.validation.len(), first.classes.concat().as_str()), (16, 4, "ab"));
    let looks = ["0.tar 0-0", "1.tar 0-0"];
    let all = [0, 1].map(|number| format!("{number}.tar 0-{}", archives[number].len() - 1));
    assert_eq!(requests(), [looks[0], &all[0], looks[1], &all[1]]);
    let names = |data: &dyn Dataset| (0..data.len()).map(|index| data.name(index)).collect::<Vec<_>>();
    assert_eq!(first.train.name(0), format!("{}/0.tar/000000.jpg", server.address));

    // Where their samples lie is known without a piece of them.
    files(cache.path(), "piece").iter().for_each(|piece| fs::remove_file(piece).unwrap());
    let again = opened();
    assert_eq!(requests(), looks);
    assert_eq!(names(again.train.as_ref()), names(first.train.as_ref()));
    assert_eq!(again.train.locality().unwrap().fingerprint(), first.train.locality().unwrap().fingerprint());
    again.train.read(3).unwrap();
    assert_eq!(requests().len(), 1);

    // A new version with the same names is not what an earlier rank has opened.
    server.put("1.tar", &archives[1]);
    let other = opened();
    assert_eq!(names(other.train.as_ref()), names(first.train.as_ref()));
    assert!(
        first.train.locality().unwrap().fingerprint().is_some()
            && other.train.locality().unwrap().fingerprint() != first.train.locality().unwrap().fingerprint()
    );
    assert_ne!(first.train.locality().unwrap().fingerprint(), first.validation.locality().unwrap().fingerprint());
}

#[test]
fn what_the_search_fetches_serves_the_first_epoch() {
    /// Bytes of a request.
    const RUN: usize = 8 << 20;
    let cache = tempdir().unwrap();
    let server = Server::start(&[]);
    // Members that are no images make archives of three requests.
    let filler = vec![7; 2 << 20];
    let archives = ["0", "1"].map(|class| {
        let names: Vec<_> = (0..10).map(|i| ["jpg", "cls", "bin"].map(|end| format!("{class}{i}.{end}"))).collect();
        let members = names
            .iter()
            .flat_map(|[image, label, other]| [(image.as_str(), IMAGE), (label, class.as_bytes()), (other, &filler)]);
        let bytes = archive(&members.collect::<Vec<_>>());
        server.put(&format!("{class}.tar"), &bytes);
        bytes
    });
    let remote = RemoteOptions { cache: Some(cache.path().to_owned()), ..RemoteOptions::default() };
    let options = OpenOptions { remote, ..OpenOptions::default() };
    let data = open(Path::new(&format!("{}/{{0..1}}.tar", server.address)), &options).unwrap();
    let runs = |archive: usize| {
        let length = archives[archive].len();
        let runs = (0..length).step_by(RUN).map(move |begin| (begin, length.min(begin + RUN) - 1));
        runs.chain([(0, 0)]).map(move |(first, last)| format!("{archive}.tar {first}-{last}"))
    };
    let mut requests = server.requests();
    let mut expected = runs(0).chain(runs(1)).collect::<Vec<_>>();
    requests.sort();
    expected.sort();
    assert!(requests == expected && expected.len() == 8, "{requests:?}");
    let pool = DecodePool::new(2).unwrap();
    let loader = TrainLoader::new(&pool, data.train, TrainTransform::new(8), ALONE, 0).unwrap();
    assert_eq!(batches(loader.epoch(0, 0)).len(), 4);
    assert_eq!(server.requests(), [""; 0]);
}

#[test]
fn all_archives_are_looked_up_before_one_is_read() {
    /// Archives that are looked up at a time.
    const LOOKS: usize = 64;
    let cache = tempdir().unwrap();
    let server = Server::start(&[]);
    let bytes = numbered(0, 10, &["a", "b"]);
    (0..LOOKS).for_each(|number| server.put(&format!("{number}.tar"), &bytes));
    let remote = RemoteOptions { cache: Some(cache.path().to_owned()), ..RemoteOptions::default() };
    let options = OpenOptions { remote, ..OpenOptions::default() };
    let opened = |last: usize| open(Path::new(&format!("{}/{{0..{last}}}.tar", server.address)), &options);
    server.hold(true);
    thread::scope(|scope| {
        let data = scope.spawn(|| opened(LOOKS - 1).unwrap());
        server.until_waiting(LOOKS);
        let looks = server.requests();
        assert!(looks.len() == LOOKS && looks.iter().all(|request| request.ends_with(" 0-0")), "{looks:?}");
        server.hold(false);
        assert_eq!(data.join().unwrap().train.len(), 8 * LOOKS);
    });
    assert_eq!(server.requests().len(), LOOKS);
    // A new version of each would be searched, but one is missing.
    (0..LOOKS).for_each(|number| server.put(&format!("{number}.tar"), &bytes));
    let error = opened(LOOKS).err().unwrap().to_string();
    assert!(error.contains(&format!("/{LOOKS}.tar: ")) && error.contains("it answers 404 Not Found"), "{error}");
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.ends_with(" 0-0")), "{requests:?}");
}

/// A packed file on a server, and the same file on the disk. It is removed on drop.
struct Served {
    folder: TempDir,
    server: Server,
}

impl Served {
    /// Fifty images of 0.2 MB, in ten pieces.
    fn start() -> Self {
        let folder = tempdir().unwrap();
        let server = Server::start(&[]);
        let sample = |number: usize| (256, 256, number % 2, format!("{number}"));
        let train: Vec<_> = (0..50).map(sample).collect();
        let path = folder.path().join("packed");
        packed(&of_memory(DataKind::Folder, [&train, &train[..1]]), PackForm::Raw { size: 256 }, &path).unwrap();
        server.put("packed", &fs::read(path).unwrap());
        Served { folder, server }
    }

    fn on_disk(&self) -> OpenData {
        open(&self.folder.path().join("packed"), &OpenOptions::default()).unwrap()
    }

    /// Opens it with a cache that has nothing but the index, and gives also the pieces that the training images lack.
    fn open(&self, limit: u64) -> (OpenData, Vec<u64>) {
        let cache = Some(self.folder.path().join("cache"));
        let remote = RemoteOptions { cache, limit, ..RemoteOptions::default() };
        let address = format!("{}/packed", self.server.address);
        let data = open(Path::new(&address), &OpenOptions { remote, ..OpenOptions::default() }).unwrap();
        let needed: BTreeSet<u64> =
            (0..data.train.len()).flat_map(|index| pieces(data.train.as_ref(), index)).collect();
        let there = self.server.requests();
        let missing = needed.into_iter().filter(|&piece| !there.contains(&self.request(piece))).collect();
        (data, missing)
    }

    fn request(&self, piece: u64) -> String {
        let length = fs::metadata(self.folder.path().join("packed")).unwrap().len();
        format!("packed {}-{}", piece * PIECE, ((piece + 1) * PIECE).min(length) - 1)
    }
}

/// The pieces in which an image lies.
fn pieces(data: &dyn Dataset, index: usize) -> impl Iterator<Item = u64> {
    let Extent { bytes, .. } = data.locality().unwrap().extent(index).unwrap();
    bytes.start / PIECE..bytes.end.div_ceil(PIECE)
}

/// Waits until a data set has so many owners. A thread that fetches is one.
fn until_owners<T: ?Sized>(data: &Arc<T>, owners: usize) {
    let began = Instant::now();
    while Arc::strong_count(data) > owners {
        assert!(began.elapsed() < Duration::from_secs(60));
        thread::yield_now();
    }
}

#[test]
fn images_are_fetched_ahead_and_each_piece_once() {
    let served = Served::start();
    let (data, missing) = served.open(RemoteOptions::LIMIT);
    assert!(missing.len() >= 8 && data.train.locality().unwrap().is_remote(), "{missing:?}");
    // A single thread needs one at a time.
    let pool = DecodePool::new(1).unwrap();
    let loader = |data: &OpenData| {
        let transform = TrainTransform::new(24);
        TrainLoader::new(&pool, data.train.clone(), transform, ALONE, 3).unwrap()
    };
    // It may ask for the first image itself, and for no more than a piece.
    let first = TrainOrder::new(3, 50, 4).unwrap().epoch(0).global_batch(0)[0];
    assert_eq!(pieces(data.train.as_ref(), first).count(), 1);
    served.server.hold(true);
    let remote = loader(&data);
    let epoch = remote.epoch(0, 0);
    served.server.until_waiting(missing.len());
    served.server.hold(false);
    assert!(batches(epoch) == batches(loader(&served.on_disk()).epoch(0, 0)));
    let mut requests = served.server.requests();
    requests.sort();
    let mut expected: Vec<String> = missing.iter().map(|&piece| served.request(piece)).collect();
    expected.sort();
    assert_eq!(requests, expected);
    // What is there is not asked for.
    assert_eq!(batches(remote.epoch(1, 0)).len(), remote.batches());
    assert_eq!(served.server.requests(), [""; 0]);
}

#[test]
fn a_piece_that_cannot_be_had_fails_its_own_samples() {
    let served = Served::start();
    let (data, missing) = served.open(RemoteOptions::LIMIT);
    let refused = missing[missing.len() / 2];
    served.server.refuse(&served.request(refused));
    let pool = DecodePool::new(2).unwrap();
    let loader =
        EvalLoader::new(&pool, data.train.clone(), EvalTransform::new(24), Sharding { batch: 1, ..ALONE }).unwrap();
    let fails = |&index: &usize| pieces(data.train.as_ref(), index).any(|piece| piece == refused);
    let first = (0..data.train.len()).find(fails).unwrap();
    let mut found = loader.pass();
    assert!(found.by_ref().take(first).all(|batch| batch.is_ok()));
    let error = found.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("it answers 403 Forbidden"), "{error}");
    assert!(found.next().is_none());
    for index in 0..data.train.len() {
        assert_eq!(data.train.read(index).is_err(), fails(&index), "{index}");
    }
}

#[test]
fn an_epoch_that_is_dropped_asks_for_nothing_more() {
    let served = Served::start();
    // There is room for four pieces ahead.
    let (data, missing) = served.open(64 * PIECE);
    let pool = DecodePool::new(1).unwrap();
    let loader = TrainLoader::new(&pool, data.train.clone(), TrainTransform::new(24), ALONE, 0).unwrap();
    let owners = Arc::strong_count(&data.train);
    served.server.hold(true);
    let epoch = loader.epoch(0, 0);
    served.server.until_waiting(4);
    drop(epoch);
    served.server.hold(false);
    drop((loader, pool));
    until_owners(&data.train, owners - 1);
    let requests = served.server.requests();
    // Besides, those of the image that was being made, which may lie in two pieces.
    assert!(requests.len() <= 6 && missing.len() > 6, "{requests:?}");
}

/// Images on this machine, and whether somebody has asked where they lie.
#[derive(Default)]
struct Here(AtomicBool);

impl Dataset for Here {
    fn len(&self) -> usize {
        8
    }
    fn label(&self, _: usize) -> usize {
        0
    }
    fn read(&self, _: usize) -> Result<Image, DataError> {
        Ok(Image::new(8, 8, vec![0; 192])?)
    }
    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Here {
    fn extent(&self, _: usize) -> Option<Extent> {
        self.0.store(true, Ordering::Relaxed);
        None
    }
}

#[test]
fn nothing_on_this_machine_is_fetched_ahead() {
    let served = Served::start();
    let data = served.on_disk();
    assert!(!data.train.locality().unwrap().is_remote() && data.train.locality().unwrap().extent(0).is_none());
    fs::write(served.folder.path().join("a.tar"), numbered(0, 10, &["a", "b"])).unwrap();
    let archive = open(&served.folder.path().join("a.tar"), &OpenOptions::default()).unwrap();
    assert!(!archive.train.locality().unwrap().is_remote() && archive.train.locality().unwrap().extent(0).is_none());
    let pool = DecodePool::new(1).unwrap();
    let here = Arc::new(Here::default());
    let loader = EvalLoader::new(&pool, here.clone(), EvalTransform::new(8), ALONE).unwrap();
    assert_eq!(batches(loader.pass()).len(), 2);
    drop((loader, pool));
    until_owners(&here, 1);
    assert!(!here.0.load(Ordering::Relaxed));
}

/// Until an image was read, nobody knows which part of its group of rows has it.
#[test]
fn pages_of_parquet_files_are_known_once_they_are_found() {
    let cache = tempdir().unwrap();
    let bytes = fs::read(fixture("snappy")).unwrap();
    let server = Server::start(&[("a.parquet", &bytes)]);
    let remote = RemoteOptions { cache: Some(cache.path().to_owned()), ..RemoteOptions::default() };
    let options = OpenOptions { remote, ..OpenOptions::default() };
    let data = open(Path::new(&format!("{}/a.parquet", server.address)), &options).unwrap().train;
    let group = data.locality().unwrap().extent(0).unwrap().bytes;
    data.read(0).unwrap();
    let page = data.locality().unwrap().extent(0).unwrap().bytes;
    assert!(group.start < page.start && page.end <= group.end && group.end < bytes.len() as u64, "{group:?} {page:?}");
}
