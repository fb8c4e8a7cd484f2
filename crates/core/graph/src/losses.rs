//! The usual losses as functions of a model's outputs and the targets. Each gives a number for each sample.
//!
//! Those of several labels compare each output with a target from 0 to 1, so that targets of mixtures work. Their logits may be of any
//! size: nothing overflows, and what is nearly right keeps its gradient.
//!
//! ```
//! use enmasse_graph::{CompileOptions, Loss, PerSample, TargetKind, compile, losses};
//! let loss = PerSample::new(|logits, targets| losses::sigmoid_focal(logits, targets, Some(0.25), 2.0));
//! let (loss, target) = (Loss::Custom(loss), TargetKind::Values(5));
//! let options = CompileOptions { loss, target, ..CompileOptions::new("labels", 8, 16, 5) };
//! compile(&|x| x.flatten().linear("fc", 5), &options).unwrap();
//! ```

use crate::{Expression, Tensor};

/// Cross-entropy of the softmax with targets that are shares of classes: `-sum of t log p` (PyTorch's `CrossEntropyLoss`).
///
/// A weight for each class is a factor of its targets ([`Tensor::scale_classes`]).
pub fn cross_entropy(logits: Tensor, targets: Tensor) -> Tensor {
    (logits.log_softmax() * targets).sum_classes().affine(-1.0, 0.0)
}

/// The focal loss of one class: `-sum of t (1 - p)^gamma log p` for the probabilities `p` of the softmax. A weight for each class is a
/// factor of its targets.
///
/// Source: T.-Y. Lin, P. Goyal, R. Girshick, K. He, P. Dollar, "Focal loss for dense object detection", 2017 (arXiv:1708.02002).
pub fn softmax_focal(logits: Tensor, targets: Tensor, gamma: f32) -> Tensor {
    let [log_p, t] = Expression::operands();
    let focal = -(t * focus(&(1.0 - log_p.exp()), gamma) * &log_p);
    logits.log_softmax().pointwise(&focal, &[targets]).sum_classes()
}

/// Binary cross-entropy of each label: the mean over labels (PyTorch's `BCEWithLogitsLoss`). The part of a label that is there has the
/// factor of the label in `positive_weights` (`pos_weight`), if there are any.
pub fn binary_cross_entropy(logits: Tensor, targets: Tensor, positive_weights: Option<&[f32]>) -> Tensor {
    let [x, y, positive] = Expression::operands();
    let hit = (-&x).softplus();
    let miss = x.softplus();
    match positive_weights {
        None => logits.pointwise(&(&y * hit + (1.0 - &y) * miss), &[targets]),
        Some(weights) => {
            let weighted = targets.clone().scale_classes(weights);
            logits.pointwise(&(positive * hit + (1.0 - &y) * miss), &[targets, weighted])
        }
    }
    .mean_classes()
}

/// The focal loss of each label: the mean over labels (torchvision's `sigmoid_focal_loss`). With an `alpha` what is there has this factor,
/// and what is not `1 - alpha`.
///
/// Source: T.-Y. Lin, P. Goyal, R. Girshick, K. He, P. Dollar, "Focal loss for dense object detection", 2017 (arXiv:1708.02002).
pub fn sigmoid_focal(logits: Tensor, targets: Tensor, alpha: Option<f32>, gamma: f32) -> Tensor {
    let [x, y] = Expression::operands();
    let absent = 1.0 - &y;
    let entropy = &y * (-&x).softplus() + &absent * x.softplus();
    let wrong = &y * (-&x).sigmoid() + &absent * x.sigmoid();
    let focal = entropy * focus(&wrong, gamma);
    let focal = match alpha {
        None => focal,
        Some(alpha) => (alpha * &y + (1.0 - alpha) * &absent) * focal,
    };
    logits.pointwise(&focal, &[targets]).mean_classes()
}

/// The settings of [`asymmetric`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asymmetric {
    /// The exponent for labels that are there.
    pub gamma_positive: f32,
    /// The exponent for labels that are not.
    pub gamma_negative: f32,
    /// What is taken off the probability of a label that is not there, from 0 to below 1: below it there is no loss.
    pub clip: f32,
}

impl Default for Asymmetric {
    /// The paper's, as in timm: exponents 1 and 4, and 0.05 taken off.
    fn default() -> Self {
        Asymmetric { gamma_positive: 1.0, gamma_negative: 4.0, clip: 0.05 }
    }
}

