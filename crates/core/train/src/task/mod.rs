//! What a model learns to predict: the targets of samples, the loss, the metrics, and how its outputs are read.

mod classification;
mod multi_label;
mod of_data;
mod regression;

use std::fmt;

use enmasse_graph::{Loss, Metric, PerSample, TargetKind};

use crate::{Direction, Monitor, TrainConfig};

pub use classification::{Classification, balanced_weights, scaled_weights};
pub use multi_label::{MultiLabel, MultiLabelLoss, positive_weights};
pub(crate) use of_data::{of_data, of_run};
pub use regression::{Regression, RegressionLoss, TargetStatistics};

/// What a model learns to predict of an image. [`Classification`] is the default, and [`crate::Trainer::task`] takes another one, such as
/// [`MultiLabel`] or [`Regression`].
///
/// ```
/// use enmasse_graph::{Loss, PerSample, TargetKind, Tensor};
/// use enmasse_train::{Task, TrainConfig};
///
/// /// Two numbers of each image, such as a position, by their squared error.
/// #[derive(Debug)]
/// struct Position;
///
/// impl Task for Position {
///     fn target(&self) -> TargetKind {
///         TargetKind::Values(2)
///     }
///     fn outputs(&self) -> usize {
///         2
///     }
///     fn loss(&self, _: &TrainConfig) -> Loss {
///         let error = |x: Tensor, y: Tensor| (x + y.affine(-1.0, 0.0)).power(2.0).sum_classes();
///         Loss::Custom(PerSample::new(error))
///     }
/// }
/// ```
pub trait Task: fmt::Debug + Send + Sync {
    /// What the target of a sample is: its label, or values of the data set ([`enmasse_data::Dataset::targets`]). With values the
    /// record of an epoch has no accuracies.
    fn target(&self) -> TargetKind;

    /// How many numbers the model gives for a sample. The function of the model gets it.
    fn outputs(&self) -> usize;

    /// The loss that training minimises, unless [`crate::Trainer::loss`] replaces it.
    fn loss(&self, config: &TrainConfig) -> Loss;

    /// Metrics in addition to those of the configuration.
    fn metrics(&self) -> Vec<TaskMetric> {
        Vec::new()
    }

    /// Whether an image that is mixed of two (`--mixup`, `--cutmix`) has each value of both, the larger one: such as labels that are
    /// there. Otherwise it has the values in the shares of the images.
    fn unites_targets(&self) -> bool {
        false
    }

    /// Figures of an evaluation that are no means over samples, such as the mean average precision. Records have them as `val_NAME`.
    fn figures(&self) -> &'static [TaskFigure] {
        &[]
    }

    /// The values of [`Task::figures`], in their order, from the outputs and the targets of all samples, row by row. One that is
    /// not defined for these samples is not a number.
    fn measure(&self, _outputs: &[f64], _targets: &[f32]) -> Vec<f64> {
        Vec::new()
    }

    /// What decides which epoch is the best, unless [`TrainConfig::monitor`] or [`crate::Trainer::monitor`] says otherwise.
    fn monitor(&self) -> Monitor {
        Monitor::lower("val_loss")
    }

    /// By what outputs are scaled, for tasks whose outputs are: checkpoints keep it.
    fn statistics(&self) -> Option<&TargetStatistics> {
        None
    }

    /// Names of the classes, by label, or of the outputs, for the files and charts of a run; none where nothing has a name.
    fn classes(&self) -> &[String] {
        &[]
    }

    /// What [`crate::Trainer::predict`] makes of a sample's outputs.
    fn decode(&self, outputs: &[f64]) -> Vec<f64> {
        outputs.to_vec()
    }
}

/// A figure of a task that is no mean over samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskFigure {
    /// Its name: lower-case letters, digits and `_`.
    pub name: &'static str,
    /// Which values are better.
    pub direction: Direction,
}

/// A metric of a task: records have its mean over the samples of an epoch as `train_NAME` and `val_NAME`.
#[derive(Clone, Debug)]
pub struct TaskMetric {
    /// Its name: lower-case letters, digits and `_`.
    pub name: String,
    /// Which values are better.
    pub direction: Direction,
    /// Computes the value of each sample.
    pub function: PerSample,
}

impl From<TaskMetric> for Metric {
    fn from(TaskMetric { name, function, .. }: TaskMetric) -> Self {
        Metric::Custom { name, function }
    }
}
