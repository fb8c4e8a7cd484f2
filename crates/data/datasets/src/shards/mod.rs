//! Images in tar archives, as WebDataset writes them: members with one key are a sample, an image and its label.
//!
//! Where each image lies is found out once, from the headers of the archives. After that each thread reads the images that
//! it needs, in any order.

mod index;

use std::sync::Arc;

use enmasse_data::{DataError, Dataset, Extent, Locality};
use enmasse_image::decode::ReadOptions;
use enmasse_image::{Image, ImageRegion, RegionRequest};

use crate::file_list::FileList;
use crate::reading::{read_whole, reading_bytes};
use crate::split::Divide;
use crate::storage::OpenFiles;
pub(crate) use index::{Indexed, Labels, Sample, index, no_label};

/// Bytes of an archive that are read together ([`Locality::blocks`]).
const BLOCK: u64 = 8 << 20;

/// Images in tar archives, or a part of them. A sample takes its name and 28 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    archives: Arc<OpenFiles>,
    classes: Vec<String>,
    /// The member's name and the label of each sample.
    names: Arc<FileList>,
    /// Parallel to `names`.
    places: Arc<Vec<ImageLocation>>,
    options: ReadOptions,
}

/// Where an image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageLocation {
    /// First byte in the archive.
    pub offset: u64,
    /// The archive.
    pub archive: u32,
    /// Bytes of the image.
    pub length: u32,
}

impl Shards {
    pub fn new(
        archives: Arc<OpenFiles>,
        classes: Vec<String>,
        names: FileList,
        mut places: Vec<ImageLocation>,
    ) -> Self {
        debug_assert_eq!(names.len(), places.len());
        places.shrink_to_fit();
        Shards {
            archives,
            classes,
            names: Arc::new(names.shrink()),
            places: Arc::new(places),
            options: ReadOptions::default(),
        }
    }
}

impl Divide for Shards {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn part(&self, keep: impl Fn(usize) -> bool) -> Self {
        let places =
            self.places.iter().enumerate().filter(|&(index, _)| keep(index)).map(|(_, place)| *place).collect();
        Shards { places: Arc::new(places), names: Arc::new(self.names.part(&keep)), ..self.clone() }
    }

    fn read_with(self, options: ReadOptions) -> Self {
        Shards { options, ..self }
    }
}

impl Dataset for Shards {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn label(&self, index: usize) -> usize {
        self.names.label(index) as usize
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        read_whole(self, index)
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Shards {
    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        let ImageLocation { offset, archive, length } = self.places[index];
        let archive = self.archives.get(archive as usize)?;
        archive.read_part((offset, length as usize), || self.name(index), self.options, wanted, view)
    }

    fn read_file(&self, index: usize, bytes: &mut Vec<u8>) -> Result<bool, DataError> {
        let ImageLocation { offset, archive, length } = self.places[index];
        self.archives.get(archive as usize)?.read(offset, length as usize, bytes)?;
        Ok(true)
    }

    /// `train-000.tar/dog/17.jpg`, with the archive's path.
    fn name(&self, index: usize) -> String {
        let archive = self.archives.path(self.places[index].archive as usize);
        archive.join(self.names.path(index)).display().to_string()
    }

    fn is_remote(&self) -> bool {
        self.archives.is_remote()
    }

    fn extent(&self, index: usize) -> Option<Extent> {
        let ImageLocation { offset, archive, length } = self.places[index];
        self.archives.get(archive as usize).ok()?.extent(offset..offset + u64::from(length))
    }

    fn blocks(&self) -> Option<Vec<usize>> {
        let block_of = |place: &ImageLocation| (place.archive, place.offset / BLOCK);
        Some(self.places.chunk_by(|one, next| block_of(one) == block_of(next)).map(<[ImageLocation]>::len).collect())
    }

    fn reading_bytes(&self) -> usize {
        // The file lies in memory beside its image.
        reading_bytes(self, |index| Some(self.places[index].length as usize))
    }

    fn fingerprint(&self) -> Option<String> {
        self.archives.fingerprint(self)
    }
}
