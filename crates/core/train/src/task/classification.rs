//! One class of each image.

use enmasse_graph::{Loss, PerSample, TargetKind, Tensor, losses};

use super::Task;
use crate::tally::softmax;
use crate::{Monitor, TrainConfig};

/// The class of an image, by cross-entropy. The best epoch is that of the highest validation accuracy, and a prediction is a
/// probability for each class.
#[derive(Clone, Debug, Default)]
pub struct Classification {
    classes: Vec<String>,
    weights: Vec<f32>,
    gamma: Option<f32>,
}

impl Classification {
    /// Classification by these classes.
    pub fn new(classes: &[String]) -> Self {
        Classification { classes: classes.to_owned(), ..Classification::default() }
    }

    /// Weighs the loss of the images of each class in training, by the class's weight: [`balanced_weights`], or others of [`scaled_weights`].
    /// Validation compares all classes alike, unless the loss is focal.
    pub fn weights(self, weights: Vec<f32>) -> Self {
        Classification { weights, ..self }
    }

    /// The focal loss in place of cross-entropy: what a model is sure of counts little, the less the larger `gamma` is. It does not smooth
    /// labels.
    pub fn focal(self, gamma: f32) -> Self {
        Classification { gamma: Some(gamma), ..self }
    }
}

impl Task for Classification {
    fn target(&self) -> TargetKind {
        TargetKind::Class
    }

    fn outputs(&self) -> usize {
        self.classes.len()
    }

    fn loss(&self, config: &TrainConfig) -> Loss {
        let weights = self.weights.clone();
        let Some(gamma) = self.gamma else {
            return Loss::CrossEntropy { smoothing: config.label_smoothing as f32, weights };
        };
        Loss::Custom(PerSample::new(move |logits: Tensor, targets: Tensor| {
            let targets = if weights.is_empty() { targets } else { targets.scale_classes(&weights) };
            losses::softmax_focal(logits, targets, gamma)
        }))
    }

    fn monitor(&self) -> Monitor {
        Monitor::higher("val_accuracy")
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn decode(&self, outputs: &[f64]) -> Vec<f64> {
        softmax(outputs)
    }
}

/// Weights of classes that make all count alike in a loss: `images / (classes * images of the class)`, as scikit-learn's
/// `class_weight="balanced"`. Their mean over the images is 1. A class without images has the weight 0, and is not among the classes.
pub fn balanced_weights(images: &[u64]) -> Vec<f32> {
    let with_images = images.iter().filter(|&&count| count > 0).count();
    let all: u64 = images.iter().sum();
    let weight = |&count: &u64| if count == 0 { 0.0 } else { all as f64 / (with_images as f64 * count as f64) };
    images.iter().map(|count| weight(count) as f32).collect()
}

/// The same weights times a factor, so that their mean over the images is 1: then a rate of learning means the same as without weights, and
/// the loss equals in expectation that of PyTorch, which divides by the weights of a batch. `images` has the number of those of each class.
/// `None` if no image has a weight above 0.
pub fn scaled_weights(weights: &[f64], images: &[u64]) -> Option<Vec<f32>> {
    let all: u64 = images.iter().sum();
    let sum: f64 = weights.iter().zip(images).map(|(weight, &count)| weight * count as f64).sum();
    let factor = all as f64 / sum;
    (sum > 0.0 && factor.is_finite()).then(|| weights.iter().map(|weight| (weight * factor) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_the_mean_1_over_images() {
        // scikit-learn: compute_class_weight("balanced", classes=[0, 1, 2], y=[0] * 6 + [1] * 3 + [2]).
        assert_eq!(balanced_weights(&[6, 3, 1]), [0.555_555_6, 1.111_111_2, 3.333_333_3]);
        assert_eq!(balanced_weights(&[6, 0, 2]), [8.0 / 12.0, 0.0, 2.0]);
        assert_eq!(scaled_weights(&[1.0, 3.0], &[3, 1]), Some(vec![2.0 / 3.0, 2.0]));
        assert_eq!(scaled_weights(&[0.0, 3.0], &[3, 0]), None);
        let images = [7, 0, 5, 1];
        let weights = balanced_weights(&images);
        let again = scaled_weights(&weights.iter().map(|&weight| weight.into()).collect::<Vec<_>>(), &images).unwrap();
        assert!(again.iter().zip(&weights).all(|(a, b)| (a - b).abs() <= 1e-6 * b), "{again:?} {weights:?}");
    }
}
