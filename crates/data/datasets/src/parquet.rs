//! Images in Parquet files, as Hugging Face writes data sets: a column of images' bytes and one of
//! labels, in groups of rows.
//!
//! Opening reads the end of each file and its column of labels; 8 bytes a sample stay in memory.
//! The pages of a group of rows are found by their heads when its first image is read. An image's
//! page, which holds those of many rows, is read when the first of them is needed, and kept for the
//! others. What is kept is a part of the stated memory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use enmasse_data::{DataError, Dataset, Extent, Locality};
use enmasse_image::decode::{self, MAX_FILE_BYTES, ReadOptions};
use enmasse_image::{Image, ImageRegion, RegionRequest};
use enmasse_parquet::{Chunk, Column, Page, PageCache, PageLocation, Pages, ParquetError, ReadAt, RowGroup};

use crate::Container;
use crate::reading::{read_whole, reading_bytes};
use crate::split::Divide;
use crate::storage::OpenFiles;
use crate::storage::Storage;
use crate::targets::Targets;

/// Limit of the pages that are kept, in bytes.
const KEPT: usize = 384 << 20;
/// Bytes of neighbouring images that are read together ([`Locality::blocks`]): a few blocks fit into what is kept.
const BLOCK: u64 = 16 << 20;

/// Images in Parquet files, or a part of them. A sample takes 8 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Parquet {
    files: Arc<Files>,
    classes: Vec<String>,
    /// The number of each sample among the rows of all files.
    rows: Arc<Vec<u32>>,
    /// Parallel to `rows`.
    labels: Arc<Vec<u32>>,
    /// What is known of each sample, unless that is its class. Parallel to `rows`.
    targets: Option<Arc<Targets>>,
    options: ReadOptions,
}

/// What all parts share.
#[derive(Debug)]
struct Files {
    open: OpenFiles,
    groups: Vec<Group>,
    cache: PageCache,
}

/// A group of rows.
#[derive(Debug)]
struct Group {
    /// The file, and the first row's number in it.
    file: u32,
    first_in_file: u32,
    /// The first row's number among the rows of all files.
    first: u32,
    rows: u32,
    images: Chunk,
    /// The column of images, which may be another one in another file.
    column: Arc<Column>,
    /// Found when the first image is read.
    pages: OnceLock<Arc<Pages>>,
}

impl ReadAt for Container {
    type Error = DataError;

    fn length(&self) -> u64 {
        Container::length(self)
    }

    fn read_at(&self, offset: u64, length: usize, bytes: &mut Vec<u8>) -> Result<(), DataError> {
        self.read(offset, length, bytes)
    }
}

/// The error of a whole file.
pub(crate) fn of_file(error: ParquetError<DataError>, path: &Path) -> DataError {
    match error {
        ParquetError::Damaged(problem) => DataError::layout(path, problem),
        ParquetError::Memory(source) => DataError::read(path, source),
        ParquetError::Read(error) => error,
    }
}

/// Collects the files of a data set.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    paths: Vec<PathBuf>,
    groups: Vec<Group>,
    rows: u32,
}

impl Builder {
    /// Adds a file with its groups of rows, whose first chunk is that of the images, and returns the number of its first row. Fails with more than 2³² rows.
    pub fn add<const N: usize>(
        &mut self,
        path: PathBuf,
        column: Column,
        groups: &[RowGroup<N>],
    ) -> Result<u32, DataError> {
        let file = self.paths.len() as u32;
        let column = Arc::new(column);
        let first = self.rows;
        for group in groups {
            self.groups.push(Group {
                file,
                first_in_file: self.rows - first,
                first: self.rows,
                rows: group.rows,
                images: group.chunks[0],
                column: column.clone(),
                pages: OnceLock::new(),
            });
            let too_many =
                || DataError::layout(&path, format!("it and those before it have more than {} rows", u32::MAX));
            self.rows = self.rows.checked_add(group.rows).ok_or_else(too_many)?;
        }
        self.paths.push(path);
        Ok(first)
    }

