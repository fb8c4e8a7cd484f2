//! Files that need more memory than there is: an error that names the file, where the program was aborted.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Ended, enmasse, finish, images, plain_environment};
use flate2::Compression;
use flate2::write::GzEncoder;
use jpeg_encoder::{ColorType, Encoder};

/// Enough for small files, and not for those here, in KiB.
const LIMIT: usize = 300 << 10;
/// Bytes of a file that does not fit. It has no content and takes no space on the disk.
const LARGE: u64 = 450 << 20;
/// Edge of a square image that does not fit.
const EDGE: u16 = 9216;

/// Runs the program with little memory.
fn limited<S: AsRef<str>>(arguments: &[S]) -> Ended {
    let script = format!("ulimit -v {LIMIT} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    plain_environment(&mut command);
    command.args(["-c", &script, env!("CARGO_BIN_EXE_enmasse")]).args(arguments.iter().map(AsRef::as_ref));
    finish(&mut command)
}

/// The command ends with one error, about memory for this file.
#[track_caller]
fn check(arguments: &[&str], code: i32, file: &Path) {
    let ended = limited(arguments);
    assert_eq!(ended.code, Some(code), "{ended:?}");
    let errors: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("error: ")).collect();
    let named = file.display().to_string();
    let advice = " of it; end other programs, or raise the limit of memory";
    let tells =
        |line: &&str| line.contains(&named) && line.contains("there is no memory for ") && line.contains(advice);
    assert!(errors.len() == 1 && errors.iter().all(tells), "{named}: {}", ended.stderr);
}

/// Writes the beginning of a file, and gives it its length.
fn sparse(path: &Path, begin: &[u8], length: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(begin).unwrap();
    file.set_len(length).unwrap();
}

struct Place {
    folder: tempfile::TempDir,
    data: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = images(folder.path(), 5);
        Place { folder, data }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A short run on `data`, with one thread of each kind.
    fn arguments(&self, data: &Path, others: &[&str]) -> Vec<String> {
        let data = data.display().to_string();
        let out = self.path("run").display().to_string();
        let fixed = ["train", &data, "--out", &out, "--model", "mlp", "--size", "8", "--epochs", "1", "--batch", "2"];
        let threads = ["--devices", "cpu:1", "--threads", "1", "--loader-threads", "1"];
        [&fixed[..], &threads, others].concat().into_iter().map(str::to_owned).collect()
    }

    #[track_caller]
    fn check_train(&self, data: &Path, others: &[&str], code: i32, file: &Path) {
        let arguments = self.arguments(data, others);
        check(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), code, file);
    }
}

/// A small JPEG whose header claims a large image, as long as such a file must be.
fn large_jpeg(progressive: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 90);
    encoder.set_progressive(progressive);
    encoder.encode(&[7; 16 * 16 * 3], 16, 16, ColorType::Rgb).unwrap();
    let marker = [0xFF, if progressive { 0xC2 } else { 0xC0 }];
    let frame = bytes.windows(2).position(|pair| pair == marker).unwrap();
    let [high, low] = EDGE.to_be_bytes();
    bytes.splice(frame + 5..frame + 9, [high, low, high, low]);
    bytes.resize(usize::from(EDGE) * usize::from(EDGE) / 500, 0);
    bytes
}

/// A PNG of one colour.
fn large_png() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, EDGE.into(), EDGE.into());
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    let mut stream = writer.stream_writer().unwrap();
    let row = vec![0; usize::from(EDGE) * 3];
    (0..EDGE).for_each(|_| stream.write_all(&row).unwrap());
    stream.finish().unwrap();
    writer.finish().unwrap();
    bytes
}

#[test]
fn images_that_do_not_fit() {
    let place = Place::new();
    // The limit itself is no hindrance, and the run serves for predictions.
    limited(&place.arguments(&place.data, &[])).well();
    let run = place.path("run").display().to_string();
    let predict = |image: &Path| {
        let image_name = image.display().to_string();
        check(&["predict", &run, &image_name, "--threads", "1", "--loader-threads", "1"], 1, image);
    };
    // Of a single scan only the crop is in memory. That of a prediction is nearly all of the image.
    let image = place.path("baseline.jpg");
    fs::write(&image, large_jpeg(false)).unwrap();
    predict(&image);
    for (name, bytes) in [("progressive.jpg", large_jpeg(true)), ("large.png", large_png())] {
        let image = place.data.join("red").join(name);
        fs::write(&image, bytes).unwrap();
        // Lack of memory is no fault of the image, which is not skipped for it.
        for policy in ["error", "skip"] {
            let out = place.path(&format!("{name}-{policy}")).display().to_string();
            place.check_train(&place.data, &["--out", &out, "--batch", "13", "--on-bad-sample", policy], 1, &image);
        }
        predict(&image);
        fs::remove_file(&image).unwrap();
    }
    let image = place.data.join("red/file.jpg");
    sparse(&image, &[0xFF, 0xD8], LARGE);
    place.check_train(&place.data, &["--out", &place.path("file").display().to_string(), "--batch", "13"], 1, &image);
}

