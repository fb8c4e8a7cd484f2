//! Packs an opened data set into one file: what becomes of each image, and the order of the work.
//!
//! The threads that make images for a new file do not change it: the images are written in order.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{BadSample, DataError, Dataset, DecodePool};
use enmasse_image::decode::{self, ReadOptions};
use enmasse_image::{CropBox, EvalTransform, Image, ImageRegion, RegionRequest, Resizer};
use enmasse_system::files::{Space, folder_of, write_whole};
use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};

use super::header::{Images, MAX_EDGE, Metadata};
use super::write::Writer;
use super::{MAX_NAME, PARTS};
use crate::reading::spread;
use crate::{DataKind, TaskKind};

/// What the records of a packed file hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PackForm {
    /// Image files. Those of the data set are decoded once as a check, and kept byte for byte.
    Files {
        /// Images whose shorter side is longer are resized to this length and stored as JPEG files.
        resize: Option<usize>,
        /// The quality of these JPEG files, from 1 to 100, and of images that are not files.
        quality: u8,
    },
    /// Pixels of squares. The shorter side is resized to this length, and the middle of the longer one kept.
    Raw {
        /// Edge of the squares, in pixels.
        size: usize,
    },
}

/// How a data set is packed.
#[derive(Clone, Debug, PartialEq)]
pub struct PackOptions {
    /// What becomes of the images.
    pub form: PackForm,
    /// How many samples that cannot be read are left out ([`skip_limit`](enmasse_data::skip_limit)). More are an error.
    pub most_skipped: usize,
}

/// The data set to pack.
#[derive(Clone)]
pub struct Unpacked {
    /// The folder that its names begin with; they are stored without it.
    pub root: PathBuf,
    /// Its kind.
    pub kind: DataKind,
    /// What a model is to predict of its images.
    pub task: TaskKind,
    /// Names of the classes by label, of all labels, or of an image's numbers.
    pub classes: Vec<String>,
    /// The training and the validation part, labelled by these classes.
    pub parts: [Arc<dyn Dataset>; 2],
    /// The test part, if there is one.
    pub test: Option<Arc<dyn Dataset>>,
}

/// What was packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Samples of the training, the validation and the test part.
    pub samples: [usize; 3],
    /// Bytes of the file.
    pub bytes: u64,
}

/// Packs all parts of `data` into the new file `path`, which appears whole or not at all.
///
/// `each` is told of every sample that is done, with its fault if it is left out.
///
/// # Errors
/// The file exists, there is less space than it needs, it cannot be written, or an option is out of range. Or a sample
/// cannot be read or stored, and is not one of those that may be left out. Nothing is written to `path` then.
pub fn pack(
    data: &Unpacked,
    options: &PackOptions,
    pool: &DecodePool,
    path: &Path,
    mut each: impl FnMut(Option<BadSample>),
) -> Result<Packed, DataError> {
    let images = images(options.form)?;
    if path.symlink_metadata().is_ok() {
        let source = io::Error::new(io::ErrorKind::AlreadyExists, "it exists: remove it, or choose another name");
        return Err(DataError::write(path, source));
    }
    require_space(path, needed_bytes(data, options.form, pool)?).map_err(|source| DataError::write(path, source))?;
    let (mut packed, mut left_out) = (Packed::default(), Vec::new());
    // The data's fault, which must pass through the writer of files.
    let mut failed = None;
    let wrote = write_whole(path, |file| {
        let mut writer = Writer::new(file, data.task, data.classes.len())?;
        for (part, dataset) in data.all_parts().enumerate() {
            let read = dataset.clone();
            let form = options.form;
            let make = move |index: usize, view: &mut ImageRegion| form.image(read.as_ref(), index, view);
            let take = |index: usize, image: Result<Vec<u8>, DataError>| {
                let skipped = match image {
                    Ok(image) => {
                        let (label, name) = data.label_and_name(dataset.as_ref(), index)?;
                        let targets = writer.add_targets(part, &dataset.targets(index));
                        targets.map_err(|problem| DataError::of_sample(dataset.as_ref(), index, problem))?;
                        writer.add(part, label, &name, &image)?;
                        None
                    }
                    Err(error) if options.most_skipped > 0 && error.is_unreadable() => {
                        let sample = BadSample::new(dataset.name(index), &error);
                        left_out.push(sample.clone());
                        if left_out.len() > options.most_skipped {
                            return Err(DataError::too_many_unreadable(left_out.iter(), options.most_skipped).into());
                        }
                        Some(sample)
                    }
                    Err(error) => return Err(error.into()),
                };
                each(skipped);
                Ok(())
            };
            let done = pool.scan(dataset, make, take).and_then(|()| match writer.samples(part) {
                0 => Err(DataError::nothing_readable(&data.root, PARTS[part]).into()),
                samples => Ok(samples),
            });
            packed.samples[part] = done.map_err(|fault| match fault {
                Fault::Io(error) => error,
                Fault::Data(error) => {
                    failed = Some(error);
                    io::ErrorKind::Other.into()
                }
            })?;
        }
        let written_by = concat!("enmasse ", env!("CARGO_PKG_VERSION")).to_owned();
        let metadata = Metadata { kind: data.kind, images, task: data.task, classes: data.classes.clone(), written_by };
        packed.bytes = writer.finish(&metadata)?;
        Ok(())
    });
    match (failed, wrote) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(error.into()),
        (None, Ok(())) => Ok(packed),
    }
}

