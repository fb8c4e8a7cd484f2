//! The likeliest classes of images: of a few, one after another, or of many, which threads read ahead.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use enmasse_data::{BadSample, DataError, Dataset, DecodePool, EvalLoader, Extent, Locality, Sharding};
use enmasse_datasets::TaskKind;
use enmasse_device::{HostBatch, Program, StepInputs};
use enmasse_graph::{Mode, Phase};
use enmasse_image::{Canvas, EvalCrop, Image, ImageRegion, ReadOptions, RegionRequest, Resizer, decode};
use serde::{Deserialize, Serialize};

use crate::crops::Crops;
use crate::evaluation::targets_of_a_sample;
use crate::metrics::DEFAULT_THRESHOLD;
use crate::{Classifier, ImageSource, TrainError};

/// A class with its probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Guess {
    /// The class's label.
    pub index: usize,
    /// Its name.
    pub class: String,
    /// The softmax of the logits, divided by the classifier's temperature; of a label the sigmoid of its logit.
    pub probability: f64,
}

/// The likeliest classes of an image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The image's path, as given, or `image 3` for the bytes at place 3 of a list.
    pub image: String,
    /// The classes or labels, likeliest first; none where numbers are predicted. Only classes share a probability of 1.
    pub top: Vec<Guess>,
    /// The labels that are predicted, in the order of labels. The JSON object of an image without any, and of classes and numbers, lacks them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The predicted numbers, in the units of the data. The JSON object of classes and labels lacks them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<PredictedValue>,
}

/// A number of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedValue {
    /// What it is called.
    pub name: String,
    /// The number.
    pub value: f64,
}

impl Classifier {
    /// The `top` likeliest classes of each image, in the order of `images`, which fill the batches of `program`.
    ///
    /// # Errors
    /// An image cannot be read, or the device fails.
    pub fn predict(
        &self,
        program: &mut dyn Program,
        images: &[ImageSource],
        top: usize,
        reading: ReadOptions,
    ) -> Result<Vec<Prediction>, TrainError> {
        let mut predictions = Vec::with_capacity(images.len());
        let each = |name, logits: &[f64]| predictions.push(self.prediction(name, logits, top));
        self.each_logits(program, images, reading, each)?;
        Ok(predictions)
    }

    /// The same as numbers: of each image the probability of every class or label, or the predicted numbers, in the order of
    /// [`Classifier::classes`].
    ///
    /// # Errors
    /// Those of [`predict`](Self::predict).
    pub fn outputs(
        &self,
        program: &mut dyn Program,
        images: &[ImageSource],
        reading: ReadOptions,
    ) -> Result<Vec<Vec<f64>>, TrainError> {
        let mut outputs = Vec::with_capacity(images.len());
        self.each_logits(program, images, reading, |_, logits| outputs.push(self.decode(logits)))?;
        Ok(outputs)
    }

    /// Calls `each` with the name and the logits of each image.
    fn each_logits(
        &self,
        program: &mut dyn Program,
        images: &[ImageSource],
        reading: ReadOptions,
        mut each: impl FnMut(String, &[f64]),
    ) -> Result<(), TrainError> {
        let plan = &program.plans().evaluate;
        let batch = plan.batch;
        let bytes = plan.image().into_iter().product::<usize>();
        let mut resizer = Resizer::default();
        for (number, chunk) in images.chunks(batch).enumerate() {
            let first = number * batch;
            let mut pixels = vec![0; batch * bytes];
            for ((image, pixels), place) in chunk.iter().zip(pixels.chunks_exact_mut(bytes)).zip(first..) {
                let image = image.read(place, reading).map_err(DataError::from)?;
                self.transform.fit(&image, &mut resizer, pixels);
            }
            let logits = logits(program, pixels)?;
            let rows = logits.chunks_exact(self.classes.len());
            chunk.iter().zip(rows).zip(first..).for_each(|((image, logits), place)| each(image.name(place), logits));
        }
        Ok(())
    }

