//! Loaders that decode only what they need: the same batches as from whole images.

use std::path::Path;
use std::sync::Arc;

use enmasse_data::{Batches, DataError, Dataset, DecodePool, EvalLoader, Locality, Sharding, TrainLoader};
use enmasse_datasets::{Container, Folder};
use enmasse_image::{
    EvalTransform, Image, ImageRegion, RandomHorizontalFlip, RandomResizedCrop, ReadOptions, RegionRequest,
    TrainTransform,
};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// The same images, always read as a whole.
struct Whole(Arc<Folder>);

impl Dataset for Whole {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn label(&self, index: usize) -> usize {
        self.0.label(index)
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.0.read(index)
    }
}

/// The same files one after another in one file.
struct Joined {
    container: Container,
    places: Vec<(u64, usize)>,
    options: ReadOptions,
}

impl Joined {
    fn new(folder: &Folder, path: &Path, options: ReadOptions) -> Self {
        let (mut all, mut file, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..folder.len() {
            assert!(folder.read_file(index, &mut file).unwrap());
            places.push((all.len() as u64, file.len()));
            all.extend_from_slice(&file);
        }
        std::fs::write(path, all).unwrap();
        Joined { container: Container::open(path).unwrap(), places, options }
    }
}

impl Dataset for Joined {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn label(&self, _: usize) -> usize {
        0
    }

    fn read(&self, _: usize) -> Result<Image, DataError> {
        unreachable!("a loader reads parts")
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Joined {
    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        self.container.read_part(self.places[index], || self.name(index), self.options, wanted, view)
    }
}

fn images(batches: Batches) -> Vec<u8> {
    batches.flat_map(|batch| batch.unwrap().images.to_vec()).collect()
}

/// A photograph-like image: smooth colours, an edge, and texture.
fn image(width: usize, height: usize) -> Vec<u8> {
    let pixel = |x: usize, y: usize| {
        let (x, y) = (x as f64 / width as f64, y as f64 / height as f64);
        let texture = 12.0 * (90.0 * x).sin() * (70.0 * y).cos();
        let edge = if (x - 0.6).powi(2) + (y - 0.4).powi(2) < 0.04 { 60.0 } else { 0.0 };
        [60.0 + 120.0 * x + texture, 90.0 + 80.0 * y + edge, 200.0 - 90.0 * x * y - texture].map(|color| color as u8)
    };
    (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect()
}

fn write(path: &Path, width: usize, height: usize, sampling: SamplingFactor, progressive: bool) {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 90);
    encoder.set_sampling_factor(sampling);
    encoder.set_progressive(progressive);
    encoder.encode(&image(width, height), width as u16, height as u16, ColorType::Rgb).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// A folder of one class: the fixtures of every format and orientation, and larger images.
fn folder(root: &Path, options: ReadOptions) -> Arc<Folder> {
    let class = root.join("class");
    std::fs::create_dir(&class).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures");
    for entry in std::fs::read_dir(fixtures).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("image.") {
            std::fs::copy(entry.path(), class.join(name)).unwrap();
        }
    }
    for (number, sampling) in
        [SamplingFactor::R_4_4_4, SamplingFactor::R_4_2_2, SamplingFactor::R_4_2_0].into_iter().enumerate()
    {
        write(&class.join(format!("large-{number}.jpg")), 400 + 33 * number, 300 + 25 * number, sampling, number == 1);
    }
    Arc::new(Folder::scan(root).unwrap().read_with(options))
}

#[test]
fn parts_give_the_batches_of_whole_images() {
    let pool = DecodePool::new(2).unwrap();
    for exif_transpose in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let options = ReadOptions { convert_rgb: true, exif_transpose, fast: false };
        let parts = folder(root.path(), options);
        let joined = Arc::new(Joined::new(&parts, &root.path().join("joined"), options));
        let whole = Arc::new(Whole(parts.clone()));
        let sharding = Sharding::one(0, 1, 8);
        let lists = [
            TrainTransform::new(24),
            TrainTransform::empty(24).then(EvalTransform::new(24)),
            TrainTransform::empty(24).then(RandomHorizontalFlip { probability: 0.5 }).then(RandomResizedCrop::new(24)),
        ];
        for list in lists {
            let epochs = |data: Arc<dyn Dataset>| {
                let loader = TrainLoader::new(&pool, data, list.clone(), sharding.clone(), 3).unwrap();
                (0..4).flat_map(|epoch| images(loader.epoch(epoch, 0))).collect::<Vec<u8>>()
            };
            let expected = epochs(whole.clone());
            assert!(epochs(parts.clone()) == expected, "{list} {exif_transpose}");
            assert!(epochs(joined.clone()) == expected, "{list} {exif_transpose}");
        }
        // The last one adds margins.
        for transform in [
            EvalTransform::new(24),
            EvalTransform { resize: 40, ..EvalTransform::new(8) },
            EvalTransform { resize: 8, ..EvalTransform::new(24) },
        ] {
            let pass = |data: Arc<dyn Dataset>| {
                images(EvalLoader::new(&pool, data, transform.clone(), sharding.clone()).unwrap().pass())
            };
            assert!(pass(parts.clone()) == pass(whole.clone()), "{transform:?} {exif_transpose}");
        }
    }
}