/// What is at fault when packing fails.
enum Fault {
    Data(DataError),
    /// The file cannot be written.
    Io(io::Error),
}

impl From<DataError> for Fault {
    fn from(error: DataError) -> Self {
        Fault::Data(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Io(error)
    }
}

/// What the metadata say of the records. Fails if a number is out of range.
fn images(form: PackForm) -> Result<Images, DataError> {
    let between = |what: &str, number: usize, least: usize, most: usize| match (least..=most).contains(&number) {
        true => Ok(()),
        false => Err(DataError::Setting(format!("a {what} of {number} is out of range: {least} to {most}"))),
    };
    match form {
        PackForm::Files { resize, quality } => {
            between("quality", usize::from(quality), 1, 100)?;
            resize.map_or(Ok(()), |length| between("length", length, 1, MAX_EDGE))?;
            Ok(Images::Files)
        }
        PackForm::Raw { size } => between("size", size, 1, MAX_EDGE).map(|()| Images::Raw(size as u16)),
    }
}

impl Unpacked {
    /// The parts in the order of their numbers.
    fn all_parts(&self) -> impl Iterator<Item = &Arc<dyn Dataset>> {
        self.parts.iter().chain(&self.test)
    }

    /// A sample's label and the name under which it is stored.
    fn label_and_name(&self, dataset: &dyn Dataset, index: usize) -> Result<(u32, String), DataError> {
        let label = dataset.label(index);
        let classes = self.classes.len();
        let Some(known) = u32::try_from(label).ok().filter(|_| label < classes) else {
            let problem = format!("its label is {label}, but there are {classes} classes, from 0");
            return Err(DataError::of_sample(dataset, index, problem));
        };
        let name = dataset.name(index);
        let root = self.root.display().to_string();
        let inner =
            name.strip_prefix(&root).map(|inner| inner.trim_start_matches('/')).filter(|inner| !inner.is_empty());
        let name = inner.map(str::to_owned).unwrap_or(name);
        if name.len() > MAX_NAME {
            let problem = format!("its name has {} bytes; the limit is {MAX_NAME}", name.len());
            return Err(DataError::of_sample(dataset, index, problem));
        }
        Ok((known, name))
    }
}

impl PackForm {
    /// The image of a sample as it is stored.
    fn image(self, dataset: &dyn Dataset, index: usize, view: &mut ImageRegion) -> Result<Vec<u8>, DataError> {
        match self {
            PackForm::Raw { size } => {
                dataset.read_part(index, &RegionRequest::whole, view)?;
                let mut pixels = vec![0; size * size * 3];
                EvalTransform { resize: size, ..EvalTransform::new(size) }.fit(
                    view.image(),
                    &mut Resizer::new(),
                    &mut pixels,
                );
                Ok(pixels)
            }
            PackForm::Files { resize, quality } => file(dataset, index, view, resize, quality),
        }
    }
}

/// The file of an image: its own, or a JPEG of its pixels if it has none or is to be smaller.
fn file(
    dataset: &dyn Dataset,
    index: usize,
    view: &mut ImageRegion,
    resize: Option<usize>,
    quality: u8,
) -> Result<Vec<u8>, DataError> {
    let mut file = Vec::new();
    let is_file = dataset.locality().map_or(Ok(false), |locality| locality.read_file(index, &mut file))?;
    if is_file && resize.is_none() {
        // Whether other colours are converted is decided when the file is used.
        let any = ReadOptions { convert_rgb: true, ..ReadOptions::default() };
        decode::read_part_of(&file, || dataset.name(index), any, &RegionRequest::whole, view)?;
        return Ok(file);
    }
    dataset.read_part(index, &RegionRequest::whole, view)?;
    let image = view.image();
    let (width, height) = (image.width(), image.height());
    let problem = |problem: &dyn std::fmt::Display| DataError::image(dataset.name(index), problem);
    match resize.filter(|&length| width.min(height) > length) {
        None if is_file => Ok(file),
        None => jpeg(image, quality).map_err(|error| problem(&error)),
        Some(resize) => {
            let (width, height) = EvalTransform { resize, ..EvalTransform::new(resize) }.resized(width, height);
            let mut pixels = vec![0; width * height * 3];
            let whole = CropBox::whole(image.width(), image.height());
            Resizer::new().resize(image, whole, width, height, &mut pixels);
            let image = Image::new(width, height, pixels)?;
            jpeg(&image, quality).map_err(|error| problem(&error))
        }
    }
}

/// A JPEG file with the resolution of colours with which Pillow saves it, the half (4:2:0). All in one scan with the usual Huffman
/// tables, which the decoder has from the image before; a restart marker before each row of MCUs lets it leave out what lies
/// beside a crop.
fn jpeg(image: &Image, quality: u8) -> Result<Vec<u8>, String> {
    let side = |length: usize| u16::try_from(length).map_err(|_| format!("{length} pixels are too many for a JPEG"));
    /// Pixels along the edge of an MCU.
    const MCU: u16 = 16;
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, quality);
    encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
    encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
    let (width, height) = (side(image.width())?, side(image.height())?);
    encoder.set_restart_interval(width.div_ceil(MCU));
    let encoded = encoder.encode(image.pixels(), width, height, ColorType::Rgb);
    encoded.map_err(|error| format!("it cannot be encoded: {error}"))?;
    Ok(bytes)
}

