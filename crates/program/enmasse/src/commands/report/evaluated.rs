//! The best weights of a run on its validation part: its figures, and the images that they get wrong or hardly know.

use std::path::Path;
use std::sync::Arc;

use enmasse_charts::{data_address, png};
use enmasse_data::{Dataset, DecodePool, EvalLoader, Sharding};
use enmasse_datasets::TaskKind;
use enmasse_image::{CropBox, Image, Resizer};
use enmasse_train::metrics::DEFAULT_THRESHOLD;
use enmasse_train::{
    EpochPosition, Evaluation, Explainer, Kept, RunConfig, Scored, Scores, Task, evaluate_keeping, softmax,
};

use super::open_run::OpenRun;
use crate::commands::data::targets::in_words;
use crate::commands::eval::figures::Figures;
use crate::commands::eval::images::Found;
use crate::commands::eval::values::{Row, rows_of};
use crate::commands::weights::Weights;
use crate::failure::Failure;
use crate::ranks::Rank;
use crate::report::{Audience, Reporter};

/// Longer sides of images are shown with so many pixels.
const SIDE: usize = 160;

/// The results of an evaluation.
pub struct Evaluated {
    /// The evaluated part, in words.
    pub part: &'static str,
    pub found: Evaluation,
    /// Those of classes; none where labels or numbers are predicted.
    pub figures: Option<Figures>,
    /// The figures of labels or of numbers; none of classes.
    pub values: Vec<Row>,
    /// The names of classes, labels or numbers.
    pub classes: Vec<String>,
    /// The most certain mistakes.
    pub mistakes: Vec<Shown>,
    /// Images of which the two likeliest classes are nearly as likely, and that are no mistakes.
    pub uncertain: Vec<Shown>,
    /// Others, evenly over the part.
    pub examples: Vec<Shown>,
    /// What is known of the data's faults.
    pub warnings: Vec<String>,
}

/// An image and what the model says of it.
pub struct Shown {
    pub name: String,
    /// Its class, its labels or its numbers.
    pub truth: String,
    pub predicted: String,
    /// The probability of the predicted class; none of labels and numbers.
    pub probability: Option<f64>,
    /// The image as an address that holds it; none if it cannot be read any more.
    pub image: Option<String>,
    /// Where in it the prediction comes from, likewise.
    pub heatmap: Option<String>,
}

/// Images of each kind that are shown, at most.
#[derive(Clone, Copy)]
pub struct Galleries {
    /// Mistakes, and the least certain ones.
    pub extremes: usize,
    pub examples: usize,
}

/// Evaluates a run on one device.
pub fn evaluate(run: &OpenRun, galleries: Galleries) -> Result<Evaluated, Failure> {
    run.weights.classifier.require_classes()?;
    let OpenRun { weights, config, root, .. } = run;
    let Found { part, data, classes, left_out, warnings, .. } = run.validation()?;
    let mut found = evaluate_on(weights, config, &data)?;
    let faults = (!left_out.is_empty()).then(|| left_out.to_string());
    let mut faults: Vec<String> = faults.into_iter().chain(warnings.iter().map(ToString::to_string)).collect();
    let task = weights.classifier.task.as_ref();
    let kind = weights.classifier.kind();
    let mut gallery = Gallery { root, data: data.as_ref(), classes: &classes, task, kind, explainer: None };
    if kind != TaskKind::Classification {
        let scores = found.scores.take();
        found.metrics.extend(scores.iter().flat_map(|scores| scores.figures(task, data.as_ref())));
        let examples = scores.as_ref().map(|scores| gallery.examples(scores, galleries.examples));
        let values = scores.map(|scores| rows_of(&scores, data.as_ref(), &classes, task, kind)).unwrap_or_default();
        return Ok(Evaluated {
            part: part.describe(),
            found,
            figures: None,
            values,
            mistakes: Vec::new(),
            uncertain: Vec::new(),
            examples: examples.unwrap_or_default(),
            warnings: faults,
            classes,
        });
    }
    let figures = Figures::of(&found, part);
    let forward = |x, classes| weights.model.forward(x, classes);
    let explainer = weights.classifier.explainer(&forward, Rank::alone().device(config)?.as_ref());
    faults.extend(explainer.as_ref().err().map(|reason| format!("there are no heatmaps: {reason}")));
    gallery.explainer = explainer.ok();
    let mistakes = found.mistakes.iter().flatten().take(galleries.extremes);
    let mistakes: Vec<Shown> =
        mistakes.map(|mistake| gallery.of_class(mistake.index, mistake.predicted, mistake.probability)).collect();
    let uncertain = found.scores.iter().flat_map(|scores| least_certain(scores, galleries.extremes));
    let uncertain: Vec<Shown> =
        uncertain.map(|(index, label, probability)| gallery.of_class(index, Some(label), probability)).collect();
    let examples = found.scores.as_ref().map(|scores| gallery.examples(scores, galleries.examples));
    Ok(Evaluated {
        part: part.describe(),
        mistakes,
        uncertain,
        examples: examples.unwrap_or_default(),
        figures: Some(figures),
        values: Vec::new(),
        warnings: faults,
        classes,
        found,
    })
}

