//! The training images that are nearest to an image, by the features of a run's best weights. Those of the training images are computed
//! when an image is first sent, and stay until one is sent to another run.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use enmasse_data::{DataError, Dataset};
use enmasse_image::{Image, ReadOptions};
use enmasse_train::{Features, ImageSource, TrainingData};

use super::background::{line, open};
use crate::commands::data::targets;
use crate::commands::embed::Extractor;
use crate::commands::report::evaluated::{short_name, thumbnail};
use crate::data::sample::Sample;
use crate::failure::{Failure, failed};

/// Training images that are looked at, at most.
const MAX_IMAGES: usize = 2000;

/// Those that are shown.
const NEAREST: usize = 8;

/// Images that are computed at once.
const BATCH: usize = 32;

/// The training images near an image.
pub struct Nearest {
    /// How many were compared, and of how many.
    pub among: usize,
    pub of: usize,
    /// The nearest first.
    pub images: Vec<Near>,
}

/// A training image, and how near it is.
pub struct Near {
    pub name: String,
    /// Its class, its labels or its numbers.
    pub truth: String,
    /// The cosine of its features and those of the image.
    pub cosine: f64,
    /// PNG; none if it cannot be read any more.
    pub thumbnail: Option<Vec<u8>>,
}

/// The training images of the last run that was asked for.
#[derive(Default)]
pub struct TrainingImages(Mutex<Option<(PathBuf, Known)>>);

impl TrainingImages {
    /// The nearest to `image`, or a line that says why there are none. `done` hears how many of how many training images are known.
    pub fn nearest(&self, run: &Path, image: &[u8], done: &mut dyn FnMut(usize, usize)) -> Result<Nearest, String> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.as_ref().is_none_or(|(own, _)| own != run) {
            // The memory of the one before comes back first.
            *open = None;
            *open = Some((run.to_owned(), Known::compute(run, done).map_err(|failure| line(&failure))?));
        }
        let Some((_, known)) = open.as_mut() else { return Err("the training images are not open".to_owned()) };
        known.nearest(image).map_err(|failure| line(&failure))
    }
}

/// Training images and their features.
struct Known {
    root: PathBuf,
    data: TrainingData,
    sample: Arc<Sample>,
    features: Features,
    /// For one image.
    extractor: Extractor,
    reading: ReadOptions,
}

impl Known {
    fn compute(run: &Path, done: &mut dyn FnMut(usize, usize)) -> Result<Self, Failure> {
        let run = open(run)?;
        let data = run.in_parts()?;
        let sample = Arc::new(Sample::new(data.train.clone(), MAX_IMAGES));
        let images: Arc<dyn Dataset> = sample.clone();
        let count = images.len();
        let mut all = Extractor::new(&run.weights, &run.config, BATCH.min(count.max(1)), None)?;
        let features = all.features(&images, &mut |known| done(known, count))?;
        drop(all);
        if features.rows().next().is_none() {
            return Err(failed!("{}: none of the training images can be read any more", run.root.display()));
        }
        let extractor = Extractor::new(&run.weights, &run.config, 1, None)?;
        Ok(Known { reading: run.config.train.reading(), root: run.root, data, sample, features, extractor })
    }

    fn nearest(&mut self, image: &[u8]) -> Result<Nearest, Failure> {
        let source = ImageSource::from(image);
        let image = source.read(0, self.reading).map_err(Failure::error)?.into_owned();
        let sent: Arc<dyn Dataset> = Arc::new(One(image));
        let asked = self.extractor.features(&sent, &mut |_| ())?;
        let data = &self.data;
        let part = self.data.train.as_ref();
        let near = self.features.nearest(&asked.values, NEAREST).into_iter().map(|near| {
            let index = self.sample.place(near.index);
            Near {
                name: short_name(part, index, &self.root),
                truth: targets::of_image(data, part, index),
                cosine: near.cosine,
                thumbnail: part.read(index).ok().and_then(|image| thumbnail(&image)),
            }
        });
        Ok(Nearest { images: near.collect(), among: self.features.rows().count(), of: part.len() })
    }
}

/// An image without a class.
struct One(Image);

impl Dataset for One {
    fn len(&self) -> usize {
        1
    }

    fn label(&self, _: usize) -> usize {
        0
    }

    fn read(&self, _: usize) -> Result<Image, DataError> {
        Ok(self.0.clone())
    }
}