    /// The samples in some of the rows, of each part: the number of each among all rows, its label, and what is known of it instead.
    pub fn finish<const PARTS: usize>(
        self,
        storage: &Storage,
        classes: &[String],
        parts: [(Vec<u32>, Vec<u32>, Option<Targets>); PARTS],
    ) -> [Parquet; PARTS] {
        let open = OpenFiles::new(storage.clone(), self.paths);
        let files = Arc::new(Files { open, groups: self.groups, cache: PageCache::new(KEPT) });
        parts.map(|(mut rows, mut labels, targets)| {
            rows.shrink_to_fit();
            labels.shrink_to_fit();
            Parquet {
                files: files.clone(),
                classes: classes.to_vec(),
                rows: Arc::new(rows),
                labels: Arc::new(labels),
                targets: targets.map(|targets| Arc::new(targets.shrink())),
                options: ReadOptions::default(),
            }
        })
    }
}

impl Files {
    /// The group of a row, with its number.
    fn group(&self, row: u32) -> (u32, &Group) {
        let number = self.groups.partition_point(|group| group.first <= row).saturating_sub(1);
        (number as u32, &self.groups[number])
    }

    /// The page that has a row, and the row's place in it.
    fn page(&self, row: u32) -> Result<(Arc<Page>, usize), ParquetError<DataError>> {
        let (number, group) = self.group(row);
        let container = self.open.get(group.file as usize).map_err(ParquetError::Read)?;
        let pages = self.pages(group, &container)?;
        let row = row - group.first;
        let place = pages.page_of(row);
        let page = self.cache.get((number, place as u32), || {
            let read = |page: &PageLocation, dictionary: Option<&Page>| {
                page.read(&*container, group.images, &group.column, dictionary)
            };
            let dictionary = match &pages.dictionary {
                Some(page) => Some(self.cache.get((number, u32::MAX), || read(page, None))?),
                None => None,
            };
            read(&pages.data[place], dictionary.as_deref())
        })?;
        Ok((page, (row - pages.data[place].first) as usize))
    }

    fn pages(&self, group: &Group, container: &Container) -> Result<Arc<Pages>, ParquetError<DataError>> {
        if let Some(pages) = group.pages.get() {
            return Ok(pages.clone());
        }
        // Two threads may look for them; both find the same.
        let found = Arc::new(Pages::find(container, group.images, group.rows)?);
        Ok(group.pages.get_or_init(|| found).clone())
    }
}

impl Parquet {
    /// Calls `then` with the bytes of an image.
    fn with_image<T>(&self, index: usize, then: impl FnOnce(&[u8]) -> Result<T, DataError>) -> Result<T, DataError> {
        let refused = |problem: &str| DataError::image(self.name(index), problem);
        let file = self.files.group(self.rows[index]).1.file as usize;
        let (page, place) = self.files.page(self.rows[index]).map_err(|problem| match problem {
            ParquetError::Damaged(fault) => refused(&fault),
            ParquetError::Memory(source) => DataError::read(self.files.open.path(file), source),
            ParquetError::Read(error) => error,
        })?;
        let bytes = page.value(place).ok_or_else(|| refused("the row has no image's bytes"))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(refused(&format!("it has more than {MAX_FILE_BYTES} bytes")));
        }
        then(bytes)
    }

    /// Mean bytes of an image in its group.
    fn mean_bytes(group: &Group) -> u64 {
        group.images.unpacked / u64::from(group.rows.max(1))
    }
}

impl Divide for Parquet {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn part(&self, keep: impl Fn(usize) -> bool) -> Self {
        let of = |all: &[u32]| {
            let kept = all.iter().enumerate().filter(|&(index, _)| keep(index)).map(|(_, &number)| number);
            Arc::new(kept.collect::<Vec<u32>>())
        };
        let targets = self.targets.as_ref().map(|targets| Arc::new(targets.part(&keep)));
        Parquet { rows: of(&self.rows), labels: of(&self.labels), targets, ..self.clone() }
    }