fn evaluate_on(weights: &Weights, config: &RunConfig, data: &Arc<dyn Dataset>) -> Result<Evaluation, Failure> {
    let rank = Rank::alone();
    let device = rank.device(config)?;
    let batch = config.train.batch_per_shard(1).min(data.len().max(1));
    let forward = |x, classes| weights.model.forward(x, classes);
    let mut program = weights.classifier.program(&forward, device.as_ref(), batch)?;
    let pool = DecodePool::new(rank.loader_threads(&config.train)).map_err(Failure::error)?;
    let transform = weights.classifier.transform.clone();
    let loader = EvalLoader::new(&pool, data.clone(), transform, Sharding::one(0, 1, batch)).map_err(Failure::error)?;
    let loader = loader.skip_unreadable(true).with_targets(weights.classifier.task.target().values());
    let kept = Kept { mistakes: true, scores: true };
    let mut nobody = Reporter::new(Audience::Nobody);
    let position = EpochPosition::default();
    Ok(evaluate_keeping(program.as_mut(), &loader, data.len() as u64, None, position, kept, &mut nobody)?)
}

/// The samples that are predicted well, the least certain first: number, label, probability.
fn least_certain(scores: &Scores, limit: usize) -> Vec<(usize, usize, f64)> {
    let mut found: Vec<(f64, (usize, usize, f64))> = scores
        .samples()
        .filter_map(|sample| {
            let logits: Vec<f64> = sample.logits.iter().copied().map(f64::from).collect();
            let probabilities = softmax(&logits);
            let own = *probabilities.get(sample.label)?;
            let other = (0..).zip(&probabilities).filter(|(label, _)| *label != sample.label);
            let margin = own - other.map(|(_, value)| *value).fold(0.0, f64::max);
            (margin > 0.0).then_some((margin, (sample.index, sample.label, own)))
        })
        .collect();
    // Stable, so that equals keep the order of the data set.
    found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    found.into_iter().take(limit).map(|(_, sample)| sample).collect()
}

/// The images that are shown, by their numbers in the data set.
struct Gallery<'a> {
    root: &'a Path,
    data: &'a dyn Dataset,
    classes: &'a [String],
    task: &'a dyn Task,
    kind: TaskKind,
    /// None for models without a map to explain, and where no classes are predicted.
    explainer: Option<Explainer>,
}

impl Gallery<'_> {
    /// Some of the samples, evenly over them.
    fn examples(&mut self, scores: &Scores, limit: usize) -> Vec<Shown> {
        let samples: Vec<Scored> = scores.samples().collect();
        let count = samples.len().min(limit);
        (0..count).map(|place| self.example(&samples[place * samples.len() / count])).collect()
    }

    fn example(&mut self, sample: &Scored) -> Shown {
        let logits: Vec<f64> = sample.logits.iter().copied().map(f64::from).collect();
        let named = |values: Vec<f64>| -> Vec<f32> { values.into_iter().map(|value| value as f32).collect() };
        let predicted = match self.kind {
            TaskKind::Classification => {
                let probabilities = softmax(&logits);
                let likeliest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
                let probability = likeliest.map_or(f64::NAN, |label| probabilities[label]);
                return self.of_class(sample.index, likeliest, probability);
            }
            TaskKind::MultiLabel => {
                let is_predicted = |probability: f64| f64::from(u8::from(probability >= DEFAULT_THRESHOLD));
                named(self.task.decode(&logits).into_iter().map(is_predicted).collect())
            }
            TaskKind::Regression => named(self.task.decode(&logits)),
        };
        let predicted = in_words(self.kind, self.classes, &predicted);
        self.show(sample.index, predicted, None, None)
    }

    /// An image with a predicted class.
    fn of_class(&mut self, index: usize, predicted: Option<usize>, probability: f64) -> Shown {
        let explained = predicted.unwrap_or_else(|| self.data.label(index));
        let predicted = predicted.map_or_else(|| "nothing".to_owned(), |label| self.class(label));
        self.show(index, predicted, Some(probability), Some(explained))
    }

    fn class(&self, label: usize) -> String {
        self.classes.get(label).cloned().unwrap_or_else(|| label.to_string())
    }

    fn show(&mut self, index: usize, predicted: String, probability: Option<f64>, explained: Option<usize>) -> Shown {
        let name = short_name(self.data, index, self.root);
        let image = self.data.read(index).ok();
        let heatmap = image.as_ref().zip(explained).and_then(|(image, class)| self.heatmap(image, class));
        let image = image.as_ref().and_then(thumbnail).map(|png| data_address("image/png", &png));
        let truth = match self.kind {
            TaskKind::Classification => self.class(self.data.label(index)),
            _ => in_words(self.kind, self.classes, &self.data.targets(index)),
        };
        Shown { name, truth, predicted, probability, image, heatmap }
    }

    fn heatmap(&mut self, image: &Image, class: usize) -> Option<String> {
        let heatmap = self.explainer.as_mut()?.explain(image, class).ok()?.png().ok()?;
        Some(data_address("image/png", &heatmap))
    }
}

/// The name of an image: short where it is a file of the data at `root`, and nothing of this machine's folders.
pub fn short_name(data: &dyn Dataset, index: usize, root: &Path) -> String {
    let name = data.name(index);
    Path::new(&name).strip_prefix(root).map_or(name.clone(), |path| path.display().to_string())
}

/// A small form of an image as PNG.
pub fn thumbnail(image: &Image) -> Option<Vec<u8>> {
    let longest = image.width().max(image.height());
    let side = |pixels: usize| (pixels * SIDE.min(longest)).div_ceil(longest).max(1);
    let (width, height) = (side(image.width()), side(image.height()));
    let mut pixels = vec![0; width * height * 3];
    Resizer::new().resize(image, CropBox::whole(image.width(), image.height()), width, height, &mut pixels);
    png(width, height, &pixels).ok()
}
