//! Several labels of each image, or none.

use enmasse_graph::losses::{self, Asymmetric};
use enmasse_graph::{Loss, PerSample, TargetKind, Tensor};

use super::{Task, TaskFigure};
use crate::metrics::{DEFAULT_THRESHOLD, LabelScores};
use crate::{Direction, Monitor, TrainConfig};

/// Which of some labels an image has. The targets of a sample are a number for each label, 1 if it is there and 0 if not
/// ([`enmasse_data::Dataset::targets`]). The best epoch is that of the highest mean average precision of validation, and a prediction is a
/// probability for each label.
#[derive(Clone, Debug)]
pub struct MultiLabel {
    names: Vec<String>,
    loss: MultiLabelLoss,
}

/// The loss of [`MultiLabel`].
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MultiLabelLoss {
    /// Binary cross-entropy ([`losses::binary_cross_entropy`]).
    #[default]
    Binary,
    /// The same, with a factor for each label where it is there, such as [`positive_weights`].
    Weighted(Vec<f32>),
    /// The focal loss ([`losses::sigmoid_focal`]).
    Focal {
        /// The factor of what is there; what is not has `1 - alpha`. Without it both have 1.
        alpha: Option<f32>,
        /// What a model is sure of counts the less the larger it is.
        gamma: f32,
    },
    /// The asymmetric loss ([`losses::asymmetric`]).
    Asymmetric(Asymmetric),
}

impl MultiLabel {
    /// Labels of these names.
    pub fn new(names: &[String], loss: MultiLabelLoss) -> Self {
        MultiLabel { names: names.to_owned(), loss }
    }
}

impl Task for MultiLabel {
    fn target(&self) -> TargetKind {
        TargetKind::Values(self.names.len())
    }

    fn outputs(&self) -> usize {
        self.names.len()
    }

    /// With label smoothing a label that is there is `1 - smoothing / 2`, and one that is not `smoothing / 2`, as in YOLO.
    fn loss(&self, config: &TrainConfig) -> Loss {
        let loss = self.loss.clone();
        let smoothing = config.label_smoothing as f32;
        Loss::Custom(PerSample::new(move |x: Tensor, y: Tensor| {
            let y = if smoothing == 0.0 { y } else { y.affine(1.0 - smoothing, smoothing / 2.0) };
            match &loss {
                MultiLabelLoss::Binary => losses::binary_cross_entropy(x, y, None),
                MultiLabelLoss::Weighted(weights) => losses::binary_cross_entropy(x, y, Some(weights)),
                MultiLabelLoss::Focal { alpha, gamma } => losses::sigmoid_focal(x, y, *alpha, *gamma),
                MultiLabelLoss::Asymmetric(settings) => losses::asymmetric(x, y, *settings),
            }
        }))
    }

    fn unites_targets(&self) -> bool {
        true
    }

    fn figures(&self) -> &'static [TaskFigure] {
        const HIGHER: Direction = Direction::Higher;
        &[
            TaskFigure { name: "map", direction: HIGHER },
            TaskFigure { name: "macro_f1", direction: HIGHER },
            TaskFigure { name: "micro_f1", direction: HIGHER },
        ]
    }

    fn measure(&self, outputs: &[f64], targets: &[f32]) -> Vec<f64> {
        let scores: Vec<f64> = outputs.iter().map(|output| sigmoid(*output)).collect();
        let labels = self.names.len();
        let found = LabelScores { scores: &scores, targets, labels }.figures(&vec![DEFAULT_THRESHOLD; labels]);
        vec![found.map.unwrap_or(f64::NAN), found.macro_f1.unwrap_or(f64::NAN), found.micro_f1]
    }

    fn monitor(&self) -> Monitor {
        Monitor::higher("val_map")
    }

    fn classes(&self) -> &[String] {
        &self.names
    }

    /// The sigmoid of each output.
    fn decode(&self, outputs: &[f64]) -> Vec<f64> {
        outputs.iter().map(|output| sigmoid(*output)).collect()
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Factors that make a label count as much where it is there as where it is not: images without it by images with it, as PyTorch's page on
/// `BCEWithLogitsLoss` advises. `present` has the number of images with each label. One that no image has, or that all
/// have, gets 1.
pub fn positive_weights(present: &[u64], images: u64) -> Vec<f32> {
    let weight =
        |&with: &u64| if with == 0 || with == images { 1.0 } else { images.saturating_sub(with) as f64 / with as f64 };
    present.iter().map(|with| weight(with) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_sigmoids() {
        let task = MultiLabel::new(&["a", "b", "c"].map(str::to_owned), MultiLabelLoss::default());
        assert_eq!(task.decode(&[0.0, 1000.0, -1000.0]), [0.5, 1.0, 0.0]);
        assert_eq!((task.outputs(), task.target(), task.classes().len()), (3, TargetKind::Values(3), 3));
    }

    #[test]
    fn a_label_that_is_rare_counts_more() {
        assert_eq!(positive_weights(&[100, 25, 50, 0], 100), [1.0, 3.0, 1.0, 1.0]);
    }
}
