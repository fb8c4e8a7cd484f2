//! Data sets take little memory, whatever a file claims.

use std::sync::Arc;

use enmasse_data::{DataError, Dataset, DecodePool, Locality, TrainOrder};
use enmasse_datasets::{
    DataKind, Folder, OpenOptions, PackForm, PackOptions, TaskKind, Unpacked, open, open_whole, pack,
};
use enmasse_image::Image;
use test_support::heap::{held_after, peak_of};

/// A JPEG of `edge` by `edge` pixels.
fn square(edge: u16, progressive: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
    encoder.set_progressive(progressive);
    let pixels: Vec<u8> = (0..usize::from(edge) * usize::from(edge) * 3).map(|place| (place * 7) as u8).collect();
    encoder.encode(&pixels, edge, edge, jpeg_encoder::ColorType::Rgb).unwrap();
    bytes
}

/// The memory line of a run counted four images that might all be small ones.
#[test]
fn stated_bytes_are_those_of_the_largest_image() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("a");
    std::fs::create_dir(&class).unwrap();
    for number in 0..60 {
        let (edge, progressive) = if number == 41 { (1000, true) } else { (100, false) };
        std::fs::write(class.join(format!("{number:02}.jpg")), square(edge, progressive)).unwrap();
    }
    let folder = Folder::scan(root.path()).unwrap();
    let stated = folder.reading_bytes();
    let (read, taken) = peak_of(|| folder.read(41).map(|_| ()));
    read.unwrap();
    // The decoder's rows are not counted.
    assert!(taken.abs_diff(stated) < taken / 50, "{taken} bytes taken, {stated} stated");
}

/// Samples of one pixel.
struct Dots(usize);

impl Dataset for Dots {
    fn len(&self) -> usize {
        self.0
    }
    fn label(&self, index: usize) -> usize {
        index % 10
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        Ok(Image::new(1, 1, vec![index as u8; 3])?)
    }
}

#[test]
fn a_packed_file_takes_few_bytes_for_a_sample() {
    const SAMPLES: usize = 20_000;
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("packed");
    let data = Unpacked {
        root: root.path().to_owned(),
        kind: DataKind::Folder,
        task: TaskKind::Classification,
        classes: (0..10).map(|class| class.to_string()).collect(),
        parts: [SAMPLES, 1].map(|samples| Arc::new(Dots(samples)) as Arc<dyn Dataset>),
        test: None,
    };
    let options = PackOptions { form: PackForm::Raw { size: 1 }, most_skipped: 0 };
    pack(&data, &options, &DecodePool::new(2).unwrap(), &path, |_| {}).unwrap();
    let (file, held) = held_after(|| open(&path, &OpenOptions::default()).unwrap());
    assert_eq!(file.train.len(), SAMPLES);
    assert!((held as usize) < 5 * SAMPLES, "{held} bytes");
}

/// Opening a Parquet file and reading it take memory by its true length, whatever its numbers claim.
#[test]
fn a_parquet_file_cannot_claim_memory() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.parquet");
    for name in ["snappy", "none", "gzip", "zstd", "version-2"] {
        let good = std::fs::read(format!("tests/fixtures/parquet.{name}.parquet")).unwrap();
        let mut bytes = good.clone();
        for place in (0..good.len()).step_by(3) {
            // Numbers of seven bits a byte, the largest that fit, and of four bytes.
            let claim: &[u8] = if place % 2 == 0 { &[0xFE, 0xFF, 0xFF, 0xFF, 0x0F] } else { &[0xFF, 0xFF, 0xFF, 0x7F] };
            let end = good.len().min(place + claim.len());
            bytes[place..end].copy_from_slice(&claim[..end - place]);
            std::fs::write(&path, &bytes).unwrap();
            let (_, peak) = peak_of(|| {
                let data = open_whole(&path, &OpenOptions::default())?.dataset;
                (0..data.len()).for_each(|index| drop(data.locality().unwrap().read_file(index, &mut Vec::new())));
                Ok::<(), DataError>(())
            });
            assert!(peak < 16 << 20, "{name}: {peak} bytes with another number at {place}");
            bytes[place..end].copy_from_slice(&good[place..end]);
        }
    }
}

/// The list of a data set's files took about 200 bytes for each of them.
#[test]
fn a_sample_takes_its_path_and_few_bytes() {
    const SAMPLES: usize = 5000;
    let root = tempfile::tempdir().unwrap();
    for number in 0..SAMPLES {
        let class = root.path().join(format!("n{:08}", number % 10));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("n{:08}_{number:05}.JPEG", number % 10)), b"").unwrap();
    }
    let path = "n00000001/n00000001_00000.JPEG".len();
    let (data, held) = held_after(|| open(root.path(), &OpenOptions::default()).unwrap());
    let each = held as usize / SAMPLES;
    assert_eq!(data.train.len() + data.validation.len(), SAMPLES);
    assert!(each < path + 16, "{each} bytes for a path of {path}");
    // An epoch adds nothing that stays.
    let order = TrainOrder::new(0, SAMPLES, 100).unwrap();
    let ((), held) = held_after(|| (0..20).for_each(|epoch| drop(order.epoch(epoch))));
    assert_eq!(held, 0);
}
