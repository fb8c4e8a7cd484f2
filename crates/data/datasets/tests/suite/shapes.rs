//! The embedded data set: complete, created once, and too hard for a linear classifier.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use enmasse_data::{Batch, DataError, Dataset, DecodePool, EvalLoader, Sharding};
use enmasse_datasets::{Folder, Split, shapes};
use enmasse_image::EvalTransform;

/// The data set, created once for all tests of this file.
fn data_set() -> &'static Path {
    static CACHE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, folder) = CACHE.get_or_init(|| {
        let cache = tempfile::tempdir().unwrap();
        let folder = shapes::ensure(cache.path()).unwrap();
        (cache, folder)
    });
    folder
}

#[test]
fn ten_classes_of_varied_images() {
    let folder = Folder::scan(data_set()).unwrap();
    assert_eq!((folder.classes().len(), folder.len()), (shapes::CLASSES, 3000));
    assert_eq!(folder.counts(), [shapes::PER_CLASS; 10]);
    let sizes: HashSet<(usize, usize)> =
        (0..folder.len()).step_by(31).map(|i| folder.read(i).unwrap()).map(|p| (p.width(), p.height())).collect();
    assert!(sizes.len() > 80 && sizes.iter().any(|(w, h)| w > h) && sizes.iter().any(|(w, h)| w < h));
    let split = Split::open(data_set(), 0, 0.2).unwrap();
    assert_eq!((split.train.len(), split.val.len()), (2400, 600));
}

/// The checksum of the whole data set: other bytes on some machine, or an accidental change, would be another data set.
#[test]
fn the_same_bytes_everywhere() {
    let folder = Folder::scan(data_set()).unwrap();
    let hash = (0..folder.len())
        .flat_map(|i| fs::read(folder.path(i)).unwrap())
        .fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    assert_eq!(hash, 16317678812878248584);
}

/// Pixels (centred around zero) and labels of `folder` at 32×32.
fn pixels(folder: Folder) -> (Vec<Vec<f32>>, Vec<usize>) {
    let sharding = Sharding::one(0, 1, 100);
    let pool = DecodePool::new(2).unwrap();
    let loader =
        EvalLoader::new(&pool, Arc::new(folder), EvalTransform { resize: 32, ..EvalTransform::new(32) }, sharding)
            .unwrap();
    let batches: Vec<Batch> = loader.pass().collect::<Result<_, DataError>>().unwrap();
    let samples =
        batches.iter().flat_map(|batch| batch.images.chunks_exact(32 * 32 * 3).zip(&batch.labels).take(batch.valid));
    samples
        .map(|(image, &label)| (image.iter().map(|&byte| f32::from(byte) / 127.5 - 1.0).collect(), label as usize))
        .unzip()
}

/// Softmax regression by stochastic gradient descent; returns the accuracies in training and validation.
fn softmax_regression(train: &(Vec<Vec<f32>>, Vec<usize>), val: &(Vec<Vec<f32>>, Vec<usize>)) -> (f64, f64) {
    const CLASSES: usize = shapes::CLASSES;
    let inputs = train.0[0].len();
    let mut weights = vec![[0f32; CLASSES]; inputs + 1];
    let scores = |weights: &[[f32; CLASSES]], image: &[f32]| {
        let mut scores = weights[inputs];
        for (row, &pixel) in weights.iter().zip(image) {
            for (score, weight) in scores.iter_mut().zip(row) {
                *score += weight * pixel;
            }
        }
        scores
    };
    let epochs = 25;
    for epoch in 0..epochs {
        let rate = 0.002 * (1.0 - epoch as f32 / epochs as f32);
        let order = enmasse_tensor::RandomStream::new(0, "softmax", epoch, 0).permutation(train.0.len());
        for index in order {
            let image = &train.0[index as usize];
            let label = train.1[index as usize];
            let mut gradient = scores(&weights, image);
            let largest = gradient.iter().copied().fold(f32::MIN, f32::max);
            gradient.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let sum: f32 = gradient.iter().sum();
            gradient.iter_mut().for_each(|score| *score *= rate / sum);
            gradient[label] -= rate;
            for (row, &pixel) in weights.iter_mut().zip(image.iter().chain(&[1.0])) {
                for (weight, gradient) in row.iter_mut().zip(&gradient) {
                    *weight -= gradient * pixel;
                }
            }
        }
    }
    let accuracy = |(images, labels): &(Vec<Vec<f32>>, Vec<usize>)| {
        let best = |image: &Vec<f32>| {
            let scores = scores(&weights, image);
            (0..CLASSES).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap()
        };
        images.iter().zip(labels).filter(|(image, label)| best(image) == **label).count() as f64 / labels.len() as f64
    };
    (accuracy(train), accuracy(val))
}

#[test]
fn softmax_regression_fails() {
    let split = Split::open(data_set(), 0, 0.2).unwrap();
    let (train, val) = (pixels(split.train), pixels(split.val));
    let (learned, accuracy) = softmax_regression(&train, &val);
    println!("softmax regression on 32x32 pixels: {learned:.3} in training, {accuracy:.3} in validation");
    // It learns its training images far better than chance, but that does not carry over to others.
    assert!(learned > 0.5, "{learned}");
    assert!(accuracy < 0.5, "{accuracy}");
}

#[test]
fn created_once_and_repaired() {
    let cache = tempfile::tempdir().unwrap();
    let folder = shapes::ensure(cache.path()).unwrap();
    let modified = || fs::metadata(folder.join("ring/ring-000.jpg")).unwrap().modified().unwrap();
    let before = modified();
    assert_eq!(shapes::ensure(cache.path()).unwrap(), folder);
    assert_eq!(modified(), before);
    // Files of an interrupted process are removed; a damaged data set is created again.
    let name = folder.file_name().unwrap().to_str().unwrap();
    let stale = cache.path().join(format!(".{name}.4194305.tmp"));
    fs::create_dir_all(stale.join("ring")).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(2 * 3600);
    fs::File::open(&stale).unwrap().set_modified(long_ago).unwrap();
    fs::write(folder.join("ring/ring-299.jpg"), b"").unwrap();
    shapes::ensure(cache.path()).unwrap();
    assert!(!stale.exists() && fs::metadata(folder.join("ring/ring-299.jpg")).unwrap().len() > 0);
    let left: Vec<_> = fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the data set and its lock: {left:?}");
}

#[test]
fn two_at_once() {
    let cache = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| shapes::ensure(cache.path()).unwrap()));
        let [first, second] = both.map(|thread| thread.join().unwrap());
        assert_eq!(first, second);
    });
    assert_eq!(Folder::scan(shapes::ensure(cache.path()).unwrap()).unwrap().len(), 3000);
}

#[test]
fn unusable_cache() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = shapes::ensure(&file.join("cache")).unwrap_err().to_string();
    assert!(error.contains("cannot write") && error.contains("file/cache"), "{error}");
}
