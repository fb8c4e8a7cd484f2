//! The central type: a set of labelled images.

use enmasse_image::{Image, ImageRegion, RegionRequest};

use crate::{DataError, Locality};

/// A set of labelled images: three methods, which a loader calls from several threads. Data that lie in files or on servers
/// say so by a fourth, and a fifth gives values to predict.
#[expect(
    clippy::len_without_is_empty,
    reason = "it is a method of any `dyn Dataset`, which implementations cannot change"
)]
pub trait Dataset: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// The class of sample `index`, from 0. `index` is below [`len`](Dataset::len).
    fn label(&self, index: usize) -> usize;

    /// The image of sample `index`. The same index must always give the same image.
    ///
    /// # Errors
    /// [`DataError::Image`] or [`DataError::Read`] if this sample cannot be read and others may: a loader may skip it
    /// ([`DataError::is_unreadable`]). Any other error ends the run.
    fn read(&self, index: usize) -> Result<Image, DataError>;

    /// The numbers that a model is to predict of sample `index`, for a task whose targets are values. Every sample has as many, and
    /// its label then only says that there is a sample. The default is for data sets of classes alone.
    fn targets(&self, _index: usize) -> Vec<f32> {
        Vec::new()
    }

    /// Where the samples lie, for data sets of which more is known than their images. The default is for images that are
    /// made, or lie in memory.
    fn locality(&self) -> Option<&dyn Locality> {
        None
    }
}

impl dyn Dataset + '_ {
    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of sample `index` in messages: that of its [`Locality`], or its number.
    pub fn name(&self, index: usize) -> String {
        match self.locality() {
            Some(locality) => locality.name(index),
            None => numbered(index),
        }
    }

    /// Reads the part of an image that `wanted` chooses for its width and height, or more: by its
    /// [`Locality`], or else the whole image.
    ///
    /// # Errors
    /// Those of [`Dataset::read`]. The content of `view` is undefined then.
    pub fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        match self.locality() {
            Some(locality) => locality.read_part(index, wanted, view),
            None => show(self.read(index), view),
        }
    }
}

/// The name of a sample that has no other.
pub(crate) fn numbered(index: usize) -> String {
    format!("sample {index}")
}

/// Shows a whole image that was read.
pub(crate) fn show(read: Result<Image, DataError>, view: &mut ImageRegion) -> Result<(), DataError> {
    let read = read?;
    view.whole(|image| {
        *image = read;
        Ok(())
    })
}
