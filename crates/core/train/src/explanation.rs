//! Where in an image a prediction comes from: a heatmap over what the model sees of the image.

use enmasse_charts::{LabelledImage, heatmap};
use enmasse_device::{Device, HostBatch, Program, StepInputs};
use enmasse_graph::{CompileOptions, HeatmapMethod, HeatmapPlans, Loss, Mode, Phase, TargetKind};
use enmasse_image::{EvalTransform, Image, Resizer};

use crate::{Classifier, ModelFn, TrainError};

/// How much each pixel of an image speaks for a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Heatmap {
    /// Pixels per row: those that the model sees.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// For each pixel, row by row, from 0 to 1, which the pixel that speaks most for the class has. All are 0 where none does.
    pub values: Vec<f32>,
    /// What the model sees of the image: RGB bytes, row by row.
    pub pixels: Vec<u8>,
    /// The label of the class.
    pub class: usize,
}

impl Heatmap {
    /// A PNG of the image, in grey, under the heatmap, which goes from dark blue to yellow.
    ///
    /// # Errors
    /// `pixels` or `values` are not those of an image of these dimensions.
    pub fn png(&self) -> Result<Vec<u8>, TrainError> {
        let &Heatmap { width, height, ref values, ref pixels, .. } = self;
        Ok(heatmap(&LabelledImage { width, height, pixels, label: "heatmap" }, values)?)
    }
}

/// A program that makes heatmaps, one image after another.
pub struct Explainer {
    program: Box<dyn Program>,
    grid: [usize; 2],
    method: HeatmapMethod,
    transform: EvalTransform,
    resizer: Resizer,
    classes: usize,
}

impl Classifier {
    /// A program with these weights that makes heatmaps, in f32. It holds the weights once more.
    ///
    /// # Errors
    /// The weights are not those of `model` or have no classifier, the model has neither convolutions nor attention, or
    /// the device has too little memory.
    pub fn explainer(&self, model: &ModelFn, device: &dyn Device) -> Result<Explainer, TrainError> {
        self.require_classes()?;
        let classes = self.classes.len();
        // What is explained is one output, whatever the task makes of it.
        let options = CompileOptions { target: TargetKind::Class, loss: Loss::default(), ..self.options(1) };
        let HeatmapPlans { plans, grid, method } =
            device.target().compile_heatmaps(&|x| model(x, classes), &options)?;
        let program = self.with_weights(plans, device)?;
        Ok(Explainer { program, grid, method, transform: self.transform.clone(), resizer: Resizer::default(), classes })
    }
}

impl Explainer {
    /// How its heatmaps come about.
    pub fn method(&self) -> HeatmapMethod {
        self.method
    }

    /// The heatmap of an image for a class, given by its label.
    ///
    /// # Errors
    /// The model has no such class, or the device fails.
    pub fn explain(&mut self, image: &Image, class: usize) -> Result<Heatmap, TrainError> {
        let label = i32::try_from(class).ok().filter(|_| class < self.classes);
        let Some(label) = label else {
            return Err(TrainError::Weights(format!("the model has {} classes, so none is {class}", self.classes)));
        };
        let size = self.transform.size;
        let mut pixels = vec![0; size * size * 3];
        self.transform.fit(image, &mut self.resizer, &mut pixels);
        let batch =
            HostBatch { images: pixels.clone(), labels: vec![label], sample_indices: vec![0], ..HostBatch::default() };
        let inputs = StepInputs::evaluation(batch.into());
        let ticket = self.program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs)?;
        self.program.metrics(ticket)?;
        let cells = self.program.store("logits")?;
        let values = scaled(&cells, self.grid, [size; 2]);
        Ok(Heatmap { width: size, height: size, values, pixels, class })
    }
}

/// The map over an image of `[height, width]`, from 0 to 1, as the package grad-cam makes it: without what is below 0, then bilinear.
fn scaled(cells: &[f64], grid: [usize; 2], [height, width]: [usize; 2]) -> Vec<f32> {
    let positive: Vec<f64> = cells.iter().map(|cell| cell.max(0.0)).collect();
    let cells = unit(positive);
    let [down, across] = [(height, grid[0]), (width, grid[1])].map(|(pixels, cells)| places(pixels, cells));
    let mut values = Vec::with_capacity(height * width);
    for &(above, below, share) in &down {
        let row = |row: usize| &cells[row * grid[1]..(row + 1) * grid[1]];
        let (above, below) = (row(above), row(below));
        values.extend(across.iter().map(|&(left, right, to_right)| {
            let on = |row: &[f64]| row[left] + (row[right] - row[left]) * to_right;
            on(above) + (on(below) - on(above)) * share
        }));
    }
    unit(values).into_iter().map(|value| value as f32).collect()
}

/// For each of `pixels` along a side, the cells before and after its middle, and the share of the latter.
fn places(pixels: usize, cells: usize) -> Vec<(usize, usize, f64)> {
    let place = |pixel: usize| {
        let middle = (pixel as f64 + 0.5) * cells as f64 / pixels as f64 - 0.5;
        let middle = middle.clamp(0.0, (cells - 1) as f64);
        let before = middle as usize;
        (before, (before + 1).min(cells - 1), middle - before as f64)
    };
    (0..pixels).map(place).collect()
}

/// The values from 0 to 1.
fn unit(values: Vec<f64>) -> Vec<f64> {
    // Equal values have no places that speak for a class.
    const TINY: f64 = 1e-7;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.into_iter().map(|value| (value - least) / (TINY + largest - least)).collect()
}

#[cfg(test)]
#[path = "explanation_tests.rs"]
mod tests;