#[test]
fn data_sets_that_do_not_fit() {
    let place = Place::new();
    let folder = |name: &str, files: &[(&str, &[u8], u64)]| {
        let folder = place.path(name);
        fs::create_dir(&folder).unwrap();
        for (file, begin, length) in files {
            sparse(&folder.join(file), begin, *length);
        }
        folder
    };
    let names = b"a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n";
    let record = 3073;
    let mut files = vec![("batches.meta.txt", &names[..], 20), ("data_batch_1.bin", &[], LARGE / record * record)];
    files.extend(
        ["data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"]
            .map(|name| (name, &[][..], record)),
    );
    let cifar = folder("cifar", &files);
    place.check_train(&cifar, &[], 1, &cifar.join("data_batch_1.bin"));

    let python = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"];
    let mut files: Vec<(&str, &[u8], u64)> = python.map(|name| (name, &[0x80u8, 2][..], 1000)).into();
    // A file that fits, and whose parsed content does not.
    files.push(("batches.meta", &[0x80, 2], 140 << 20));
    let cifar = folder("cifar-python", &files);
    place.check_train(&cifar, &[], 1, &cifar.join("batches.meta"));

    let labels: &[u8] = &[0, 0, 8, 1, 0, 0, 0, 1, 3];
    let parts = [
        ("train-labels-idx1-ubyte", labels, 9),
        ("t10k-labels-idx1-ubyte", labels, 9),
        ("train-images-idx3-ubyte", &[0, 0, 8, 3], LARGE),
        ("t10k-images-idx3-ubyte", &[0, 0, 8, 3], 800),
    ];
    let mnist = folder("mnist", &parts);
    place.check_train(&mnist, &[], 1, &mnist.join("train-images-idx3-ubyte"));

    // The same compressed: a MiB after another.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&vec![0; 1 << 20]).unwrap();
    let compressed = encoder.finish().unwrap().repeat((LARGE >> 20) as usize);
    fs::remove_file(mnist.join("train-images-idx3-ubyte")).unwrap();
    let images = mnist.join("train-images-idx3-ubyte.gz");
    fs::write(&images, compressed).unwrap();
    place.check_train(&mnist, &[], 1, &images);
}

#[test]
fn weights_and_texts_that_do_not_fit() {
    let place = Place::new();
    let values = LARGE / 4;
    let header = format!(r#"{{"w":{{"dtype":"F32","shape":[{values}],"data_offsets":[0,{}]}}}}"#, values * 4);
    let begin = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let safetensors = place.path("w.safetensors");
    sparse(&safetensors, &begin, begin.len() as u64 + values * 4);

    // A legacy file of one tensor.
    let count = (values as i32).to_le_bytes();
    let tensor =
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ";
    let object = [&b"}X\x01\0\0\0w"[..], tensor, &count, b"NtQK\0(J", &count, b"t(K\x01t\x89NtRs"].concat();
    let head = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.}.\x80\x02";
    let begin = [&head[..], &object, b".](X\x01\0\0\x000e.", &values.to_le_bytes()].concat();
    let pth = place.path("w.pth");
    sparse(&pth, &begin, begin.len() as u64 + values * 4);

    for file in [&safetensors, &pth] {
        let name = file.display().to_string();
        place.check_train(&place.data, &["--weights", &name], 1, file);
        let image = place.data.join("red/000.jpg").display().to_string();
        let words = ["predict", &name, &image, "--model", "mlp", "--size", "8", "--threads", "1"];
        check(&words, 1, file);
        // With memory they are read, and are of another model.
        let ended = enmasse(&words);
        assert!(ended.code == Some(1) && !ended.stderr.contains("memory"), "{ended:?}");
    }

    let config = place.path("large.toml");
    sparse(&config, b"", LARGE);
    place.check_train(&place.data, &["--config", &config.display().to_string()], 2, &config);
}
