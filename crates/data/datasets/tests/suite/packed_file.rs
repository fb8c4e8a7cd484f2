//! Packed files: what was packed is read, for every form, and damage is an error.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use enmasse_data::{Batches, DataError, Dataset, DecodePool, EvalLoader, Locality, Sharding, TrainLoader};
use enmasse_datasets::{
    DataKind, OpenData, OpenOptions, PackForm, PackOptions, Packed, TaskKind, Unpacked, is_packed, open, pack,
};
use enmasse_image::{EvalTransform, Image, ReadOptions, Resizer, TrainTransform};
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

const AS_THEY_ARE: PackForm = PackForm::Files { resize: None, quality: 90 };

fn reading(reading: ReadOptions) -> OpenOptions {
    OpenOptions { reading, ..OpenOptions::default() }
}

fn unpacked(root: &Path, data: &OpenData) -> Unpacked {
    Unpacked {
        root: root.to_owned(),
        kind: data.kind,
        task: data.task,
        classes: data.classes.clone(),
        parts: [data.train.clone(), data.validation.clone()],
        test: data.test.clone(),
    }
}

pub fn packed(data: &Unpacked, form: PackForm, path: &Path) -> Result<Packed, DataError> {
    let pool = DecodePool::new(2).unwrap();
    let options = PackOptions { form, most_skipped: 0 };
    pack(data, &options, &pool, path, |_| {})
}

/// Copies of the fixtures whose names contain `part`, as a folder of two classes with names that few folders have.
fn folder(part: &str) -> TempDir {
    let root = tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures");
    for entry in fs::read_dir(fixtures).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("image.") && name.contains(part) {
            for class in ["train/a \"b\"\n", "train/ü, é", "val/a \"b\"\n", "val/ü, é"] {
                let class = root.path().join(class);
                fs::create_dir_all(&class).unwrap();
                fs::copy(entry.path(), class.join(&name)).unwrap();
            }
        }
    }
    root
}

pub fn batches(batches: Batches) -> Vec<(Vec<u8>, Vec<i32>)> {
    batches.map(|batch| batch.unwrap()).map(|batch| (batch.images.to_vec(), batch.labels.clone())).collect()
}

/// Two epochs of training and a validation at 24 pixels.
fn epochs(data: &OpenData) -> Vec<(Vec<u8>, Vec<i32>)> {
    let pool = DecodePool::new(2).unwrap();
    let sharding = Sharding::one(0, 1, 8);
    let train = TrainLoader::new(&pool, data.train.clone(), TrainTransform::new(24), sharding.clone(), 3).unwrap();
    let validation = EvalLoader::new(&pool, data.validation.clone(), EvalTransform::new(24), sharding).unwrap();
    [train.epoch(0, 0), train.epoch(1, 0), validation.pass()].into_iter().flat_map(batches).collect()
}