    fn own_targets(&self) -> Option<&Targets> {
        self.targets.as_deref()
    }

    fn read_with(self, options: ReadOptions) -> Self {
        Parquet { options, ..self }
    }
}

impl Dataset for Parquet {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn label(&self, index: usize) -> usize {
        self.labels[index] as usize
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

impl Locality for Parquet {
    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        self.with_image(index, |bytes| {
            Ok(decode::read_part_of(bytes, || self.name(index), self.options, wanted, view)?)
        })
    }

    fn read_file(&self, index: usize, bytes: &mut Vec<u8>) -> Result<bool, DataError> {
        self.with_image(index, |image| {
            bytes.clear();
            bytes.extend_from_slice(image);
            Ok(true)
        })
    }

    /// `train-00000-of-00005.parquet/17` for the row 17, counted from 0, with the file's path.
    fn name(&self, index: usize) -> String {
        let row = self.rows[index];
        let (_, group) = self.files.group(row);
        let file = self.files.open.path(group.file as usize);
        format!("{}/{}", file.display(), row - group.first + group.first_in_file)
    }

    fn is_remote(&self) -> bool {
        self.files.open.is_remote()
    }

    /// The page, or all of the group as long as nobody knows where its pages lie.
    fn extent(&self, index: usize) -> Option<Extent> {
        let row = self.rows[index];
        let (_, group) = self.files.group(row);
        let Chunk { offset, length, .. } = group.images;
        let bytes = match group.pages.get() {
            Some(pages) => pages.data[pages.page_of(row - group.first)].bytes(),
            None => offset..offset + length,
        };
        self.files.open.get(group.file as usize).ok()?.extent(bytes)
    }

    fn blocks(&self) -> Option<Vec<usize>> {
        let block_of = |&row: &u32| {
            let (number, group) = self.files.group(row);
            let rows = (BLOCK / Self::mean_bytes(group).max(1)).max(1);
            (number, u64::from(row - group.first) / rows)
        };
        Some(self.rows.chunk_by(|one, next| block_of(one) == block_of(next)).map(<[u32]>::len).collect())
    }

    fn prefers_blocks(&self) -> bool {
        true
    }

    fn reading_bytes(&self) -> usize {
        let image = reading_bytes(self, |index| Some(Self::mean_bytes(self.files.group(self.rows[index]).1) as usize));
        // Of the groups whose images were just read.
        let pages = self.files.groups.iter().filter_map(|group| group.pages.get());
        image + pages.map(|pages| pages.reading_bytes()).max().unwrap_or(0)
    }

    fn kept_bytes(&self) -> usize {
        let all = self.files.groups.iter().map(|group| group.images.unpacked).fold(0, u64::saturating_add);
        usize::try_from(all).map_or(KEPT, |all| all.min(KEPT))
    }

    fn fingerprint(&self) -> Option<String> {
        self.files.open.fingerprint(self)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn errors_of_pages_name_the_file() {
        let check = |error: ParquetError<DataError>, expected: &str, is_unreadable: bool| {
            let error = of_file(error, Path::new("a.parquet"));
            assert_eq!((error.to_string().as_str(), error.is_unreadable()), (expected, is_unreadable));
        };
        let memory = io::Error::new(io::ErrorKind::OutOfMemory, "there is no memory for 5 bytes");
        // Lack of memory is no fault of a sample, so it always ends the run.
        check(ParquetError::Memory(memory), "cannot read a.parquet: there is no memory for 5 bytes", false);
        check(ParquetError::from("two groups"), "a.parquet: two groups", false);
        let image = || DataError::image("row 3", "damaged");
        check(ParquetError::Read(image()), &image().to_string(), true);
    }
}
