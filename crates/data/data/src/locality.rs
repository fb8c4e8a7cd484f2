//! Where the samples of a data set lie: what there is to know beyond their images.

use std::path::PathBuf;

use enmasse_image::{ImageRegion, RegionRequest};
use enmasse_remote::Extent;

use crate::dataset::{numbered, show};
use crate::{DataError, Dataset};

/// Where the samples of a [`Dataset`] lie: their names and files, in which order they are fast to read, and what reading them
/// takes. Every method has a default.
pub trait Locality: Dataset {
    /// The name of sample `index` in messages: a path if there is one.
    fn name(&self, index: usize) -> String {
        numbered(index)
    }

    /// The path of the image's own file, if it has one. The default is for images that are parts of a file, or of none.
    fn file_path(&self, _index: usize) -> Option<PathBuf> {
        None
    }

    /// Makes `bytes` the file of the image of sample `index`, and returns true. The default is for images that are not
    /// files of their own, such as CIFAR's: it returns false.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read_file(&self, _index: usize, _bytes: &mut Vec<u8>) -> Result<bool, DataError> {
        Ok(false)
    }

    /// [`read`](Dataset::read) of the part that `wanted` chooses for the image's width and height, or of more, into memory
    /// that is reused. The default reads the whole image.
    ///
    /// # Errors
    /// Those of [`read`](Dataset::read).
    fn read_part(
        &self,
        index: usize,
        _wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        show(self.read(index), view)
    }

    /// Bytes that reading an image takes at its peak, the image itself among them, as far as a few samples tell. The
    /// default is for data that lie in memory.
    fn reading_bytes(&self) -> usize {
        0
    }

    /// Bytes that the data set keeps of what it has read, at most, for all threads together. The default keeps nothing.
    fn kept_bytes(&self) -> usize {
        0
    }

    /// Whether the images lie on servers. The default is for data on this machine.
    fn is_remote(&self) -> bool {
        false
    }

    /// Where an image on a server lies, as far as that is known, so that a loader can fetch it before it is read. May ask
    /// the server.
    fn extent(&self, _index: usize) -> Option<Extent> {
        None
    }

    /// Lengths of the runs of neighbouring samples that are fast to read one after another, and slow in another order. They
    /// add up to all samples. The default is for data whose samples can be read in any order: `None`.
    fn blocks(&self) -> Option<Vec<usize>> {
        None
    }

    /// Whether another order than one by [`blocks`](Locality::blocks) reads each block again and again.
    fn prefers_blocks(&self) -> bool {
        false
    }

    /// Text that is equal for two data sets only if their samples are, in the same order. Without it, labels and names are
    /// compared.
    fn fingerprint(&self) -> Option<String> {
        None
    }
}
