//! The central type: a set of labelled images.

use std::path::PathBuf;

use enmasse_image::{Image, ImageRegion, RegionRequest};
use enmasse_remote::Extent;

use crate::DataError;

/// A set of labelled images. An implementation needs three methods; the loader calls them from several threads.
pub trait Dataset: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// The class of sample `index`, from 0. `index` is below [`len`](Dataset::len).
    fn label(&self, index: usize) -> usize;

    /// The image of sample `index`. The same index must always give the same image. A loader may skip a sample whose
    /// error is [`DataError::Image`] or [`DataError::Read`] ([`DataError::is_unreadable`]); other errors end the run.
    fn read(&self, index: usize) -> Result<Image, DataError>;

    /// [`read`](Dataset::read) into an image whose memory is reused.
    fn read_into(&self, index: usize, image: &mut Image) -> Result<(), DataError> {
        *image = self.read(index)?;
        Ok(())
    }

    /// [`read`](Dataset::read) of the part that `wanted` chooses for the image's width and height, or of more. The default reads
    /// the whole image.
    fn read_part(
        &self,
        index: usize,
        _wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        view.whole(|image| self.read_into(index, image))
    }

    /// Makes `bytes` the file of the image of sample `index`, and returns true. The default is for images that are not
    /// files of their own, such as CIFAR's: it returns false.
    fn read_file(&self, _index: usize, _bytes: &mut Vec<u8>) -> Result<bool, DataError> {
        Ok(false)
    }

    /// The path of the image's own file, if it has one. The default is for images that are parts of a file, or of none.
    fn file_path(&self, _index: usize) -> Option<PathBuf> {
        None
    }

    /// The name of sample `index` in error messages: a path if there is one.
    fn name(&self, index: usize) -> String {
        format!("sample {index}")
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

    /// Where an image on a server lies, as far as that is known, so that a loader can fetch it before it is read. May ask the server.
    fn extent(&self, _index: usize) -> Option<Extent> {
        None
    }

    /// Lengths of the runs of neighbouring samples that are fast to read one after another, and slow in another order. They add
    /// up to all samples. The default is for data whose samples can be read in any order: `None`.
    fn blocks(&self) -> Option<Vec<usize>> {
        None
    }

    /// Whether another order than one by [`blocks`](Dataset::blocks) reads each block again and again.
    fn prefers_blocks(&self) -> bool {
        false
    }

    /// Text that is equal for two data sets only if their samples are, in the same order. Without it, labels and names are
    /// compared.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// Names of the classes. The default is the numbers up to the largest label.
    fn class_names(&self) -> Vec<String> {
        let count = (0..self.len()).map(|index| self.label(index) + 1).max().unwrap_or(0);
        (0..count).map(|class| class.to_string()).collect()
    }

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
