//! A small data set for tests of whole runs.

use enmasse_data::{DataError, Dataset};
use enmasse_image::Image;

/// A number of images of three classes of noisy colours.
pub struct Colours(pub usize);

impl Dataset for Colours {
    fn len(&self) -> usize {
        self.0
    }
    fn label(&self, index: usize) -> usize {
        index % 3
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        let pixel = |i: usize| {
            let noise = (index * 7919 + i * 104_729) % 97;
            if i % 3 == index % 3 { 150 + noise } else { 40 + noise }
        };
        Ok(Image::new(10, 8, (0..240).map(|i| pixel(i) as u8).collect())?)
    }
}
