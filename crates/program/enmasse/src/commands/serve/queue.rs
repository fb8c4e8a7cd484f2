//! The queue of images, and the thread of the device: it computes what is there as soon as the device is free.
//!
//! A batch never waits for more images. While one computes others come, so batches grow with the load. A batch has as many images as the
//! largest program that the waiting images of the oldest one's model fill, so nothing is computed for empty places.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use axum::http::StatusCode;
use enmasse_train::Prediction;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::metrics::Metrics;
use crate::web::{Refusal, refusal};

/// What computes predictions.
pub trait Model: Send {
    /// The numbers of images that it computes at once, the smallest first, which is 1.
    fn batches(&self) -> &[usize];

    /// The predictions of one of these numbers of images, each with its name and its pixels.
    fn predict(&mut self, images: &[(String, Vec<u8>)]) -> Result<Vec<Prediction>, String>;
}

/// What becomes of an image.
pub type Answer = Result<Prediction, Refusal>;

/// An image that waits for the device.
pub struct Job {
    /// Its place in the queue. It is free before the client has the answer, and may ask for the next; so it comes first.
    pub place: OwnedSemaphorePermit,
    /// The model's number.
    pub model: usize,
    /// The image's name and pixels.
    pub image: (String, Vec<u8>),
    pub answer: oneshot::Sender<Answer>,
}

/// Starts the thread that computes, which ends with the last sender.
pub fn start(models: Vec<Box<dyn Model>>, metrics: Arc<Metrics>) -> io::Result<Sender<Job>> {
    let (sender, jobs) = channel();
    Builder::new().name("device".to_owned()).spawn(move || serve(models, &jobs, &metrics))?;
    Ok(sender)
}

fn serve(mut models: Vec<Box<dyn Model>>, jobs: &Receiver<Job>, metrics: &Metrics) {
    let mut waiting: VecDeque<Job> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let Ok(job) = jobs.recv() else { return };
            waiting.push_back(job);
        }
        waiting.extend(jobs.try_iter());
        // Nobody waits any more for those whose time is over.
        waiting.retain(|job| !job.answer.is_closed());
        let Some(oldest) = waiting.front().map(|job| job.model) else { continue };
        let batch = take(&mut waiting, oldest, models[oldest].batches());
        metrics.batch(oldest, batch.len());
        compute(models[oldest].as_mut(), batch);
    }
}

/// Takes the oldest images of a model, as many as fill one of its `batches`.
fn take(waiting: &mut VecDeque<Job>, model: usize, batches: &[usize]) -> Vec<Job> {
    let of_model = waiting.iter().filter(|job| job.model == model).count();
    let mut left = batches.iter().copied().filter(|batch| *batch <= of_model).max().unwrap_or(1);
    let (taken, others) = waiting.drain(..).partition::<Vec<_>, _>(|job| {
        let is_taken = job.model == model && left > 0;
        left -= usize::from(is_taken);
        is_taken
    });
    waiting.extend(others);
    taken
}

fn compute(model: &mut dyn Model, batch: Vec<Job>) {
    let (images, answers): (Vec<_>, Vec<_>) = batch.into_iter().map(|job| (job.image, (job.answer, job.place))).unzip();
    let predicted = catch_unwind(AssertUnwindSafe(|| model.predict(&images)));
    let predicted = predicted.unwrap_or_else(|_| Err("the model has failed".to_owned()));
    let predictions: Vec<Answer> = match predicted {
        Ok(predictions) => predictions.into_iter().map(Ok).collect(),
        Err(line) => answers.iter().map(|_| Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, line.clone()))).collect(),
    };
    for ((answer, place), prediction) in answers.into_iter().zip(predictions) {
        drop(place);
        // The client may have gone.
        let _ = answer.send(prediction);
    }
}