/// The bytes of all images, as far as a few tell.
fn needed_bytes(data: &Unpacked, form: PackForm, pool: &DecodePool) -> Result<u64, DataError> {
    /// Images that are looked at in each part, evenly distributed.
    const SAMPLES: usize = 32;
    let mut needed = 0;
    for dataset in data.all_parts() {
        let read = dataset.clone();
        let lengths = pool.ask(dataset, move |view| {
            let length = |index: usize| Some(form.image(read.as_ref(), index, view).ok()?.len() as u64);
            spread(read.len(), SAMPLES).filter_map(length).collect::<Vec<u64>>()
        })?;
        needed += lengths.iter().sum::<u64>() * dataset.len() as u64 / lengths.len().max(1) as u64;
    }
    Ok(needed)
}

/// Fails if the file system of the file `path` has less than `needed` bytes for this user.
fn require_space(path: &Path, needed: u64) -> io::Result<()> {
    // A folder that does not exist is an error when the file is written.
    let Ok(free) = Space::of(folder_of(path)) else { return Ok(()) };
    if needed <= free.bytes {
        return Ok(());
    }
    let [needed, free] = [needed, free.bytes].map(|bytes| bytes.div_ceil(1 << 20));
    let problem = format!("it needs about {needed} MiB, and its disk has {free} MiB free");
    Err(io::Error::new(io::ErrorKind::StorageFull, problem))
}