    /// What the model sees of the image in `bytes`, which `name` names in errors: the same pixels as in every other prediction.
    ///
    /// # Errors
    /// The bytes are no image that can be decoded, or there is no memory for it.
    pub fn prepare(
        &self,
        bytes: &[u8],
        name: &str,
        reading: ReadOptions,
        buffers: &mut PreparationBuffers,
    ) -> Result<Vec<u8>, TrainError> {
        let PreparationBuffers { view, canvas } = buffers;
        let wanted = |width: usize, height: usize| self.transform.wanted(EvalCrop::CENTER, width, height);
        decode::read_part_of(bytes, || name.to_owned(), reading, &wanted, view).map_err(DataError::from)?;
        let mut pixels = vec![0; self.transform.size.pow(2) * 3];
        self.transform.apply_to_region(view, canvas, EvalCrop::CENTER, &mut pixels).map_err(DataError::from)?;
        Ok(pixels)
    }

    /// The same for images that are [prepared](Self::prepare), each with its name, of which there are at most as many as `program` takes at
    /// once.
    ///
    /// # Errors
    /// The device fails.
    pub fn predict_prepared(
        &self,
        program: &mut dyn Program,
        images: &[(String, Vec<u8>)],
        top: usize,
    ) -> Result<Vec<Prediction>, TrainError> {
        let plan = &program.plans().evaluate;
        let mut pixels = images.iter().flat_map(|(_, pixels)| pixels).copied().collect::<Vec<u8>>();
        pixels.resize(plan.batch * plan.image().into_iter().product::<usize>(), 0);
        let logits = logits(program, pixels)?;
        let rows = images.iter().zip(logits.chunks_exact(self.classes.len()));
        Ok(rows.map(|((name, _), logits)| self.prediction(name.clone(), logits, top)).collect())
    }

    /// The same for many images, which the threads of `pool` read ahead, by the mean of the logits of `crops`. `each` gets the
    /// predictions in the order of `images`, each with the index of its image, and before those of each batch the images of the batch that
    /// cannot be read. It may end it all.
    ///
    /// # Errors
    /// There is no crop, or one that the transform does not have; the device fails, or the images are not read for a
    /// long time. Those that cannot be read are no error.
    pub fn predict_each(
        &self,
        program: &mut dyn Program,
        pool: &DecodePool,
        images: Arc<Images>,
        crops: &[EvalCrop],
        top: usize,
        mut each: impl FnMut(Result<(usize, Prediction), &BadSample>) -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let sharding = Sharding::one(0, 1, program.plans().evaluate.batch);
        let loader = EvalLoader::new(pool, images.clone(), self.transform.clone(), sharding)?;
        let mut batches = Crops::begin(&loader.skip_unreadable(true).cropped(crops)?);
        while let Some(evaluated) = batches.next(program)? {
            let classes = self.classes.len();
            let predicted = evaluated.places().map(|place| {
                let logits = &evaluated.logits[place * classes..(place + 1) * classes];
                let index = evaluated.indices[place] as usize;
                Ok((index, self.prediction(images.name(index), logits, top)))
            });
            if evaluated.unreadable.iter().map(Err).chain(predicted).try_for_each(&mut each).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// From which probability on a label is predicted.
    pub fn threshold(&self, label: usize) -> f64 {
        self.thresholds.get(label).copied().unwrap_or(DEFAULT_THRESHOLD)
    }

    /// Probabilities or numbers of logits.
    fn decode(&self, logits: &[f64]) -> Vec<f64> {
        self.task.decode(&logits.iter().map(|logit| logit / self.temperature).collect::<Vec<_>>())
    }

    fn prediction(&self, image: String, logits: &[f64], top: usize) -> Prediction {
        let probabilities = self.decode(logits);
        if self.kind() == TaskKind::Regression {
            let value = |(name, value): (&String, f64)| PredictedValue { name: name.clone(), value };
            let values = self.classes.iter().zip(probabilities).map(value).collect();
            return Prediction { image, values, ..Prediction::default() };
        }
        let is_predicted =
            |label: &usize| self.kind() == TaskKind::MultiLabel && probabilities[*label] >= self.threshold(*label);
        let labels = (0..probabilities.len()).filter(is_predicted).map(|label| self.classes[label].clone()).collect();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
        let guess =
            |&index: &usize| Guess { index, class: self.classes[index].clone(), probability: probabilities[index] };
        Prediction { image, top: order.iter().take(top).map(guess).collect(), labels, values: Vec::new() }
    }
}

/// The logits of a batch of pixels.
fn logits(program: &mut dyn Program, images: Vec<u8>) -> Result<Vec<f64>, TrainError> {
    let batch = program.plans().evaluate.batch;
    let targets = vec![0.0; batch * targets_of_a_sample(program)];
    let labels = vec![-1; batch];
    let sample_indices = vec![0; batch];
    let images = HostBatch { images, labels, targets, sample_indices, ..HostBatch::default() };
    let ticket =
        program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &StepInputs::evaluation(images.into()))?;
    program.metrics(ticket)?;
    Ok(program.store("logits")?)
}

/// Memory that [`Classifier::prepare`] uses for one image after another.
#[derive(Default)]
pub struct PreparationBuffers {
    view: ImageRegion,
    canvas: Canvas,
}

/// Images without labels: files, and parts of data sets.
#[derive(Default)]
pub struct Images {
    reading: ReadOptions,
    /// Each with the number of images up to its end.
    sources: Vec<(ImageInput, usize)>,
    /// The places of the images among those of the sources, if some are left out.
    kept: Option<Vec<usize>>,
}

enum ImageInput {
    File(PathBuf),
    /// The content of a file, and its name.
    Bytes(Vec<u8>, String),
    Part(Arc<dyn Dataset>),
}

impl Images {
    /// No images yet. Files are to be read as `reading` says.
    pub fn new(reading: ReadOptions) -> Self {
        Images { reading, ..Images::default() }
    }

