//! Known data sets: recognised by their files, read alike from every layout, and errors for damaged ones.

use std::fs;
use std::io::Write;
use std::path::Path;

use enmasse_data::Dataset;
use enmasse_datasets::{DataKind, OpenData, OpenOptions, open};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

fn write(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn opened(root: &Path) -> OpenData {
    open(root, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(root: &Path, expected: &[&str]) {
    let error = open(root, &OpenOptions::default()).err().expect("an error").to_string();
    assert!(!error.contains('\n') && expected.iter().all(|part| error.contains(part)), "{error}");
}

/// Byte `j` of an image, as in `fixtures/cifar.py`.
fn value(image: usize, j: usize) -> u8 {
    ((31 * image + 7 * j) % 251) as u8
}

/// The two records of those fixtures in the binary layout.
fn cifar_records(labels: &[[u8; 2]; 2], used: usize) -> Vec<u8> {
    let record = |i: usize| labels[i][2 - used..].iter().copied().chain((0..3072).map(move |j| value(i, j)));
    (0..2).flat_map(record).collect()
}

const NAMES: &str = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
const LABELS: [[u8; 2]; 2] = [[0, 3], [1, 5]];

fn cifar10_binary(root: &Path) {
    for name in (1..=5).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".into()]) {
        write(root, &name, &cifar_records(&LABELS, 1));
    }
    write(root, "batches.meta.txt", NAMES.as_bytes());
}

fn cifar10_python(root: &Path) {
    for name in (1..=5).map(|i| format!("data_batch_{i}")).chain(["test_batch".into()]) {
        write(root, &name, include_bytes!("../fixtures/cifar-10.pickle"));
    }
    write(root, "batches.meta", include_bytes!("../fixtures/cifar-10.meta.pickle"));
}

fn cifar100_binary(root: &Path) {
    let names: String = (0..100).map(|i| format!("fine {i}\n")).collect();
    write(root, "fine_label_names.txt", names.as_bytes());
    ["train.bin", "test.bin"].iter().for_each(|name| write(root, name, &cifar_records(&LABELS, 2)));
}

fn cifar100_python(root: &Path) {
    ["train", "test"].iter().for_each(|name| write(root, name, include_bytes!("../fixtures/cifar-100.pickle")));
    write(root, "meta", include_bytes!("../fixtures/cifar-100.meta.pickle"));
}

fn idx(dimensions: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|dimension| dimension.to_be_bytes()));
    bytes.extend(elements);
    bytes
}

