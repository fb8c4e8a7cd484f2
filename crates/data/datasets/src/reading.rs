//! What data sets of image files have in common.

use enmasse_data::{DataError, Dataset};
use enmasse_image::{Image, ImageRegion, RegionRequest};

/// [`Dataset::read`] by way of [`Locality::read_part`](enmasse_data::Locality::read_part), for data sets that have their own.
pub(crate) fn read_whole(dataset: &dyn Dataset, index: usize) -> Result<Image, DataError> {
    let mut view = ImageRegion::default();
    dataset.read_part(index, &RegionRequest::whole, &mut view)?;
    Ok(view.into_image())
}

/// [`Locality::reading_bytes`](enmasse_data::Locality::reading_bytes) of images that are files, given the length of each.
pub(crate) fn reading_bytes(dataset: &dyn Dataset, length: impl Fn(usize) -> Option<usize>) -> usize {
    /// Files whose sizes are looked at, evenly distributed over the data set.
    const SAMPLES: usize = 64;
    /// The largest of them, which are read.
    const READ: usize = 4;
    // A progressive JPEG has two bytes for each coefficient in addition to the pixels.
    const PER_PIXEL_BYTE: usize = 3;
    let mut sized: Vec<(usize, usize)> =
        spread(dataset.len(), SAMPLES).filter_map(|index| Some((length(index)?, index))).collect();
    sized.sort_unstable_by(|a, b| b.cmp(a));
    let bytes = sized.iter().take(READ).filter_map(|&(file, index)| {
        let pixels = dataset.read(index).ok()?.pixels().len();
        Some(pixels * PER_PIXEL_BYTE + file)
    });
    bytes.max().unwrap_or(0)
}

/// At most `samples` indices, evenly distributed over those below `len`.
pub(crate) fn spread(len: usize, samples: usize) -> impl Iterator<Item = usize> {
    let samples = samples.min(len);
    (0..samples).map(move |sample| sample * len / samples)
}
