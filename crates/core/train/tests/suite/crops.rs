//! Evaluation and prediction by several crops of each image.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::fit::{config, cpu, fit, net};
use enmasse_data::{BadSample, DataError, Dataset, DecodePool, EvalLoader, Locality, Sharding};
use enmasse_datasets::DataKind;
use enmasse_image::{EvalCrop, Image, ImageRegion, ReadOptions, RegionRequest};
use enmasse_train::{Classifier, EpochPosition, Evaluation, Images, Prediction, Preparation, evaluate};

/// Images whose corners differ. Those that are `damaged` cannot be read in their last row.
struct Slopes {
    numbers: Vec<usize>,
    damaged: fn(usize) -> bool,
}

fn slopes(numbers: impl Iterator<Item = usize>, damaged: fn(usize) -> bool) -> Arc<dyn Dataset> {
    Arc::new(Slopes { numbers: numbers.collect(), damaged })
}

/// Those of which every crop can be read.
fn whole() -> Arc<dyn Dataset> {
    slopes(0..17, |_| false)
}

impl Dataset for Slopes {
    fn len(&self) -> usize {
        self.numbers.len()
    }
    fn label(&self, index: usize) -> usize {
        self.numbers[index] % 3
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        let number = self.numbers[index];
        let byte = |at: usize| (at * (number + 1) + at % 36 * 5) as u8;
        Ok(Image::new(12, 10, (0..360).map(byte).collect())?)
    }
    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Slopes {
    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        let part = wanted(12, 10).part;
        match (self.damaged)(self.numbers[index]) && part.top + part.height == 10 {
            true => Err(DataError::Image { name: self.name(index), problem: "it is cut off".to_owned() }),
            false => {
                let read = self.read(index)?;
                view.whole(|image| {
                    *image = read;
                    Ok(())
                })
            }
        }
    }
}

/// A run's model, which takes crops of the images.
fn classifier(out: &Path) -> Classifier {
    fit(config(out));
    let mut classifier = Classifier::open(out, None, &Preparation::new(&config(out), DataKind::Folder), &[]).unwrap();
    classifier.transform.resize = 10;
    classifier
}

/// Logarithms of probabilities are logits but for a number that is the same for all classes.
#[test]
fn images_are_evaluated_by_the_mean_of_the_logits_of_their_crops() {
    let folder = tempfile::tempdir().unwrap();
    let classifier = classifier(&folder.path().join("run"));
    let mut program = classifier.program(&net, cpu(2).as_ref(), 5).unwrap();
    let pool = DecodePool::new(1).unwrap();
    let loader = || EvalLoader::new(&pool, whole(), classifier.transform.clone(), Sharding::one(0, 1, 5));
    let mut logarithms = |crops: &[EvalCrop]| {
        let mut images = Images::new(ReadOptions::default());
        let mut rows = Vec::new();
        images.add_part(whole());
        let each = |found: Result<(usize, Prediction), &BadSample>| {
            let mut row = [0f64; 3];
            found.unwrap().1.top.iter().for_each(|guess| row[guess.index] = guess.probability.ln());
            rows.push(row);
            ControlFlow::Continue(())
        };
        classifier.predict_each(program.as_mut(), &pool, Arc::new(images), crops, 3, each).unwrap();
        rows
    };
    let several = |count| EvalCrop::several(count).unwrap();
    let ways = [several(1), several(5), several(10), EvalCrop::views("flip+shift").unwrap()];
    let mut losses = Vec::new();
    for crops in &ways {
        let mut means = vec![[0f64; 3]; 17];
        let whole: f64 = crops.iter().map(EvalCrop::weight).sum();
        for crop in crops {
            for (mean, row) in means.iter_mut().zip(logarithms(&[*crop])) {
                mean.iter_mut().zip(row).for_each(|(mean, log)| *mean += log * crop.weight() / whole);
            }
        }
        let difference = |row: &[f64; 3]| [row[1] - row[0], row[2] - row[0]];
        for (mean, together) in means.iter().zip(logarithms(crops)) {
            let pairs = difference(mean).into_iter().zip(difference(&together));
            assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) < 1e-9, "{mean:?} {together:?}");
        }
        let own = |index: usize| means[index][index % 3];
        let loss = |index: usize| means[index].iter().map(|log| (log - own(index)).exp()).sum::<f64>().ln() / 17.0;
        let top_k_correct = (0..17).filter(|&index| means[index].iter().all(|log| *log <= own(index))).count();
        losses.push(((0..17).map(loss).sum::<f64>(), top_k_correct));
    }
    for (crops, (loss, top_k_correct)) in ways.iter().zip(&losses) {
        let loader = loader().unwrap().cropped(crops).unwrap();
        let found = evaluate(program.as_mut(), &loader, 17, None, EpochPosition::default(), &mut ()).unwrap();
        // The loss of single crops is the plan's, whose logarithms are of 32 bits and differ with the kernels.
        let tolerance = if crops.len() == 1 { 1e-6 } else { 1e-9 };
        assert!((found.loss - loss).abs() < tolerance, "{} crops: {} for {loss}", crops.len(), found.loss);
        assert_eq!((found.accuracy, found.samples), (Some(*top_k_correct as f64 / 17.0), 17));
    }
    assert!(losses.windows(2).all(|pair| pair[0].0 != pair[1].0), "{losses:?}");
}

/// Regression test: crops that cannot be read were evaluated as black images, and only the first crop told of damage.
#[test]
fn an_image_counts_only_if_all_of_its_crops_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let classifier = classifier(&folder.path().join("run"));
    let mut program = classifier.program(&net, cpu(2).as_ref(), 5).unwrap();
    let pool = DecodePool::new(1).unwrap();
    let mut evaluate_part = |data: Arc<dyn Dataset>| {
        let total = data.len() as u64;
        let loader = EvalLoader::new(&pool, data, classifier.transform.clone(), Sharding::one(0, 1, 5)).unwrap();
        let loader = loader.skip_unreadable(true).cropped(&EvalCrop::several(5).unwrap()).unwrap();
        evaluate(program.as_mut(), &loader, total, None, EpochPosition::default(), &mut ()).unwrap()
    };
    let found = evaluate_part(slopes(0..17, |number| number % 4 == 0));
    assert_eq!((found.samples, found.unreadable), (12, 5));
    let whole = evaluate_part(slopes((0..17).filter(|number| number % 4 != 0), |_| false));
    assert!((found.loss - whole.loss).abs() < 1e-12 && found.accuracy == whole.accuracy, "{found:?} {whole:?}");
    let counts = |found: &Evaluation| found.confusion.clone().unwrap();
    assert!(counts(&found) == counts(&whole));
}
