//! Charts in a run's folder: the tutorials' bar chart of classes and sheet of augmented images, and the progress of the run.

mod learning;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use enmasse_charts::{LabelledImage, class_distribution, contact_sheet, image_sheet};
use enmasse_data::Batch;
use enmasse_system::files::{FileError, Staging};

pub use learning::{BestConfusion, Curves};

use crate::{
    Artifact, Callback, CallbackResult, Control, EpochRecord, LogPoint, Media, RunError, SaveReason, Saved, TrainError,
    TrainingData,
};

/// Number of images on a sheet.
const SHEET: usize = 16;

/// The number of training and validation samples of each class, as SVG.
pub fn draw_classes(data: &TrainingData) -> String {
    let train = data.class_counts(data.train.as_ref());
    let validation = data.class_counts(data.validation.as_ref());
    let classes = data.classes.iter().zip(train).zip(validation);
    let classes: Vec<_> = classes.map(|((name, train), validation)| (name.clone(), train, validation)).collect();
    class_distribution("class distribution", &classes)
}

/// The first images that this rank trains on, as the model sees them before normalisation. They are taken from the
/// training batches, so that nothing is decoded twice, and drawn by a separate thread, so that no step waits.
pub struct Sheet {
    staging: Staging,
    path: PathBuf,
    size: usize,
    classes: Vec<String>,
    /// With what is written below each.
    images: Vec<(Vec<u8>, String)>,
    /// Whether it takes no more images, because it is being drawn or has been.
    is_full: bool,
    /// Writes the chart, and returns the images alone as a PNG.
    thread: Option<JoinHandle<Result<Vec<u8>, TrainError>>>,
}

impl Sheet {
    /// An empty sheet, to become the SVG file `path`.
    pub fn new(staging: Staging, path: PathBuf, size: usize, classes: &[String]) -> Self {
        Sheet { staging, path, size, classes: classes.to_owned(), images: Vec::new(), is_full: false, thread: None }
    }

    /// Takes images from a batch until the sheet is full. Then draws it.
    fn add(&mut self, batch: &Batch) -> Result<(), TrainError> {
        if self.is_full {
            return Ok(());
        }
        let bytes = self.size * self.size * 3;
        let image = |place: usize| batch.images[place * bytes..(place + 1) * bytes].to_vec();
        let room = SHEET - self.images.len();
        let added = batch.places().take(room).map(|place| (image(place), self.caption(batch, place)));
        self.images.extend(added.collect::<Vec<_>>());
        if self.images.len() == SHEET { self.start() } else { Ok(()) }
    }

    /// The class of a place; of a mixture both classes with their lambdas. The values of a place where these are predicted.
    fn caption(&self, batch: &Batch, place: usize) -> String {
        if !batch.targets.is_empty() {
            let values = batch.targets.len() / batch.labels.len();
            let own = batch.targets[place * values..(place + 1) * values].iter().map(|value| format!("{value:.2}"));
            return own.collect::<Vec<_>>().join(", ");
        }
        let name = |label: i32| {
            let class = usize::try_from(label).ok().and_then(|label| self.classes.get(label));
            class.map_or("?", String::as_str)
        };
        let own = name(batch.labels[place]);
        match batch.other_labels.get(place).zip(batch.lambdas.get(place)) {
            Some((&other, &share)) if share < 1.0 => format!("{own} {share:.2}, {} {:.2}", name(other), 1.0 - share),
            _ => own.to_owned(),
        }
    }

    /// Draws the images unless that is done, and waits for the file.
    fn finish(&mut self, control: &mut Control) -> Result<(), TrainError> {
        // An epoch that trains the head on features has no augmented images.
        if !self.is_full && !self.images.is_empty() {
            self.start()?;
        }
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let png = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        control.log_media(LogPoint::Epoch(0), "augmented", Media::Png(png));
        control.artifact(Artifact::Chart, &self.path);
        Ok(())
    }

    fn start(&mut self) -> Result<(), TrainError> {
        self.is_full = true;
        let staging = self.staging.clone();
        let path = self.path.clone();
        let size = self.size;
        let images = std::mem::take(&mut self.images);
        let draw = move || {
            write(&staging, &path, &draw_sheet(size, &images)?)?;
            let images: Vec<Vec<Vec<u8>>> = images.into_iter().map(|(pixels, _)| vec![pixels]).collect();
            Ok(contact_sheet(size, &images)?)
        };
        let thread = std::thread::Builder::new().name("charts".to_owned()).spawn(draw);
        self.thread = Some(thread.map_err(FileError::of("draw", &self.path)).map_err(RunError::from)?);
        Ok(())
    }
}

impl Callback for Sheet {
    fn on_train_batch_start(&mut self, batch: &Batch, _: &mut Control) -> CallbackResult {
        Ok(self.add(batch)?)
    }

    /// The first epoch of a new run is drawn before its checkpoint, since a resumed run draws nothing.
    fn on_train_epoch_end(&mut self, _: &EpochRecord, control: &mut Control) -> CallbackResult {
        Ok(self.finish(control)?)
    }

    fn on_checkpoint(&mut self, saved: &Saved, control: &mut Control) -> CallbackResult {
        match saved.reason {
            SaveReason::Stop => Ok(self.finish(control)?),
            SaveReason::Step | SaveReason::EpochEnd(_) => Ok(()),
        }
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        // A run that ends in an error has reported it. After this returns, no thread writes to its folder. The thread ends:
        // it draws one chart and writes one file, as the run's own thread does all the time.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Writes a chart, whole or not at all.
fn write(staging: &Staging, path: &Path, svg: &str) -> Result<(), TrainError> {
    let written = staging.write_whole(path, |file| file.write_all(svg.as_bytes()));
    written.map_err(|error| RunError::from(error).into())
}

fn draw_sheet(size: usize, images: &[(Vec<u8>, String)]) -> Result<String, TrainError> {
    let labelled: Vec<_> =
        (images.iter()).map(|(pixels, label)| LabelledImage { width: size, height: size, pixels, label }).collect();
    Ok(image_sheet("augmented training images", &labelled)?)
}