#[test]
fn a_packed_folder_trains_like_the_folder() {
    let root = folder("");
    let path = root.path().join("packed");
    let plain = open(root.path(), &OpenOptions::default()).unwrap();
    let done = packed(&unpacked(root.path(), &plain), AS_THEY_ARE, &path).unwrap();
    assert_eq!(
        done,
        Packed { samples: [plain.train.len(), plain.validation.len(), 0], bytes: fs::metadata(&path).unwrap().len() }
    );
    for exif_transpose in [false, true] {
        let options = reading(ReadOptions { convert_rgb: true, exif_transpose, fast: true });
        let folder = open(root.path(), &options).unwrap();
        let file = open(&path, &options).unwrap();
        assert_eq!((file.kind, &file.classes), (DataKind::Folder, &folder.classes));
        assert!(file.split.is_none());
        for (of_file, of_folder) in [(&file.train, &folder.train), (&file.validation, &folder.validation)] {
            assert_eq!(of_file.len(), of_folder.len());
            assert_eq!(
                of_file.locality().unwrap().reading_bytes() > 0,
                of_folder.locality().unwrap().reading_bytes() > 0
            );
            for index in 0..of_file.len() {
                let inside =
                    of_folder.name(index).replace(&root.path().display().to_string(), &path.display().to_string());
                assert_eq!((of_file.name(index), of_file.label(index)), (inside, of_folder.label(index)));
                assert!(of_file.read(index).unwrap() == of_folder.read(index).unwrap());
                let mut one = vec![7; 9];
                let mut other = Vec::new();
                assert!(
                    of_file.locality().unwrap().read_file(index, &mut one).unwrap()
                        && of_folder.locality().unwrap().read_file(index, &mut other).unwrap()
                );
                assert!(one == other, "{}", of_folder.name(index));
            }
        }
        assert!(epochs(&file) == epochs(&folder), "{exif_transpose}");
    }
    // Packed once more, it is the same file, and its samples have the same fingerprint.
    let again = root.path().join("again");
    let file = open(&path, &OpenOptions::default()).unwrap();
    packed(&unpacked(&path, &file), AS_THEY_ARE, &again).unwrap();
    assert!(fs::read(&path).unwrap() == fs::read(&again).unwrap());
    let fingerprint =
        |path: &Path| open(path, &OpenOptions::default()).unwrap().train.locality().unwrap().fingerprint().unwrap();
    assert_eq!(fingerprint(&path), fingerprint(&again));
    assert!(is_packed(&path) && file.has_parts && !is_packed(root.path()));
}

#[test]
fn larger_images_are_resized() {
    let root = tempdir().unwrap();
    for (class, [width, height]) in [("a", [40, 64]), ("b", [200, 100]), ("c", [41, 500])] {
        for part in ["train", "val"] {
            let class = root.path().join(part).join(class);
            fs::create_dir_all(&class).unwrap();
            let pixels: Vec<u8> = (0..width * height)
                .flat_map(|at| [at % width * 255 / width, at / width * 255 / height, 90].map(|c| c as u8))
                .collect();
            let encoder = jpeg_encoder::Encoder::new_file(class.join("1.jpg"), 95).unwrap();
            encoder.encode(&pixels, width as u16, height as u16, jpeg_encoder::ColorType::Rgb).unwrap();
        }
    }
    let plain = open(root.path(), &OpenOptions::default()).unwrap();
    let path = root.path().join("packed");
    packed(&unpacked(root.path(), &plain), PackForm::Files { resize: Some(40), quality: 95 }, &path).unwrap();
    let file = open(&path, &OpenOptions::default()).unwrap();
    let check = |index: usize, expected: (usize, usize), is_kept: bool| {
        let whole = plain.train.read(index).unwrap();
        let small = file.train.read(index).unwrap();
        assert_eq!((small.width(), small.height()), expected);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        file.train.locality().unwrap().read_file(index, &mut one).unwrap();
        plain.train.locality().unwrap().read_file(index, &mut other).unwrap();
        assert_eq!(one == other, is_kept);
        let mut resized = vec![0; expected.0 * expected.1 * 3];
        let all = enmasse_image::CropBox::whole(whole.width(), whole.height());
        Resizer::new().resize(&whole, all, expected.0, expected.1, &mut resized);
        let largest = small.pixels().iter().zip(&resized).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(largest <= 16, "{expected:?}: {largest} levels");
    };
    check(0, (40, 64), true);
    check(1, (80, 40), false);
    check(2, (40, 487), false);
    let again = root.path().join("again");
    for (form, problem) in [
        (PackForm::Files { resize: Some(0), quality: 90 }, "a length of 0 is out of range: 1 to 13377"),
        (PackForm::Files { resize: None, quality: 0 }, "a quality of 0 is out of range: 1 to 100"),
        (PackForm::Files { resize: None, quality: 101 }, "a quality of 101 is out of range: 1 to 100"),
        (PackForm::Raw { size: 0 }, "a size of 0 is out of range: 1 to 13377"),
        (PackForm::Raw { size: 13378 }, "a size of 13378 is out of range: 1 to 13377"),
    ] {
        assert_eq!(packed(&unpacked(root.path(), &plain), form, &again).unwrap_err().to_string(), problem);
    }
    assert!(!again.exists());
}

