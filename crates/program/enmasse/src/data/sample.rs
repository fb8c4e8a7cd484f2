//! A part of a data set that is looked at in place of all of it.

use std::sync::Arc;

use enmasse_data::{DataError, Dataset};
use enmasse_image::Image;

/// Some images of a data set, evenly over it.
pub struct Sample {
    all: Arc<dyn Dataset>,
    count: usize,
}

impl Sample {
    /// At most `most` images.
    pub fn new(all: Arc<dyn Dataset>, most: usize) -> Self {
        let count = all.len().min(most);
        Sample { all, count }
    }

    /// The number in the data set.
    pub fn place(&self, index: usize) -> usize {
        index * self.all.len() / self.count
    }
}

impl Dataset for Sample {
    fn len(&self) -> usize {
        self.count
    }

    fn label(&self, index: usize) -> usize {
        self.all.label(self.place(index))
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.all.read(self.place(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many images without pixels.
    struct Many(usize);

    impl Dataset for Many {
        fn len(&self) -> usize {
            self.0
        }

        fn label(&self, index: usize) -> usize {
            index
        }

        fn read(&self, _: usize) -> Result<Image, DataError> {
            Image::new(1, 1, vec![0; 3]).map_err(DataError::from)
        }
    }

    #[test]
    fn a_sample_is_even() {
        let check = |all: usize, most: usize, expected: &[usize]| {
            let sample = Sample::new(Arc::new(Many(all)), most);
            assert_eq!((0..sample.len()).map(|index| sample.label(index)).collect::<Vec<_>>(), expected);
        };
        check(3, 5, &[0, 1, 2]);
        check(10, 4, &[0, 2, 5, 7]);
        check(0, 4, &[]);
    }
}