    /// Adds an image file.
    pub fn add_file(&mut self, path: PathBuf) {
        self.add(ImageInput::File(path), 1);
    }

    /// Adds the content of an image file, under a name.
    pub fn add_bytes(&mut self, bytes: Vec<u8>, name: String) {
        self.add(ImageInput::Bytes(bytes, name), 1);
    }

    /// Adds all images of a data set.
    pub fn add_part(&mut self, part: Arc<dyn Dataset>) {
        let images = part.len();
        self.add(ImageInput::Part(part), images);
    }

    fn add(&mut self, source: ImageInput, images: usize) {
        let before = self.end();
        if let Some(kept) = &mut self.kept {
            kept.extend(before..before + images);
        }
        self.sources.push((source, before + images));
    }

    /// The number of images of all sources.
    fn end(&self) -> usize {
        self.sources.last().map_or(0, |&(_, end)| end)
    }

    /// Leaves out all images but those whose names are `wanted`, which is asked in their order.
    pub fn retain(&mut self, mut wanted: impl FnMut(&str) -> bool) {
        self.kept = Some((0..self.len()).filter(|&index| wanted(&self.name(index))).collect());
    }

    /// The source of an image, and its number there.
    fn source(&self, index: usize) -> (&ImageInput, usize) {
        let index = self.kept.as_ref().map_or(index, |kept| kept[index]);
        let at = self.sources.partition_point(|&(_, end)| end <= index);
        let before = at.checked_sub(1).map_or(0, |at| self.sources[at].1);
        (&self.sources[at].0, index - before)
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.kept.as_ref().map_or_else(|| self.end(), Vec::len)
    }

    fn label(&self, _: usize) -> usize {
        0
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        match self.source(index) {
            (ImageInput::File(path), _) => Ok(decode::open(path, self.reading)?),
            (ImageInput::Bytes(bytes, name), _) => Ok(decode::open_bytes(bytes, || name.clone(), self.reading)?),
            (ImageInput::Part(part), index) => part.read(index),
        }
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Images {
    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        match self.source(index) {
            (ImageInput::File(path), _) => Ok(decode::read_part(path, self.reading, wanted, view)?),
            (ImageInput::Bytes(bytes, name), _) => {
                Ok(decode::read_part_of(bytes, || name.clone(), self.reading, wanted, view)?)
            }
            (ImageInput::Part(part), index) => part.read_part(index, wanted, view),
        }
    }

    fn name(&self, index: usize) -> String {
        match self.source(index) {
            (ImageInput::File(path), _) => path.display().to_string(),
            (ImageInput::Bytes(_, name), _) => name.clone(),
            (ImageInput::Part(part), index) => part.name(index),
        }
    }

    fn is_remote(&self) -> bool {
        self.sources.iter().any(|(source, _)| match source {
            ImageInput::File(_) | ImageInput::Bytes(..) => false,
            ImageInput::Part(part) => part.locality().is_some_and(|locality| locality.is_remote()),
        })
    }

    fn extent(&self, index: usize) -> Option<Extent> {
        match self.source(index) {
            (ImageInput::File(_) | ImageInput::Bytes(..), _) => None,
            (ImageInput::Part(part), index) => part.locality()?.extent(index),
        }
    }
}
