//! Hostile files in one folder: with `skip_unreadable` an epoch passes all of them, and names each with its fault.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{BadSample, DataError, Dataset, DecodePool, EvalLoader, Sharding, TrainLoader};
use enmasse_datasets::{Folder, Split};
use enmasse_image::{EvalTransform, Image, TrainTransform};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::io::Errno;

fn fixture(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from("../image/tests/fixtures").join(name)).unwrap()
}

/// A good image, changed at the place of its first marker of this kind.
fn with_marker(kind: u8, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = fixture("image.420.jpg");
    let place = bytes.windows(2).position(|pair| pair == [0xFF, kind]).unwrap();
    change(&mut bytes[place..]);
    bytes
}

/// A PNG of one pixel.
fn tiny() -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, 1, 1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&[1, 2, 3]).unwrap();
    file
}

#[test]
fn an_epoch_passes_all_of_them() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join("a").join(name);
    let jpeg = fixture("image.420.jpg");
    let huge = with_marker(0xC0, |frame| frame[5..9].copy_from_slice(&[0xEA, 0x60, 0xEA, 0x60]));
    let files: &[(&str, Vec<u8>, Option<&str>)] = &[
        ("empty.jpg", Vec::new(), Some("the file is empty")),
        ("text.png", b"a text\n".to_vec(), Some("but text")),
        ("cut.jpg", jpeg[..jpeg.len() / 2].to_vec(), Some("truncated")),
        ("huge.jpg", huge, Some("60000x60000 exceed the limit of 89478485 pixels")),
        ("arithmetic.jpg", with_marker(0xC0, |frame| frame[1] = 0xC9), Some("JPEG")),
        ("noise.jpg", with_marker(0xDA, |scan| scan[20..].fill(0xFF)), Some("JPEG")),
        ("gone.jpg", jpeg.clone(), Some("no such file or directory")),
        ("folder.jpg", jpeg.clone(), Some("a folder")),
        ("pipe.jpg", jpeg.clone(), Some("it is a pipe, not a file")),
        ("loop.jpg", jpeg.clone(), Some("too many levels of symbolic links")),
        ("tiny.png", tiny(), None),
        ("misnamed.jpg", fixture("image.rgb.png"), None),
        ("animated.gif", fixture("image.animation.gif"), None),
    ];
    for class in ["a", "b"] {
        fs::create_dir(root.path().join(class)).unwrap();
    }
    fs::write(root.path().join("b/good.jpg"), &jpeg).unwrap();
    files.iter().for_each(|(name, bytes, _)| fs::write(path(name), bytes).unwrap());
    let folder = Folder::scan(root.path())
        .unwrap()
        .read_with(enmasse_image::ReadOptions { convert_rgb: true, ..Default::default() });
    // What happens between the scan and the reading.
    let gone = ["gone.jpg", "folder.jpg", "pipe.jpg", "loop.jpg"];
    gone.into_iter().for_each(|name| fs::remove_file(path(name)).unwrap());
    fs::create_dir(path("folder.jpg")).unwrap();
    mkfifoat(CWD, path("pipe.jpg"), Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("loop.jpg", path("loop.jpg")).unwrap();

    let dataset: Arc<dyn Dataset> = Arc::new(folder);
    let samples = dataset.len();
    let pool = DecodePool::new(2).unwrap();
    let bad = files.iter().filter(|(.., problem)| problem.is_some()).count();
    let check = |found: Vec<BadSample>| {
        assert_eq!(found.len(), bad, "{found:?}");
        for (name, _, problem) in files {
            let own = found.iter().find(|sample| sample.name.ends_with(name));
            assert_eq!(own.is_some(), problem.is_some(), "{name}");
            let told = own.zip(*problem).is_none_or(|(sample, problem)| sample.problem.contains(problem));
            assert!(told, "{own:?} instead of {problem:?}");
        }
    };
    let eval = EvalLoader::new(&pool, dataset.clone(), EvalTransform::new(8), Sharding::one(0, 1, 4)).unwrap();
    let batches: Vec<_> = eval.skip_unreadable(true).pass().map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|batch| batch.valid).sum::<usize>(), samples - bad);
    check(batches.iter().flat_map(|batch| batch.unreadable.clone()).collect());

    let train = TrainLoader::new(&pool, dataset, TrainTransform::new(8), Sharding::one(0, 1, samples), 0).unwrap();
    let batch = train.skip_unreadable(true).epoch(0, 0).next().unwrap().unwrap();
    assert_eq!(batch.valid, samples);
    check(batch.unreadable.clone());
}

/// A data set on a file server that has forgotten one file.
struct Stale;

impl Dataset for Stale {
    fn len(&self) -> usize {
        6
    }

    fn label(&self, index: usize) -> usize {
        index % 2
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        let faults = [Errno::STALE, Errno::IO, Errno::LOOP];
        match faults.get(index) {
            Some(fault) => {
                Err(DataError::Read { path: format!("{index}.jpg").into(), source: io::Error::from(*fault) })
            }
            None => Ok(Image::new(9, 9, vec![7; 9 * 9 * 3])?),
        }
    }
}

/// Such errors ended a run of weeks, since they have no kind in the standard library or were not thought of.
#[test]
fn a_file_that_the_server_has_lost_is_skipped() {
    let pool = DecodePool::new(1).unwrap();
    let loader = |skips| {
        let sharding = Sharding::one(0, 1, 6);
        let loader = EvalLoader::new(&pool, Arc::new(Stale), EvalTransform::new(8), sharding).unwrap();
        loader.skip_unreadable(skips).pass().next().unwrap()
    };
    let batch = loader(true).unwrap();
    let problems: Vec<&str> = batch.unreadable.iter().map(|sample| sample.problem.as_str()).collect();
    assert_eq!(problems, ["stale file handle", "input/output error", "too many levels of symbolic links"]);
    assert_eq!(batch.valid, 3);
    assert_eq!(loader(false).unwrap_err().to_string(), "cannot read 0.jpg: stale file handle");
}

#[test]
fn names_that_are_not_utf8_are_refused_by_name() {
    let check = |name: &[u8], inside: &str| {
        let root = tempfile::tempdir().unwrap();
        for class in ["a", "b"] {
            fs::create_dir(root.path().join(class)).unwrap();
            (0..5).for_each(|number| fs::write(root.path().join(class).join(format!("{number}.jpg")), "").unwrap());
        }
        let strange = root.path().join(inside).join(Path::new(OsStr::from_bytes(name)));
        fs::create_dir_all(strange.parent().unwrap()).unwrap();
        fs::write(&strange, "").unwrap();
        let error = Split::open(root.path(), 0, 0.2).unwrap_err().to_string();
        assert!(error.ends_with("its name is not valid UTF-8; rename it") && error.contains("caf"), "{error}");
    };
    check(b"caf\xE9.jpg", "a");
    check(b"caf\xE9/1.jpg", "");
}
