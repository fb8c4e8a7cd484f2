//! The likeliest classes of pictures: of a few, one after another, or of many, which threads read ahead.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{
    BadSample, DataError, Dataset, DecodePool, EvalLoader, Picture, ReadOptions, Resizer, Sharding, decode,
};
use enmasse_device::{HostBatch, Program, StepInputs};
use enmasse_graph::{Mode, Phase};
use serde::Serialize;

use crate::evaluation::{softmax, submit};
use crate::{Classifier, TrainError};

/// A class with its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Guess {
    /// The class's label.
    pub index: usize,
    /// Its name.
    pub class: String,
    /// The softmax of the logits.
    pub probability: f64,
}

/// The likeliest classes of a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The picture's path, as given.
    pub image: String,
    /// The classes, likeliest first.
    pub top: Vec<Guess>,
}

impl Classifier {
    /// The `top` likeliest classes of each picture, in the order of `images`. A picture that cannot be read is an error.
    pub fn predict(
        &self,
        program: &mut dyn Program,
        images: &[impl AsRef<Path>],
        top: usize,
        reading: ReadOptions,
    ) -> Result<Vec<Prediction>, TrainError> {
        let plan = &program.plans().evaluate;
        let (batch, [height, width, channels]) = (plan.batch, plan.picture());
        let bytes = height * width * channels;
        let mut resizer = Resizer::default();
        let mut predictions = Vec::with_capacity(images.len());
        for chunk in images.chunks(batch) {
            let mut pixels = vec![0; batch * bytes];
            for (image, place) in chunk.iter().zip(pixels.chunks_exact_mut(bytes)) {
                let picture = decode::open(image.as_ref(), reading)?;
                self.transform.fit(&picture, &mut resizer, place);
            }
            let pictures = HostBatch { images: pixels, labels: vec![-1; batch], sample_indices: vec![0; batch] };
            let inputs = StepInputs::evaluation(pictures.into());
            let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs)?;
            program.metrics(ticket)?;
            let logits = program.store("logits")?;
            let rows = logits.chunks_exact(self.classes.len());
            predictions
                .extend(chunk.iter().zip(rows).map(|(image, logits)| self.prediction(image.as_ref(), logits, top)));
        }
        Ok(predictions)
    }

    /// The same for many pictures, which the threads of `pool` read ahead. `each` gets the predictions in the order of
    /// `images`, and before those of each batch the pictures of the batch that cannot be read.
    pub fn predict_each(
        &self,
        program: &mut dyn Program,
        pool: &DecodePool,
        images: Vec<PathBuf>,
        top: usize,
        reading: ReadOptions,
        mut each: impl FnMut(Result<Prediction, &BadSample>),
    ) -> Result<(), TrainError> {
        let pictures = Arc::new(Pictures { images, reading });
        let sharding = Sharding::one(0, 1, program.plans().evaluate.batch);
        let loader = EvalLoader::new(pool, pictures.clone(), self.transform.clone(), sharding)?.skip_unreadable(true);
        for batch in loader.pass() {
            let batch = batch?;
            batch.unreadable.iter().for_each(|sample| each(Err(sample)));
            let indices = batch.indices[..batch.valid].to_vec();
            let ticket = submit(program, batch, 0)?;
            program.metrics(ticket)?;
            let logits = program.store("logits")?;
            for (index, logits) in indices.into_iter().zip(logits.chunks_exact(self.classes.len())) {
                each(Ok(self.prediction(&pictures.images[index as usize], logits, top)));
            }
        }
        Ok(())
    }

    fn prediction(&self, image: &Path, logits: &[f64], top: usize) -> Prediction {
        let probabilities = softmax(logits);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
        let guess =
            |&index: &usize| Guess { index, class: self.classes[index].clone(), probability: probabilities[index] };
        Prediction { image: image.display().to_string(), top: order.iter().take(top).map(guess).collect() }
    }
}

/// Pictures by their paths, without labels.
struct Pictures {
    images: Vec<PathBuf>,
    reading: ReadOptions,
}

impl Dataset for Pictures {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn label(&self, _: usize) -> usize {
        0
    }

    fn read(&self, index: usize) -> Result<Picture, DataError> {
        decode::open(&self.images[index], self.reading)
    }

    fn name(&self, index: usize) -> String {
        self.images[index].display().to_string()
    }
}
