//! MNIST and Fashion-MNIST: images and labels in idx files, plain or gzip-compressed.
//!
//! The format is described at the end of <http://yann.lecun.com/exdb/mnist/>: two zero bytes, the element type (8:
//! bytes), the number of dimensions, each dimension as a big-endian 32-bit number, then the elements.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use enmasse_data::DataError;
use enmasse_system::files::append_limited;
use flate2::read::MultiGzDecoder;

use crate::DataKind;
use crate::packed::{MAX_BYTES, Packed, Records, append_file};

const EDGE: usize = 28;

/// Images and labels of the training part, then of the test part.
pub(crate) const FILES: [&str; 4] =
    ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

/// The first labels of Fashion-MNIST's training part. They tell it from MNIST, which uses the same file names.
const FASHION_BEGINS: [u8; 16] = [9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9];

const CLOTHES: [&str; 10] =
    ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"];

/// The possible names of the file `name`: some programs that extract archives write a dot instead of the second dash.
pub(crate) fn spellings(name: &str) -> Vec<String> {
    let dotted = name.replace("-idx", ".idx");
    vec![name.to_owned(), format!("{name}.gz"), dotted.clone(), format!("{dotted}.gz")]
}

/// Reads both parts from the files of [`FILES`]. `kind` follows from the folder's name; without a telling name (MNIST)
/// the labels decide.
pub(crate) fn read(paths: &[PathBuf], kind: DataKind) -> Result<(DataKind, Packed, Packed), DataError> {
    let [train_images, train_labels, test_images, test_labels] = paths else {
        return Err(DataError::Setting(format!("{} idx files instead of {}", paths.len(), FILES.len())));
    };
    let labels = Idx::read(train_labels, 1)?;
    let begins = labels.elements().starts_with(&FASHION_BEGINS);
    let kind = if begins { DataKind::FashionMnist } else { kind };
    let classes = match kind {
        DataKind::FashionMnist => CLOTHES.map(str::to_owned).to_vec(),
        DataKind::Mnist => (0..10).map(|digit| digit.to_string()).collect(),
        other => return Err(DataError::Setting(format!("{} does not come in idx files", other.name()))),
    };
    let train = part(train_images, train_labels, labels, &classes)?;
    Ok((kind, train, part(test_images, test_labels, Idx::read(test_labels, 1)?, &classes)?))
}

fn part(path: &Path, labels_path: &Path, labels: Idx, classes: &[String]) -> Result<Packed, DataError> {
    let images = Idx::read(path, 3)?;
    let [count, height, width] = images.dimensions[..] else {
        return Err(DataError::layout(path, "it holds no images"));
    };
    if (height, width) != (EDGE, EDGE) {
        let problem = format!("its images are {width}x{height}, not {EDGE}x{EDGE}");
        return Err(DataError::layout(path, problem));
    }
    let labels = labels.into_elements();
    if labels.len() != count {
        let problem = format!("it holds {} labels, but there are {count} images in {}", labels.len(), path.display());
        return Err(DataError::layout(labels_path, problem));
    }
    if let Some(index) = labels.iter().position(|&label| usize::from(label) >= classes.len()) {
        let label = labels[index];
        let classes = classes.len();
        let problem =
            format!("label {index} (from 0) is {label}, but there are {classes} classes: the file is damaged");
        return Err(DataError::layout(labels_path, problem));
    }
    let records = Records { edge: EDGE, planes: 1, first: images.first, stride: EDGE * EDGE };
    Packed::new(images.bytes, records, labels, classes.to_vec(), vec![(path.to_owned(), count)])
}

/// A file's bytes; the elements begin at `first`.
struct Idx {
    bytes: Vec<u8>,
    first: usize,
    dimensions: Vec<usize>,
}

impl Idx {
    /// Reads a file with the given number of dimensions, and checks that it is complete.
    fn read(path: &Path, dimensions: usize) -> Result<Self, DataError> {
        let bytes = plain_bytes(path)?;
        let fail = |problem: String| Err(DataError::layout(path, problem));
        let expected = [0, 0, 8, dimensions as u8];
        let first = 4 + 4 * dimensions;
        let header = match bytes.get(..first) {
            Some(header) if header.starts_with(&expected) => &header[4..],
            _ => {
                let found: Vec<String> = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
                let expected = expected.map(|byte| format!("{byte:02x}")).join(" ");
                return fail(format!("not an idx file: it begins with [{}], not [{expected}]", found.join(" ")));
            }
        };
        let (words, _) = header.as_chunks::<4>();
        let dimensions: Vec<usize> = words.iter().map(|word| u32::from_be_bytes(*word) as usize).collect();
        let elements = dimensions.iter().try_fold(1usize, |product, &dimension| product.checked_mul(dimension));
        if elements != Some(bytes.len() - first) {
            let claimed = dimensions.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
            return fail(format!("damaged: its header says {claimed} bytes, but {} follow", bytes.len() - first));
        }
        Ok(Idx { bytes, first, dimensions })
    }

    fn elements(&self) -> &[u8] {
        &self.bytes[self.first..]
    }

    /// The elements in the memory of the whole file.
    fn into_elements(mut self) -> Vec<u8> {
        self.bytes.drain(..self.first);
        self.bytes
    }
}

/// A file's bytes, decompressed if necessary: the content decides, not the name.
fn plain_bytes(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    append_file(path, &mut bytes)?;
    if !bytes.starts_with(&[0x1F, 0x8B]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    match append_limited(MultiGzDecoder::new(bytes.as_slice()), MAX_BYTES, &mut plain) {
        Ok(_) => Ok(plain),
        Err(source) if source.kind() == ErrorKind::OutOfMemory => Err(DataError::read(path, source)),
        Err(error) => Err(DataError::layout(path, format!("damaged: it cannot be decompressed to its end ({error})"))),
    }
}