fn grey_images(count: usize) -> Vec<u8> {
    let pixels: Vec<u8> = (0..count).flat_map(|i| (0..784).map(move |j| value(i, j))).collect();
    idx(&[count as u32, 28, 28], &pixels)
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The four files, under names that `name` derives from the usual ones.
fn mnist(root: &Path, train: &[u8], name: impl Fn(&str) -> String) {
    let put = |file: &str, bytes: &[u8]| {
        let name = name(file);
        write(root, &name, &if name.ends_with(".gz") { zipped(bytes) } else { bytes.to_vec() });
    };
    put("train-images-idx3-ubyte", &grey_images(train.len()));
    put("train-labels-idx1-ubyte", &idx(&[train.len() as u32], train));
    put("t10k-images-idx3-ubyte", &grey_images(2));
    put("t10k-labels-idx1-ubyte", &idx(&[2], &[7, 0]));
}

fn mnist_at(root: &Path) {
    mnist(root, &[5, 0, 4], str::to_owned);
}

fn labels(dataset: &dyn Dataset) -> Vec<usize> {
    (0..dataset.len()).map(|index| dataset.label(index)).collect()
}

#[test]
fn cifar_in_every_layout() {
    let check = |make: &dyn Fn(&Path), below: &str, kind: DataKind, parts: usize| {
        let root = tempdir().unwrap();
        make(&root.path().join(below));
        for given in ["", below] {
            let data = opened(&root.path().join(given));
            assert_eq!((data.kind, data.folder.as_path()), (kind, root.path().join(below).as_path()));
            assert_eq!(labels(data.train.as_ref()), [3, 5].repeat(parts));
            assert_eq!(labels(data.validation.as_ref()), [3, 5]);
            assert!(data.split.is_none() && data.classes.len() > 5);
            for (index, dataset) in (0..2 * parts).map(|index| (index, &data.train)).chain([(1, &data.validation)]) {
                let image = dataset.read(index).unwrap();
                assert_eq!((image.width(), image.height()), (32, 32));
                for (at, pixel) in image.pixels().chunks_exact(3).enumerate() {
                    assert_eq!(pixel, [0, 1024, 2048].map(|plane| value(index % 2, plane + at)));
                }
            }
        }
    };
    check(&cifar10_binary, "cifar-10-batches-bin", DataKind::Cifar10, 5);
    check(&cifar10_python, "cifar-10-batches-py", DataKind::Cifar10, 5);
    check(&cifar100_binary, "cifar-100-binary", DataKind::Cifar100, 1);
    check(&cifar100_python, "cifar-100-python", DataKind::Cifar100, 1);
}

#[test]
fn names_and_classes() {
    let root = tempdir().unwrap();
    cifar10_binary(root.path());
    let data = opened(root.path());
    assert_eq!(data.train.name(3), format!("{}, image 1", root.path().join("data_batch_2.bin").display()));
    assert_eq!((data.classes.len(), data.classes[9].as_str()), (10, "truck"));
    let hundred = tempdir().unwrap();
    cifar100_python(hundred.path());
    assert_eq!(opened(hundred.path()).classes, (0..100).map(|i| format!("fine {i}")).collect::<Vec<_>>());
    mnist_at(&hundred.path().join("digits"));
    assert_eq!(opened(&hundred.path().join("digits")).classes.concat(), "0123456789");
}

/// Plain or compressed, in any spelling, in the folder itself or below torchvision's root.
#[test]
fn mnist_in_every_spelling() {
    type Name<'a> = &'a dyn Fn(&str) -> String;
    let check = |below: &str, train: &[u8], name: Name, kind: DataKind| {
        let root = tempdir().unwrap();
        mnist(&root.path().join(below), train, name);
        for given in ["", below] {
            let data = opened(&root.path().join(given));
            let expected: Vec<usize> = train.iter().map(|&label| usize::from(label)).collect();
            assert_eq!(labels(data.train.as_ref()), expected);
            assert_eq!(labels(data.validation.as_ref()), [7, 0]);
            // So few labels do not tell the two sets apart, unless the folder's name does.
            if given.is_empty() || kind == DataKind::Mnist || train.len() > 3 {
                assert_eq!((data.kind, data.classes.len()), (kind, 10));
            }
            for index in 0..train.len() {
                let image = data.train.read(index).unwrap();
                assert_eq!((image.width(), image.height()), (28, 28));
                let expected: Vec<u8> = (0..784).flat_map(|j| [value(index, j); 3]).collect();
                assert_eq!(image.pixels(), expected);
            }
        }
    };
    let digits = &[5, 0, 4];
    let clothes = &[9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9, 1];
    check("", digits, &str::to_owned, DataKind::Mnist);
    check("raw", digits, &|name| format!("{name}.gz"), DataKind::Mnist);
    check("MNIST/raw", digits, &|name| name.replace("-idx", ".idx"), DataKind::Mnist);
    check("MNIST/raw", digits, &|name| format!("{}.gz", name.replace("-idx", ".idx")), DataKind::Mnist);
    check("FashionMNIST/raw", digits, &str::to_owned, DataKind::FashionMnist);
    check("", clothes, &|name| format!("{name}.gz"), DataKind::FashionMnist);
    check("raw", clothes, &str::to_owned, DataKind::FashionMnist);
}

#[test]
fn a_root_of_several_sets() {
    let root = tempdir().unwrap();
    cifar10_binary(&root.path().join("cifar-10-batches-bin"));
    cifar10_python(&root.path().join("cifar-10-batches-py"));
    assert_eq!(opened(root.path()).folder, root.path().join("cifar-10-batches-bin"));
    mnist_at(&root.path().join("MNIST/raw"));
    refused(root.path(), &["it has both CIFAR-10 and MNIST", "give the folder of one of them", "/MNIST/raw"]);
    assert_eq!(opened(&root.path().join("MNIST")).kind, DataKind::Mnist);
}

/// A folder named `train` or a single file with a known name is not CIFAR.
#[test]
fn class_folders_stay_class_folders() {
    let root = tempdir().unwrap();
    for class in ["train/a", "train/b", "test/a", "test/b"] {
        write(root.path(), &format!("{class}/1.jpg"), b"");
    }
    write(root.path(), "meta", b"");
    let data = opened(root.path());
    assert_eq!((data.kind, data.train.len(), data.validation.len()), (DataKind::Folder, 2, 2));
    assert_eq!(data.split.unwrap().val.classes(), data.classes);
}

#[test]
fn folders_without_data() {
    let root = tempdir().unwrap();
    let looked_for = [
        "no class folders of images",
        "CIFAR-10 (data_batch_1.bin or data_batch_1 …, here or in cifar-10-batches-bin or cifar-10-batches-py; https://",
        "CIFAR-100 (train.bin or train …",
        "MNIST (train-images-idx3-ubyte …, here or in raw or MNIST/raw; http",
        "Fashion-MNIST (train-images-idx3-ubyte …, here or in FashionMNIST/raw; https://",
    ];
    refused(root.path(), &looked_for);
    write(root.path(), "deep/deeper/deepest/notes.txt", b"");
    refused(root.path(), &looked_for);
    // As in Kaggle's Dogs vs. Cats. The files of CIFAR and MNIST are no help here.
    write(root.path(), "cat.0.JPG", b"");
    refused(root.path(), &["it has images, such as cat.0.JPG, but no class folders; put", "`label_pattern`"]);
    write(root.path(), "flower_photos.tgz", b"");
    refused(root.path(), &["the archive flower_photos.tgz: extract it there first"]);
    refused(&root.path().join("flower_photos.tgz"), &["this is a file", "must be extracted first"]);
    refused(&root.path().join("nowhere"), &["cannot read", "nowhere: no such file or directory"]);

    // A table of labels often lies beside the images.
    let root = tempdir().unwrap();
    write(root.path(), "labels.csv", b"path,label\none.jpg,a");
    refused(root.path(), &["it has no class folders of images; if labels.csv lists images and their classes, name it"]);
    write(root.path(), "images/one.jpg", b"");
    refused(root.path(), &["only one class (images); a classifier needs at least two; if labels.csv lists"]);
}

/// Creates a set, damages it, and expects an error with these words.
fn spoilt(make: fn(&Path), spoil: &dyn Fn(&Path), expected: &[&str]) {
    let root: TempDir = tempdir().unwrap();
    make(root.path());
    opened(root.path());
    spoil(root.path());
    refused(root.path(), expected);
}

#[test]
fn damaged_cifar() {
    let remove = |name: &'static str| move |root: &Path| fs::remove_file(root.join(name)).unwrap();
    let put = |name: &'static str, bytes: &'static [u8]| move |root: &Path| write(root, name, bytes);
    spoilt(
        cifar10_binary,
        &|root| ["data_batch_2.bin", "test_batch.bin"].map(remove).iter().for_each(|remove| remove(root)),
        &["CIFAR-10 is incomplete: data_batch_2.bin, test_batch.bin not found; get it from https://www.cs.toronto"],
    );
    spoilt(cifar100_python, &remove("meta"), &["CIFAR-100 is incomplete: meta not found"]);
    let cut = |root: &Path| write(root, "data_batch_3.bin", &cifar_records(&LABELS, 1)[1..]);
    spoilt(cifar10_binary, &cut, &["data_batch_3.bin: 6145 bytes are not a multiple of 3073"]);
    spoilt(cifar10_binary, &put("test_batch.bin", b""), &["test_batch.bin: 0 bytes are not a multiple of 3073"]);
    let labelled = |root: &Path| write(root, "test_batch.bin", &cifar_records(&[[0, 3], [0, 10]], 1));
    spoilt(cifar10_binary, &labelled, &["test_batch.bin: image 1 (from 0) has the label 10, but there are 10 classes"]);
    spoilt(cifar10_binary, &put("batches.meta.txt", b"cat\ndog\n"), &["it names 2 classes instead of 10"]);
    spoilt(cifar10_binary, &put("batches.meta.txt", b"\xFF\xFE"), &["batches.meta.txt: its names are not valid UTF-8"]);
    // A binary file of one set under the other set's name.
    let other = |root: &Path| write(root, "train.bin", &cifar_records(&LABELS, 1));
    spoilt(cifar100_binary, &other, &["train.bin: 6146 bytes are not a multiple of 3074"]);

    spoilt(cifar10_python, &put("data_batch_1", b"\x80\x02}"), &["data_batch_1: the pickle is cut short"]);
    spoilt(cifar10_python, &put("data_batch_1", b"}."), &["data_batch_1: not a CIFAR batch: it has no \"data\""]);
    spoilt(cifar10_python, &put("data_batch_1", b"\x80\x02}U\x04dataK\x01s."), &["its \"data\" is not a NumPy array"]);
    spoilt(
        cifar10_python,
        &put("test_batch", include_bytes!("../fixtures/cifar-100.pickle")),
        &["test_batch: its \"labels\" is not a list of 2 small numbers"],
    );
    spoilt(
        cifar100_python,
        &put("meta", include_bytes!("../fixtures/cifar-10.meta.pickle")),
        &["meta: it names 0 classes instead of 100"],
    );
}

#[test]
fn damaged_mnist() {
    const IMAGES: &str = "train-images-idx3-ubyte";
    const TRAIN: &str = "train-labels-idx1-ubyte";
    const TEST: &str = "t10k-labels-idx1-ubyte";
    let check = |name: &'static str, bytes: Vec<u8>, expected: &str| {
        spoilt(mnist_at, &|root| write(root, name, &bytes), &[name, expected]);
    };
    check(TRAIN, grey_images(3), "not an idx file: it begins with [00 00 08 03], not [00 00 08 01]");
    check(IMAGES, b"PK".to_vec(), "not an idx file: it begins with [50 4b], not [00 00 08 03]");
    check(IMAGES, idx(&[3, 28], &[0; 84]), "it begins with [00 00 08 02]");
    check(IMAGES, vec![0, 0, 8, 3, 0, 0], "it begins with [00 00 08 03]");
    check(TEST, idx(&[3], &[7, 0, 1]), "it holds 3 labels, but there are 2 images in ");
    check(IMAGES, idx(&[3, 32, 32], &[0; 3072]), "its images are 32x32, not 28x28");
    check(IMAGES, grey_images(3)[..2000].to_vec(), "its header says 3 x 28 x 28 bytes, but 1984 follow");
    check(IMAGES, idx(&[u32::MAX; 3], &[]), "its header says 4294967295 x 4294967295 x 4294967295 bytes, but 0");
    check(TEST, idx(&[2], &[7, 10]), "label 1 (from 0) is 10, but there are 10 classes");
    check(TEST, zipped(&idx(&[2], &[7, 1]))[..20].to_vec(), "it cannot be decompressed to its end");
    spoilt(
        mnist_at,
        &|root| fs::remove_file(root.join(TEST)).unwrap(),
        &["MNIST is incomplete: t10k-labels-idx1-ubyte not found; get it from http"],
    );
    // Files without content: zero labels and zero images.
    spoilt(
        mnist_at,
        &|root| {
            write(root, "t10k-images-idx3-ubyte", &grey_images(0));
            write(root, TEST, &idx(&[0], &[]));
        },
        &["t10k-images-idx3-ubyte: it holds no images"],
    );
}