/// The asymmetric loss of each label: the sum over labels (timm's `AsymmetricLossMultiLabel`, which divides by the samples alone).
///
/// With a target between 0 and 1 it is the mean of the losses of both, so weighted; there timm has an exponent between its two.
///
/// Source: T. Ridnik et al., "Asymmetric loss for multi-label classification", 2021 (arXiv:2009.14119).
pub fn asymmetric(logits: Tensor, targets: Tensor, settings: Asymmetric) -> Tensor {
    /// The smallest probability whose logarithm is taken, as in the paper's code and timm.
    const SMALLEST: f32 = 1e-8;
    let Asymmetric { gamma_positive, gamma_negative, clip } = settings;
    let [x, y] = Expression::operands();
    let p = x.sigmoid();
    let not_p = (-&x).sigmoid();
    let hit = focus(&not_p, gamma_positive) * p.maximum(SMALLEST).log();
    let shifted = (&not_p + clip).minimum(1.0);
    let miss = focus(&(&p - clip), gamma_negative) * shifted.maximum(SMALLEST).log();
    let loss = -(&y * hit + (1.0 - &y) * miss);
    logits.pointwise(&loss, &[targets]).sum_classes()
}

/// `(target - mean) / std` of each output, for targets whose outputs differ in size. There is one mean and one std for each output.
pub fn standardize(targets: Tensor, mean: &[f32], std: &[f32]) -> Tensor {
    let [negative, factors] =
        [mean.iter().map(|mean| -mean).collect(), std.iter().map(|std| 1.0 / std).collect()].map(|all: Vec<f32>| all);
    let ones = targets.clone().affine(0.0, 1.0);
    (targets + ones.scale_classes(&negative)).scale_classes(&factors)
}

/// The squared error: the mean over outputs (PyTorch's `MSELoss`).
pub fn squared_error(outputs: Tensor, targets: Tensor) -> Tensor {
    of_errors(outputs, targets, |error| error * error)
}

/// The absolute error: the mean over outputs (PyTorch's `L1Loss`).
pub fn absolute_error(outputs: Tensor, targets: Tensor) -> Tensor {
    of_errors(outputs, targets, |error| error.abs())
}

/// Half the squared error up to `delta`, and straight from there: the mean over outputs (PyTorch's `HuberLoss`).
pub fn huber(outputs: Tensor, targets: Tensor, delta: f32) -> Tensor {
    of_errors(outputs, targets, |error| {
        let size = error.abs();
        let far = delta * (&size - 0.5 * delta);
        Expression::where_above(&size, delta, far, 0.5 * error * error)
    })
}

/// The divergence of the softmax of logits divided by `temperature` from that of the teacher's, times the temperature's square, so that
/// gradients stay as large as those of other losses: `T^2 sum of p (log p - log q)` (PyTorch's `KLDivLoss`).
///
/// Source: G. Hinton, O. Vinyals, J. Dean, "Distilling the knowledge in a neural network", 2015 (arXiv:1503.02531).
pub fn distillation(logits: Tensor, teacher: Tensor, temperature: f32) -> Tensor {
    let [log_q, log_p] = Expression::operands();
    let divergence = log_p.exp() * (&log_p - log_q);
    let [logits, teacher] = [logits, teacher].map(|x| x.affine(1.0 / temperature, 0.0).log_softmax());
    logits.pointwise(&divergence, &[teacher]).sum_classes().affine(temperature * temperature, 0.0)
}

/// The same of several labels: binary cross-entropy of logits divided by `temperature` with the sigmoids of the teacher's as targets, times
/// the temperature's square.
pub fn sigmoid_distillation(logits: Tensor, teacher: Tensor, temperature: f32) -> Tensor {
    let [logits, teacher] = [logits, teacher].map(|x| x.affine(1.0 / temperature, 0.0));
    binary_cross_entropy(logits, teacher.sigmoid(), None).affine(temperature * temperature, 0.0)
}

fn of_errors(outputs: Tensor, targets: Tensor, function: impl Fn(&Expression) -> Expression) -> Tensor {
    let [x, y] = Expression::operands();
    outputs.pointwise(&function(&(x - y)), &[targets]).mean_classes()
}

/// `wrong^gamma`. Below the smallest number the gradient is 0: with a gamma below 1 it would be infinite at 0.
fn focus(wrong: &Expression, gamma: f32) -> Expression {
    Expression::from(f32::MIN_POSITIVE).maximum(wrong).power(gamma)
}
