//! The task that data have, as the settings of a run want it.

use std::sync::Arc;

use enmasse_data::Dataset;
use enmasse_datasets::TaskKind;
use enmasse_graph::losses::Asymmetric;

use super::{
    Classification, MultiLabel, MultiLabelLoss, Regression, RegressionLoss, TargetStatistics, Task, balanced_weights,
    positive_weights, scaled_weights,
};
use crate::config::{ClassWeights, LossKind};
use crate::{ConfigError, RunConfig, TrainConfig, TrainError, TrainingData};

/// The task of these data. Weights of classes and the statistics of numbers come from the training part. A setting that does not fit
/// the data is an error.
pub(crate) fn of_data(data: &TrainingData, config: &TrainConfig) -> Result<Arc<dyn Task>, TrainError> {
    let refuse = |name: &str, reason: String| -> TrainError {
        ConfigError::setting(&RunConfig { train: config.clone(), ..RunConfig::default() }, name, reason).into()
    };
    let other = |words: &str| refuse("loss", format!("is no loss of {}: use {words}", data.task));
    let images =
        || -> Vec<u64> { data.class_counts(data.train.as_ref()).into_iter().map(|count| count as u64).collect() };
    let own_weights = |path| ClassWeights::read(path, &data.classes).map_err(|reason| refuse("class_weights", reason));
    let gamma = config.focal_gamma as f32;
    match data.task {
        TaskKind::Classification => {
            if config.loss == Some(LossKind::Focal) && config.label_smoothing != 0.0 {
                return Err(refuse("label_smoothing", "the focal loss does not smooth labels: use 0".to_owned()));
            }
            let task = classification(&data.classes, config.loss, gamma);
            let task = task.ok_or_else(|| other("cross-entropy or focal"))?;
            Ok(Arc::new(match &config.class_weights {
                None => task,
                Some(ClassWeights::Balanced) => task.weights(balanced_weights(&images())),
                Some(ClassWeights::File(path)) => {
                    let scaled = scaled_weights(&own_weights(path)?, &images());
                    let none = || refuse("class_weights", "gives no training image a weight above 0".to_owned());
                    task.weights(scaled.ok_or_else(none)?)
                }
            }))
        }
        TaskKind::MultiLabel => {
            let loss = loss_of_labels(config.loss, gamma).ok_or_else(|| other("bce, focal or asymmetric"))?;
            let loss = match &config.class_weights {
                None => loss,
                Some(_) if loss != MultiLabelLoss::Binary => {
                    let reason = "are those of bce: this loss has its own; leave them out".to_owned();
                    return Err(refuse("class_weights", reason));
                }
                Some(ClassWeights::Balanced) => {
                    MultiLabelLoss::Weighted(positive_weights(&images(), data.train.len() as u64))
                }
                Some(ClassWeights::File(path)) => {
                    MultiLabelLoss::Weighted(own_weights(path)?.iter().map(|&weight| weight as f32).collect())
                }
            };
            Ok(Arc::new(MultiLabel::new(&data.classes, loss)))
        }
        TaskKind::Regression => {
            let loss = loss_of_numbers(config.loss, config.huber_delta as f32);
            let loss = loss.ok_or_else(|| other("mse, l1 or huber"))?;
            if config.class_weights.is_some() {
                return Err(refuse("class_weights", "numbers have no classes: leave it out".to_owned()));
            }
            let statistics = statistics(data.train.as_ref(), data.classes.len());
            let none = || refuse("task", "the numbers of the training images are not finite".to_owned());
            Ok(Arc::new(Regression::new(&data.classes, loss, statistics.ok_or_else(none)?)))
        }
    }
}

/// The task of a run that is used, not trained: with the run's loss, but without weights of classes.
pub(crate) fn of_run(
    kind: TaskKind,
    classes: &[String],
    statistics: Option<TargetStatistics>,
    config: &TrainConfig,
) -> Option<Arc<dyn Task>> {
    let gamma = config.focal_gamma as f32;
    Some(match kind {
        TaskKind::Classification => Arc::new(classification(classes, config.loss, gamma)?),
        TaskKind::MultiLabel => Arc::new(MultiLabel::new(classes, loss_of_labels(config.loss, gamma)?)),
        TaskKind::Regression => {
            let loss = loss_of_numbers(config.loss, config.huber_delta as f32)?;
            Arc::new(Regression::new(classes, loss, statistics?))
        }
    })
}

/// Classification by a loss, or by cross-entropy; `None` if it is no loss of classes.
fn classification(classes: &[String], loss: Option<LossKind>, gamma: f32) -> Option<Classification> {
    let task = Classification::new(classes);
    match loss {
        None | Some(LossKind::CrossEntropy) => Some(task),
        Some(LossKind::Focal) => Some(task.focal(gamma)),
        Some(_) => None,
    }
}

fn loss_of_labels(loss: Option<LossKind>, gamma: f32) -> Option<MultiLabelLoss> {
    match loss {
        None | Some(LossKind::Binary) => Some(MultiLabelLoss::Binary),
        Some(LossKind::Focal) => Some(MultiLabelLoss::Focal { alpha: None, gamma }),
        Some(LossKind::Asymmetric) => Some(MultiLabelLoss::Asymmetric(Asymmetric::default())),
        Some(_) => None,
    }
}

fn loss_of_numbers(loss: Option<LossKind>, delta: f32) -> Option<RegressionLoss> {
    match loss {
        None | Some(LossKind::Squared) => Some(RegressionLoss::Squared),
        Some(LossKind::Absolute) => Some(RegressionLoss::Absolute),
        Some(LossKind::Huber) => Some(RegressionLoss::Huber(delta)),
        Some(_) => None,
    }
}

fn statistics(images: &dyn Dataset, outputs: usize) -> Option<TargetStatistics> {
    let rows: Vec<Vec<f32>> = (0..images.len()).map(|index| images.targets(index)).collect();
    TargetStatistics::of(rows.iter().map(Vec::as_slice), outputs)
}
