//! A data set in one file: its parts, the names of classes and samples, and the images.
//! `docs/packed-file.md` describes it byte by byte.
//!
//! Opening reads the header, the metadata, the labels and what else is to be predicted, and checks
//! their hashes; 4 bytes a sample stay in memory, and of labels or numbers 4 bytes each. It reads neither the index nor a record. A record is found by two offsets of the
//! index, which are read when they are needed. Its hash covers its part, number and label too, so
//! the index needs no hash. A record is checked against it the first time that a process reads it.
//! Of raw images, later reads take only the rows that a crop needs.

mod header;
mod pack;
mod record;
mod targets;
mod write;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use enmasse_data::{DataError, Dataset, Extent, Locality};
use enmasse_image::decode::{self, MAX_FILE_BYTES, ReadOptions};
use enmasse_image::{CropBox, Image, ImageRegion, RegionRequest};
use enmasse_system::files::open_regular;

use crate::reading::{read_whole, reading_bytes};
use crate::storage::Container;
use crate::targets::Targets;
use crate::{DataLayout, OpenData, TaskKind};
use header::{Header, Images, LABEL, MAGIC, Metadata, OFFSET};
use record::{HEAD, RecordLocation};

pub use pack::{PackForm, PackOptions, Packed, Unpacked, pack};

/// Limit of a name's bytes.
const MAX_NAME: usize = 1 << 16;
/// Limit of a record's bytes: its head, an image, a name.
const MAX_RECORD: usize = HEAD + MAX_FILE_BYTES as usize + MAX_NAME + 8;

/// Whether a file begins as packed files of any version do.
pub(crate) fn has_magic(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    open_regular(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == MAGIC
}

/// Opens a packed file. Its image files are read as `reading` says.
pub(crate) fn open(container: Container, reading: ReadOptions) -> Result<OpenData, DataError> {
    let path = container.path().to_owned();
    let fault = |problem: String| DataError::layout(&path, problem);
    let mut bytes = [0; header::BYTES];
    container.fill(0, &mut bytes)?;
    let header = Header::parse(&bytes, container.length()).map_err(fault)?;
    let metadata = hashed(&container, header.metadata, &header.metadata_hash, "metadata")?;
    let metadata = Metadata::parse(&metadata, header.version).map_err(fault)?;
    let lists = |part: usize| {
        let own = &header.parts[part];
        let labels = hashed(&container, (own.labels, own.samples * LABEL as u64), &own.labels_hash, "list of labels")?;
        let largest = labels.as_chunks().0.iter().map(|label| u32::from_le_bytes(*label)).max();
        match largest {
            None => return Err(fault(format!("it has no images for {}", PARTS[part]))),
            Some(label) if label as usize >= metadata.classes.len() => {
                let classes = metadata.classes.len();
                return Err(fault(format!("it has the label {label}, but there are {classes} classes, from 0")));
            }
            Some(_) => {}
        }
        let own_targets = match metadata.task {
            TaskKind::Classification => None,
            TaskKind::MultiLabel | TaskKind::Regression => {
                let bytes = hashed(&container, own.targets, &own.targets_hash, "list of labels or numbers")?;
                targets::parse(metadata.task, metadata.classes.len(), own.samples as usize, &bytes).map_err(fault)?
            }
        };
        let checked = (0..own.samples.div_ceil(64)).map(|_| AtomicU64::default()).collect();
        Ok((labels, own_targets, checked))
    };
    let (train, validation) = (lists(TRAINING)?, lists(VALIDATION)?);
    let test = if header.parts[TEST].samples > 0 { Some(lists(TEST)?) } else { None };
    let file = Arc::new(File { container, header, metadata, reading });
    let open = |part: usize, (labels, targets, checked)| -> Arc<dyn Dataset> {
        Arc::new(Part { file: file.clone(), part, labels, targets, checked })
    };
    let train = open(TRAINING, train);
    let validation = open(VALIDATION, validation);
    let test = test.map(|test| open(TEST, test));
    Ok(OpenData {
        kind: file.metadata.kind,
        task: file.metadata.task,
        layout: DataLayout::PackedFile,
        folder: path,
        classes: file.metadata.classes.clone(),
        train,
        validation,
        test,
        has_parts: true,
        split: None,
        warnings: Vec::new(),
    })
}

/// Reads a part of the file that has a hash.
fn hashed(
    container: &Container,
    (offset, length): (u64, u64),
    hash: &header::Hash,
    what: &str,
) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    // The header's numbers lie in the file.
    container.read(offset, length as usize, &mut bytes)?;
    if blake3::hash(&bytes).as_bytes() != hash {
        let problem = format!("its {what} is damaged: copy it again, or pack the data again");
        return Err(DataError::layout(container.path(), problem));
    }
    Ok(bytes)
}

/// The names of the parts in messages.
const PARTS: [&str; header::PARTS] = ["training", "validation", "test"];
/// The numbers of the parts. A file may lack that for tests.
const TRAINING: usize = 0;
const VALIDATION: usize = 1;
const TEST: usize = 2;

/// What all parts share.
struct File {
    container: Container,
    header: Header,
    metadata: Metadata,
    reading: ReadOptions,
}

/// A part of a packed file.
struct Part {
    file: Arc<File>,
    /// Its number in the header.
    part: usize,
    /// [`LABEL`] bytes each.
    labels: Vec<u8>,
    /// `None` if each image has one class.
    targets: Option<Targets>,
    /// A bit for each record that was found whole.
    checked: Vec<AtomicU64>,
}

