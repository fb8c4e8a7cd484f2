//! A trained model as an ONNX model, which says what its images and outputs are.

use enmasse_datasets::TaskKind;
use enmasse_export::{ExportError, ImageInput, Outputs, Weights, to_onnx, to_onnx_int8};
use enmasse_graph::{Builder, Forward, Mode};
use enmasse_onnx::Graph;
use serde_json::json;

use crate::{Classifier, ModelFn, TrainError};

impl Classifier {
    /// Its model with these weights in ONNX, from images of the run's size to what [`Classifier::predict`] computes of the outputs:
    /// the probabilities at the classifier's temperature, or numbers.
    ///
    /// # Errors
    /// The weights have no classifier or are not those of `model`, or an operation of it has no counterpart in ONNX.
    pub fn to_onnx(&self, model: &ModelFn, input: ImageInput) -> Result<Graph, TrainError> {
        self.translate(model, |forward, weights, outputs| to_onnx(&self.model, forward, weights, input, outputs))
    }

    /// The same with integers of 8 bits, by the ranges that [`Classifier::calibrate`] has found.
    ///
    /// # Errors
    /// As of [`Classifier::to_onnx`], or if the ranges are those of another model.
    pub fn to_onnx_int8(&self, model: &ModelFn, input: ImageInput, ranges: &[[f32; 2]]) -> Result<Graph, TrainError> {
        self.translate(model, |forward, weights, outputs| {
            to_onnx_int8(&self.model, forward, weights, input, outputs, ranges)
        })
    }

    fn translate(
        &self,
        model: &ModelFn,
        to_onnx: impl FnOnce(&Forward, &[Weights], &Outputs) -> Result<Graph, ExportError>,
    ) -> Result<Graph, TrainError> {
        self.require_classes()?;
        let options = self.options(1);
        let classes = self.classes.len();
        let builder = Builder::new(options.batch, options.size, Mode::Evaluate, options.seed);
        let logits = model(builder.pixels(&options.mean, &options.std), classes);
        let forward = builder.finish(&logits, classes)?;
        let weights: Vec<Weights> = (self.tensors.iter())
            .map(|tensor| Weights { name: &tensor.name, shape: &tensor.shape, values: &tensor.values })
            .collect();
        let temperature = self.temperature;
        let outputs = match (self.kind(), self.task.statistics()) {
            (TaskKind::Classification, _) => Outputs::Softmax { temperature },
            (TaskKind::MultiLabel, _) => Outputs::Sigmoid { temperature },
            (TaskKind::Regression, Some(statistics)) => {
                Outputs::Values { mean: statistics.mean.clone(), std: statistics.std.clone() }
            }
            (TaskKind::Regression, None) => Outputs::Values { mean: vec![0.0; classes], std: vec![1.0; classes] },
        };
        Ok(to_onnx(&forward, &weights, &outputs)?)
    }

    /// What a program needs to know of [`Classifier::to_onnx`], by name: words as they are, everything else as JSON.
    pub fn onnx_metadata(&self, input: ImageInput) -> Vec<(String, String)> {
        let (transform, train) = (&self.transform, &self.configuration.train);
        let mut metadata = vec![
            ("task", self.kind().name().to_owned()),
            ("model", self.model.clone()),
            ("classes", json!(self.classes).to_string()),
            ("input", input.name().to_owned()),
            ("size", transform.size.to_string()),
            ("channels", self.normalization.mean.len().to_string()),
            ("resize", transform.resize.to_string()),
            ("crop", transform.size.to_string()),
            ("interpolation", transform.resampling.name().to_owned()),
            ("antialias", true.to_string()),
            ("exif_transpose", train.exif_transpose.to_string()),
            ("mean", format!("{:?}", self.normalization.mean)),
            ("std", format!("{:?}", self.normalization.std)),
        ];
        if self.kind() != TaskKind::Regression {
            metadata.push(("temperature", self.temperature.to_string()));
        }
        if !self.thresholds.is_empty() {
            metadata.push(("thresholds", json!(self.thresholds).to_string()));
        }
        metadata.extend(train.weights_origin.clone().map(|origin| ("weights_origin", origin)));
        metadata.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
