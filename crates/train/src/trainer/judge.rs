//! What a trained model is worth: loss and accuracy on a part of the data, and the classes of pictures, with the weights of the last
//! fit.

use std::sync::Arc;

use enmasse_data::Dataset;

use super::Trainer;
use crate::bad_samples::BadSamples;
use crate::evaluation::{EpochPosition, Evaluation, evaluate_until, predict};
use crate::{TrainError, TrainingData};

impl Trainer<'_> {
    /// Loss and accuracy on the validation part, with the weights that [`Trainer::fit`] ended with. Every sample counts
    /// once, for any number of ranks, and every rank has the result. A request to stop ends it as
    /// [`TrainError::Interrupted`] on all of them.
    pub fn validate(&mut self, data: &TrainingData) -> Result<Evaluation, TrainError> {
        self.as_one(|trainer| trainer.judge("validation", &data.validation, data))
    }

    /// The same on the test part. An error if the data have none.
    pub fn test(&mut self, data: &TrainingData) -> Result<Evaluation, TrainError> {
        self.as_one(|trainer| trainer.judge("test", data.test.as_ref().ok_or(TrainError::NoTestPart)?, data))
    }

    /// The probability of each class for every sample of `pictures`, `[samples][classes]` in the order of the data set,
    /// with the weights that [`Trainer::fit`] ended with. Ranks share the work, and each has the complete result. A sample
    /// that cannot be read is an error.
    pub fn predict(&mut self, pictures: &Arc<dyn Dataset>) -> Result<Vec<Vec<f64>>, TrainError> {
        self.as_one(|trainer| {
            let (trained, group) = (trainer.trained.as_mut().ok_or(TrainError::NotFitted)?, trainer.group.as_ref());
            let loader = trained.evaluation.loader(pictures)?.skip_unreadable(false);
            predict(trained.program.as_mut(), &loader, pictures.len(), group)
        })
    }

    fn judge(
        &mut self,
        part: &str,
        pictures: &Arc<dyn Dataset>,
        data: &TrainingData,
    ) -> Result<Evaluation, TrainError> {
        data.check_labels(part, pictures.as_ref())?;
        let (trained, group) = (self.trained.as_mut().ok_or(TrainError::NotFitted)?, self.group.as_ref());
        let (loader, total) = (trained.evaluation.loader(pictures)?, pictures.len() as u64);
        let (program, position) = (trained.program.as_mut(), EpochPosition::default());
        let (callbacks, mut bad) = (&mut self.callbacks, BadSamples::default());
        match evaluate_until(program, &loader, total, group, position, callbacks, &mut bad)? {
            (_, true) => Err(TrainError::Interrupted),
            (found, false) => Ok(found),
        }
    }
}