impl Part {
    /// Offset and length of a record, from the index.
    fn place(&self, index: usize) -> Result<(u64, usize), DataError> {
        let mut offsets = [0; 2 * OFFSET];
        self.file.container.fill(self.file.header.parts[self.part].index + (index * OFFSET) as u64, &mut offsets)?;
        let offset = |at: usize| u64::from_le_bytes(offsets.as_chunks().0[at]);
        let (begin, end) = (offset(0), offset(1));
        let length = end.checked_sub(begin).filter(|length| (HEAD as u64..=MAX_RECORD as u64).contains(length));
        match length.filter(|_| end <= self.file.header.length) {
            Some(length) => Ok((begin, length as usize)),
            None => Err(self.damaged(index)),
        }
    }

    /// Reads a record, and calls `then` with its image.
    fn with_image<T>(
        &self,
        index: usize,
        bytes: &mut Vec<u8>,
        then: impl FnOnce(&[u8]) -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        let (offset, length) = self.place(index)?;
        self.file.container.read(offset, length, bytes)?;
        if !self.is_checked(index) {
            if !record::is_whole(RecordLocation { part: self.part, index, label: self.label(index) }, bytes) {
                return Err(self.damaged(index));
            }
            self.checked[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        }
        let (image, _) = record::content(bytes).ok_or_else(|| self.damaged(index))?;
        then(image)
    }

    fn is_checked(&self, index: usize) -> bool {
        self.checked[index / 64].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }

    /// Reads the rows of an image that are wanted. Columns beside the part come with them.
    fn read_rows(
        &self,
        index: usize,
        edge: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        let RegionRequest { part, .. } = wanted(edge, edge);
        let part = if part.fits(edge, edge) { part } else { CropBox::whole(edge, edge) };
        let rows = part.top * edge * 3..(part.top + part.height) * edge * 3;
        let (offset, length) = self.place(index)?;
        // Before memory is taken for the pixels.
        if length < HEAD + edge * edge * 3 {
            return Err(self.damaged(index));
        }
        view.with_file(|bytes, view| {
            let failed = |source| DataError::read(self.file.container.path(), source);
            let pixels = view.show_rows((edge, edge), part.top..part.top + part.height).map_err(failed)?;
            if self.is_checked(index) {
                // No more than these rows, and at once to where they are needed.
                return self.file.container.fill(offset + (HEAD + rows.start) as u64, pixels);
            }
            self.with_image(index, bytes, |image| {
                let rows = image.get(rows).filter(|_| image.len() == edge * edge * 3);
                pixels.copy_from_slice(rows.ok_or_else(|| self.damaged(index))?);
                Ok(())
            })
        })
    }

    /// The sample's own name.
    fn own_name(&self, index: usize) -> Option<String> {
        let (offset, length) = self.place(index).ok()?;
        let mut head = [0; HEAD];
        self.file.container.fill(offset, &mut head).ok()?;
        let (image, name) = record::lengths(&head)?;
        let end = HEAD.checked_add(image)?.checked_add(name)?;
        if end > length || name > MAX_NAME {
            return None;
        }
        let mut bytes = Vec::new();
        self.file.container.read(offset + (HEAD + image) as u64, name, &mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn damaged(&self, index: usize) -> DataError {
        let name = format!("{}, {} sample {index}", self.file.container.path().display(), PARTS[self.part]);
        DataError::image(name, "its record is damaged: copy the file again, or pack the data again")
    }
}

impl Dataset for Part {
    fn len(&self) -> usize {
        self.labels.len() / LABEL
    }

    fn label(&self, index: usize) -> usize {
        u32::from_le_bytes(self.labels.as_chunks().0[index]) as usize
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        read_whole(self, index)
    }

    fn targets(&self, index: usize) -> Vec<f32> {
        self.targets.as_ref().map(|targets| targets.vector(index)).unwrap_or_default()
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Part {
    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        match self.file.metadata.images {
            Images::Raw(edge) => self.read_rows(index, usize::from(edge), wanted, view),
            Images::Files => view.with_file(|bytes, view| {
                self.with_image(index, bytes, |image| {
                    Ok(decode::read_part_of(image, || self.name(index), self.file.reading, wanted, view)?)
                })
            }),
        }
    }

    fn read_file(&self, index: usize, bytes: &mut Vec<u8>) -> Result<bool, DataError> {
        match self.file.metadata.images {
            Images::Raw(_) => Ok(false),
            Images::Files => {
                let length = self.with_image(index, bytes, |image| Ok(image.len()))?;
                bytes.truncate(HEAD + length);
                bytes.drain(..HEAD);
                Ok(true)
            }
        }
    }

    fn name(&self, index: usize) -> String {
        let file = self.file.container.path().display();
        match self.own_name(index) {
            Some(name) => format!("{file}/{name}"),
            None => format!("{file}, {} sample {index}", PARTS[self.part]),
        }
    }

    fn is_remote(&self) -> bool {
        self.file.container.is_remote()
    }

    fn extent(&self, index: usize) -> Option<Extent> {
        let (offset, length) = self.place(index).ok()?;
        self.file.container.extent(offset..offset + length as u64)
    }

    fn fingerprint(&self) -> Option<String> {
        let own = &self.file.header.parts[self.part];
        let mut hash = [own.labels_hash, own.records_hash].concat();
        if self.targets.is_some() {
            hash.extend(own.targets_hash);
        }
        Some(blake3::hash(&hash).to_hex().to_string())
    }

    fn reading_bytes(&self) -> usize {
        match self.file.metadata.images {
            // A record and its rows.
            Images::Raw(edge) => 2 * usize::from(edge).pow(2) * 3,
            Images::Files => reading_bytes(self, |index| Some(self.place(index).ok()?.1)),
        }
    }
}