/// Images in memory.
struct Memory {
    images: Vec<Image>,
    labels: Vec<usize>,
    names: Vec<String>,
}

impl Dataset for Memory {
    fn len(&self) -> usize {
        self.images.len()
    }
    fn label(&self, index: usize) -> usize {
        self.labels[index]
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        Ok(self.images[index].clone())
    }
    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Memory {
    fn name(&self, index: usize) -> String {
        self.names[index].clone()
    }
}

/// Samples of a width, a height, a label and a name.
fn memory(samples: &[(usize, usize, usize, String)]) -> Memory {
    let pixels = |width: usize, height: usize| (0..width * height * 3).map(|at| (at * 31 + width) as u8).collect();
    Memory {
        images: samples
            .iter()
            .map(|&(width, height, ..)| Image::new(width, height, pixels(width, height)).unwrap())
            .collect(),
        labels: samples.iter().map(|sample| sample.2).collect(),
        names: samples.iter().map(|sample| sample.3.clone()).collect(),
    }
}

pub fn of_memory(kind: DataKind, parts: [&[(usize, usize, usize, String)]; 2]) -> Unpacked {
    Unpacked {
        root: "/data".into(),
        kind,
        task: TaskKind::Classification,
        classes: ["a", "", "ü\n"].map(str::to_owned).to_vec(),
        parts: parts.map(|samples| Arc::new(memory(samples)) as Arc<dyn Dataset>),
        test: None,
    }
}

/// Regression test: a packed file had no place for a test part.
#[test]
fn a_test_part_was_not_packed() {
    let root = tempdir().unwrap();
    let samples = |count: usize| (0..count).map(|at| (9 + at, 8, at % 3, format!("{at}"))).collect::<Vec<_>>();
    let check = |test: Option<usize>| {
        let path = root.path().join(format!("{test:?}"));
        let own = test.map(|count| Arc::new(memory(&samples(count))) as Arc<dyn Dataset>);
        let data = Unpacked { test: own.clone(), ..of_memory(DataKind::Folder, [&samples(5), &samples(4)]) };
        let done = packed(&data, PackForm::Raw { size: 8 }, &path).unwrap();
        assert_eq!(done.samples, [5, 4, test.unwrap_or(0)]);
        let file = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(file.test.as_ref().map(|test| test.len()), test);
        let (Some(read), Some(source)) = (file.test, own) else { return };
        for index in 0..read.len() {
            assert_eq!(read.label(index), source.label(index));
            assert_eq!(read.name(index), format!("{}/{}", path.display(), source.name(index)));
            read.read(index).unwrap();
        }
        assert_ne!(read.locality().unwrap().fingerprint(), file.validation.locality().unwrap().fingerprint());
    };
    check(None);
    check(Some(1));
    check(Some(7));
}

#[test]
fn labels_and_numbers_are_packed() {
    let check = |table: &str, asked: TaskKind, version: u8, targets: [&[f32]; 3]| {
        let root = tempdir().unwrap();
        let (manifest, path) = (root.path().join("m.csv"), root.path().join("packed"));
        fs::write(&manifest, table).unwrap();
        let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures/image.gray.bmp");
        for name in ["a.bmp", "b.bmp", "c.bmp"] {
            fs::copy(&image, root.path().join(name)).unwrap();
        }
        let data = open(&manifest, &OpenOptions { task: Some(asked), ..OpenOptions::default() }).unwrap();
        packed(&unpacked(root.path(), &data), AS_THEY_ARE, &path).unwrap();
        assert_eq!(fs::read(&path).unwrap()[8], version);
        let file = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!((file.task, &file.classes), (asked, &data.classes));
        let parts = [&file.train, &file.validation, file.test.as_ref().unwrap()];
        assert_eq!(parts.map(|part| part.targets(0)), targets.map(<[f32]>::to_vec));
        // Other labels of the same images are other data.
        let other = root.path().join("other");
        let mut changed = unpacked(root.path(), &data);
        changed.parts[0] = data.validation.clone();
        packed(&changed, AS_THEY_ARE, &other).unwrap();
        let fingerprint = |data: &OpenData| data.train.locality().unwrap().fingerprint();
        assert_ne!(fingerprint(&open(&other, &OpenOptions::default()).unwrap()), fingerprint(&file));
        let wrong = TaskKind::ALL.into_iter().find(|task| *task != asked);
        let error = open(&path, &OpenOptions { task: wrong, ..OpenOptions::default() }).err().unwrap().to_string();
        assert!(error.contains("packed: it has") && error.ends_with("pack the data again with that task"), "{error}");
    };
    let labels = "path,labels,split\na.bmp,x|y,train\nb.bmp,,val\nc.bmp,y,test\n";
    check(labels, TaskKind::MultiLabel, 4, [&[1.0, 1.0], &[0.0, 0.0], &[0.0, 1.0]]);
    let numbers = "path,label,split\na.bmp,0.1,train\nb.bmp,-7,val\nc.bmp,1e9,test\n";
    check(numbers, TaskKind::Regression, 4, [&[0.1], &[-7.0], &[1e9]]);
    // Files of classes are those that earlier programs read.
    let classes = "path,label,split\na.bmp,x,train\nb.bmp,y,val\nc.bmp,x,test\n";
    check(classes, TaskKind::Classification, 3, [&[], &[], &[]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any sizes, labels (so that classes may be empty) and names; raw images are those of Resize and CenterCrop.
    #[test]
    fn pixels_and_names_are_kept(
        train in prop::collection::vec((1usize..40, 1usize..40, 0usize..3, ".{0,20}"), 1..70),
        validation in prop::collection::vec((1usize..40, 1usize..40, 0usize..3, ".{0,20}"), 1..5),
        size in 1usize..40,
    ) {
        let root = tempdir().unwrap();
        let path = root.path().join("packed");
        let data = of_memory(DataKind::Folder, [&train, &validation]);
        packed(&data, PackForm::Raw { size }, &path).unwrap();
        let file = open(&path, &OpenOptions::default()).unwrap();
        prop_assert_eq!(&file.classes, &data.classes);
        for (own, source) in [&file.train, &file.validation].into_iter().zip(&data.parts) {
            prop_assert_eq!(own.len(), source.len());
            for index in 0..own.len() {
                prop_assert_eq!(own.label(index), source.label(index));
                prop_assert_eq!(own.name(index), format!("{}/{}", path.display(), source.name(index)));
                let mut expected = vec![0; size * size * 3];
                let fit = EvalTransform { resize: size, ..EvalTransform::new(size) };
                fit.fit(&source.read(index).unwrap(), &mut Resizer::new(), &mut expected);
                // Before and after its record was checked.
                for _ in 0..2 {
                    let image = own.read(index).unwrap();
                    prop_assert_eq!(image.pixels(), expected.as_slice());
                }
                prop_assert!(!own.locality().unwrap().read_file(index, &mut Vec::new()).unwrap());
            }
        }
    }
}

/// Loaders read rows; the batches are those of whole images.
#[test]
fn rows_give_the_batches_of_whole_images() {
    let root = tempdir().unwrap();
    let path = root.path().join("packed");
    let samples: Vec<_> = (0..20).map(|at| (30 + at, 50 - at, at % 3, at.to_string())).collect();
    let data = of_memory(DataKind::Folder, [&samples, &samples[..9]]);
    packed(&data, PackForm::Raw { size: 37 }, &path).unwrap();
    let file = open(&path, &OpenOptions::default()).unwrap();
    let whole = |part: &Arc<dyn Dataset>| {
        let images = (0..part.len()).map(|index| part.read(index).unwrap()).collect();
        let labels = (0..part.len()).map(|index| part.label(index)).collect();
        Arc::new(Memory { images, labels, names: vec![String::new(); part.len()] }) as Arc<dyn Dataset>
    };
    let whole = OpenData { train: whole(&file.train), validation: whole(&file.validation), ..file.clone() };
    let fresh = open(&path, &OpenOptions::default()).unwrap();
    assert!(epochs(&fresh) == epochs(&whole));
    assert!(epochs(&file) == epochs(&whole));
}

#[test]
fn the_kind_is_kept() {
    let check = |kind: DataKind, size: usize, form: PackForm, is_exact: bool| {
        let root = tempdir().unwrap();
        let path = root.path().join("packed");
        let samples: Vec<_> = (0..3).map(|at| (size, size, at, at.to_string())).collect();
        let data = of_memory(kind, [&samples, &samples[..1]]);
        packed(&data, form, &path).unwrap();
        let file = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(file.kind, kind);
        let same = (0..3).all(|index| file.train.read(index).unwrap() == data.parts[0].read(index).unwrap());
        assert_eq!(same, is_exact, "{kind:?} {form:?}");
    };
    check(DataKind::Cifar100, 32, PackForm::Raw { size: 32 }, true);
    check(DataKind::FashionMnist, 28, PackForm::Raw { size: 28 }, true);
    check(DataKind::Cifar10, 32, AS_THEY_ARE, false);
}

#[test]
fn damage_is_named() {
    let root = folder("4");
    let path = root.path().join("packed");
    let plain = open(root.path(), &OpenOptions::default()).unwrap();
    packed(&unpacked(root.path(), &plain), AS_THEY_ARE, &path).unwrap();
    let whole = fs::read(&path).unwrap();
    let length = whole.len();
    let number = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
    let check = |place: usize, expected: &str| {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = open(&path, &OpenOptions::default()).err().map(|error| error.to_string());
        assert_eq!(error, Some(format!("{}: {expected}", path.display())), "byte {place} of {length}");
    };
    let again = "is damaged: copy it again, or pack the data again";
    let folder = "this is a file; the data must be a folder (an archive must be extracted first), a manifest (csv, tsv, jsonl, ndjson), a Parquet file, or a tar archive that is not compressed";
    check(0, folder);
    check(
        11,
        "it is a packed file of version 16777219, and this program reads versions 1 to 4: pack the data again, or use the program that packed it",
    );
    check(50, &format!("its header {again}"));
    // The offsets of metadata and of the training part's labels.
    check(number(24) + 3, &format!("its metadata {again}"));
    check(number(80), &format!("its list of labels {again}"));
    for cut in [1, length / 2, length - 600] {
        fs::write(&path, &whole[..length - cut]).unwrap();
        let error = open(&path, &OpenOptions::default()).err().unwrap().to_string();
        let expected = format!(
            "it has {} bytes instead of {length}: truncated, or still being copied; copy it again",
            length - cut
        );
        assert_eq!(error, format!("{}: {expected}", path.display()));
    }
    fs::write(&path, &whole[..100]).unwrap();
    let error = open(&path, &OpenOptions::default()).err().unwrap().to_string();
    assert!(error.ends_with("it ends before byte 512: truncated, or still being written"), "{error}");

    // A record, and an entry of the index: the sample is unreadable, and the others are not.
    let index = number(88);
    for (place, bad) in [(number(index + 8) + 41, vec![1]), (index + 8, vec![1]), (index + 15, vec![0, 1])] {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        fs::write(&path, bytes).unwrap();
        let options = reading(ReadOptions { convert_rgb: true, ..ReadOptions::default() });
        let file = open(&path, &options).unwrap();
        for sample in 0..file.train.len() {
            let error = file.train.read(sample).err();
            assert_eq!(error.is_some(), bad.contains(&sample), "byte {place}, sample {sample}");
            if let Some(error) = error {
                let problem = "its record is damaged: copy the file again, or pack the data again";
                assert_eq!(error.to_string(), format!("{}, training sample {sample}: {problem}", path.display()));
                assert!(error.is_unreadable());
                assert!(!file.train.name(sample).is_empty());
            }
        }
    }
}

/// JPEG images of version 2 have a coding that has left. Other images of it are those of other versions.
#[test]
fn files_with_the_old_coding() {
    let root = tempdir().unwrap();
    let path = root.path().join("old.enmasse");
    let samples: Vec<_> = (0..3).map(|at| (9, 8, at, at.to_string())).collect();
    let data = of_memory(DataKind::Folder, [&samples, &samples]);
    let check = |form: PackForm, version: u8, expected: Option<&str>| {
        let _ = fs::remove_file(&path);
        packed(&data, form, &path).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[8..12], [3, 0, 0, 0]);
        bytes[8] = version;
        let hash = blake3::hash(&bytes[..480]);
        bytes[480..512].copy_from_slice(hash.as_bytes());
        fs::write(&path, bytes).unwrap();
        let error = open(&path, &OpenOptions::default()).err().map(|error| error.to_string());
        let expected = expected.map(|problem| format!("{}: {problem}", path.display()));
        assert_eq!(error, expected, "{form:?} {version}");
    };
    let left = "it is a packed file of version 2, whose JPEG images are not read any more: pack the data again with `enmasse data pack`";
    check(AS_THEY_ARE, 1, None);
    check(AS_THEY_ARE, 2, Some(left));
    check(AS_THEY_ARE, 3, None);
    check(PackForm::Raw { size: 8 }, 1, None);
    check(PackForm::Raw { size: 8 }, 2, None);
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let root = folder("42");
    let out = tempdir().unwrap();
    let path = out.path().join("packed");
    let data = || unpacked(root.path(), &open(root.path(), &OpenOptions::default()).unwrap());
    let entries = || fs::read_dir(out.path()).unwrap().count();
    let pool = DecodePool::new(2).unwrap();
    let strict = PackOptions { form: AS_THEY_ARE, most_skipped: 0 };

    let broken = root.path().join("val/ü, é/image.420.jpg");
    fs::write(&broken, b"no image").unwrap();
    let problem = "not a JPEG, PNG, WebP, BMP or GIF image, but text";
    let error = packed(&data(), AS_THEY_ARE, &path).unwrap_err().to_string();
    assert_eq!(error, format!("{}: {problem}", broken.display()));
    assert_eq!(entries(), 0);

    let lenient = PackOptions { most_skipped: usize::MAX, ..strict };
    let mut skipped = Vec::new();
    let done = pack(&data(), &lenient, &pool, &path, |bad| {
        skipped.extend(bad);
    });
    let samples = data().parts.map(|part| part.len());
    assert_eq!(done.unwrap().samples, [samples[0], samples[1] - 1, 0]);
    assert_eq!(
        skipped.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [format!("{} ({problem})", broken.display())]
    );

    let error = packed(&data(), AS_THEY_ARE, &path).unwrap_err().to_string();
    assert_eq!(error, format!("cannot write {}: it exists: remove it, or choose another name", path.display()));
    let nowhere = out.path().join("nowhere/packed");
    let error = packed(&data(), AS_THEY_ARE, &nowhere).unwrap_err().to_string();
    let folder = nowhere.parent().unwrap().display();
    assert_eq!(error, format!("cannot write {}: there is no folder {folder}", nowhere.display()));
    assert_eq!(entries(), 1);
}
