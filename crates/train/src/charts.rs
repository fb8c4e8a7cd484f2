//! Pictures of the data in a run's folder: the tutorials' bar chart of classes and sheet of augmented pictures.

use enmasse_charts::{LabelledPicture, class_distribution, picture_sheet};
use enmasse_data::{Dataset, TrainLoader};

use crate::{TrainError, TrainingData};

/// Pictures on a sheet.
const SHEET: usize = 16;

/// How many samples of each class train and validate, as SVG.
pub fn draw_classes(data: &TrainingData) -> String {
    let count = |part: &dyn Dataset| {
        let mut counts = vec![0; data.classes.len()];
        for index in 0..part.len() {
            // A label beyond the classes is an error of the data set, which its first batch reports.
            if let Some(count) = counts.get_mut(part.label(index)) {
                *count += 1;
            }
        }
        counts
    };
    let (train, validation) = (count(data.train.as_ref()), count(data.validation.as_ref()));
    let classes = data.classes.iter().zip(train).zip(validation);
    let classes: Vec<_> = classes.map(|((name, train), validation)| (name.clone(), train, validation)).collect();
    class_distribution("class distribution", &classes)
}

/// The first pictures of the first epoch as the model sees them before normalising, as SVG.
pub fn draw_augmented(data: &TrainingData, loader: &TrainLoader, size: usize) -> Result<String, TrainError> {
    let mut pictures: Vec<(Vec<u8>, i32)> = Vec::with_capacity(SHEET);
    for batch in loader.epoch(0, 0) {
        let batch = batch?;
        let samples = batch.images.chunks_exact(size * size * 3).zip(&batch.labels).take(batch.valid);
        pictures.extend(samples.take(SHEET - pictures.len()).map(|(pixels, &label)| (pixels.to_vec(), label)));
        if pictures.len() == SHEET {
            break;
        }
    }
    let labelled: Vec<_> = (pictures.iter())
        .map(|(pixels, label)| {
            let label = usize::try_from(*label).ok().and_then(|label| data.classes.get(label));
            LabelledPicture { width: size, height: size, pixels, label: label.map_or("?", String::as_str) }
        })
        .collect();
    Ok(picture_sheet("augmented training pictures", &labelled)?)
}