proptest! {
    /// For any content of a file: a data set whose images can all be read, or an error of one line.
    #[test]
    fn any_bytes_in_a_file(
        set in 0usize..4,
        file: prop::sample::Index,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        keep in prop::option::of(any::<prop::sample::Index>()),
        zip: bool,
    ) {
        let root = tempdir().unwrap();
        [cifar10_python, cifar100_python, cifar100_binary, mnist_at][set](root.path());
        let mut paths: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let path = file.get(&paths);
        let mut bytes = fs::read(path).unwrap();
        // Most of a batch is pixels; the damage goes to its structure.
        for (at, byte) in edits {
            let structure = bytes.len().min(300);
            bytes[at.index(structure)] = byte;
        }
        bytes.truncate(keep.map_or(bytes.len(), |end| end.index(bytes.len())));
        fs::write(path, if zip { zipped(&bytes) } else { bytes }).unwrap();
        match open(root.path(), &OpenOptions::default()) {
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{}", error),
            Ok(data) => {
                for dataset in [&data.train, &data.validation] {
                    for index in 0..dataset.len() {
                        prop_assert!(dataset.label(index) < data.classes.len());
                        prop_assert_eq!(dataset.read(index).unwrap().width(), data.kind.native_size().unwrap());
                    }
                }
            }
        }
    }
}
