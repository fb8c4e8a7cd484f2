//! Images of one size, in memory in the format of their files.

use std::path::{Path, PathBuf};

use enmasse_data::{DataError, Dataset, Locality};
use enmasse_image::{Image, ImageRegion, RegionRequest};
use enmasse_system::files::append_regular;

/// Limit of the size of a file that is read whole, and of a decompressed file, in bytes.
pub(crate) const MAX_BYTES: u64 = 512 << 20;

/// Square images one after another. Each is a record of planes (red, green, blue; or only grey) with rows from the
/// top.
///
/// The records stay as they were read, including labels; an image's bytes are rearranged when it is read.
#[derive(Debug)]
pub(crate) struct Packed {
    bytes: Vec<u8>,
    records: Records,
    labels: Vec<u8>,
    classes: Vec<String>,
    /// The files, each with the index after its last image.
    files: Vec<(PathBuf, usize)>,
}

/// The position of the images in the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    /// Pixels per row, and number of rows.
    pub edge: usize,
    /// 3 or 1.
    pub planes: usize,
    /// Bytes before the first image.
    pub first: usize,
    /// Bytes from one image to the next.
    pub stride: usize,
}

impl Records {
    /// Bytes of an image.
    pub fn image(&self) -> usize {
        self.planes * self.edge * self.edge
    }
}

impl Packed {
    /// Images with a label each. Fails if a label is not one of the classes, or bytes are missing.
    pub fn new(
        bytes: Vec<u8>,
        records: Records,
        labels: Vec<u8>,
        classes: Vec<String>,
        files: Vec<(PathBuf, usize)>,
    ) -> Result<Self, DataError> {
        let packed = Packed { bytes, records, labels, classes, files };
        let last = packed.labels.len().checked_sub(1).map(|last| packed.pixels(last));
        if last.is_none_or(|last| last.len() != records.image()) {
            let path = packed.files.last().map(|(path, _)| path.clone()).unwrap_or_default();
            return Err(DataError::layout(path, "it holds no images, or its last one is incomplete"));
        }
        let classes = packed.classes.len();
        match packed.labels.iter().position(|&label| usize::from(label) >= classes) {
            None => Ok(packed),
            Some(index) => {
                let label = packed.labels[index];
                let (path, number) = packed.place(index);
                let problem = format!(
                    "image {number} (from 0) has the label {label}, but there are {classes} classes: the file is damaged"
                );
                Err(DataError::layout(path, problem))
            }
        }
    }

    /// The file of image `index`, and its number in that file.
    fn place(&self, index: usize) -> (&Path, usize) {
        let mut begin = 0;
        for (path, end) in &self.files {
            if index < *end {
                return (path, index - begin);
            }
            begin = *end;
        }
        (Path::new(""), index)
    }

    /// The bytes of an image's planes; empty if the file ends before it.
    fn pixels(&self, index: usize) -> &[u8] {
        let start = self.records.first + index * self.records.stride;
        self.bytes.get(start..start + self.records.image()).unwrap_or(&[])
    }

    /// The names of the classes, by label.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Makes `image` that of a sample, in the same memory.
    fn fill(&self, index: usize, image: &mut Image) -> Result<(), DataError> {
        let Records { edge, planes, .. } = self.records;
        let place = || self.place(index).0.to_owned();
        let out = image.reshape(edge, edge).map_err(|source| DataError::read(place(), source))?;
        let (out, _) = out.as_chunks_mut::<3>();
        let pixels = self.pixels(index);
        if planes == 1 {
            for (out, &grey) in out.iter_mut().zip(pixels) {
                *out = [grey; 3];
            }
        } else {
            let (red, rest) = pixels.split_at(edge * edge);
            let (green, blue) = rest.split_at(edge * edge);
            for (((out, &red), &green), &blue) in out.iter_mut().zip(red).zip(green).zip(blue) {
                *out = [red, green, blue];
            }
        }
        Ok(())
    }
}

impl Dataset for Packed {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn label(&self, index: usize) -> usize {
        usize::from(self.labels[index])
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        let mut image = Image::default();
        self.fill(index, &mut image)?;
        Ok(image)
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Packed {
    fn read_part(
        &self,
        index: usize,
        _wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        view.whole(|image| self.fill(index, image))
    }

    fn name(&self, index: usize) -> String {
        let (path, number) = self.place(index);
        format!("{}, image {number}", path.display())
    }
}

/// Appends a whole file to `bytes`; a file larger than [`MAX_BYTES`] is an error. Returns its size.
pub(crate) fn append_file(path: &Path, bytes: &mut Vec<u8>) -> Result<usize, DataError> {
    append_regular(path, MAX_BYTES, bytes).map_err(|source| DataError::read(path, source))
}
