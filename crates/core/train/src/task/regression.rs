//! One or several numbers of each image.

use enmasse_graph::{Loss, PerSample, TargetKind, Tensor, losses};

use serde::{Deserialize, Serialize};

use super::{Task, TaskFigure};
use crate::metrics::RegressionFigures;
use crate::{Direction, TrainConfig};

/// One or several numbers of each image ([`enmasse_data::Dataset::targets`]). A model learns them with a mean of 0 and a std of 1 over the
/// training images, whatever their units, and a loss is of these. A prediction is in the target's units. The best epoch is that of the
/// lowest validation loss.
#[derive(Clone, Debug)]
pub struct Regression {
    names: Vec<String>,
    loss: RegressionLoss,
    statistics: TargetStatistics,
}

/// The loss of [`Regression`], whose targets have a std of 1: the mean over outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RegressionLoss {
    /// The squared error (PyTorch's `MSELoss`).
    #[default]
    Squared,
    /// The absolute error (PyTorch's `L1Loss`).
    Absolute,
    /// Half the squared error up to this one, and straight from there (PyTorch's `HuberLoss`).
    Huber(f32),
}

/// The mean and the std of each number over the training images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetStatistics {
    /// The means.
    pub mean: Vec<f64>,
    /// The stds, of which none is 0.
    pub std: Vec<f64>,
}

impl TargetStatistics {
    /// Those of rows of `outputs` numbers. A number that is always the same has the std 1. `None` without a row, or if a number is not
    /// finite.
    pub fn of<'a>(rows: impl Iterator<Item = &'a [f32]> + Clone, outputs: usize) -> Option<Self> {
        let count = rows.clone().count() as f64;
        let mean_of = |function: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
            let mut sums = vec![0.0; outputs];
            for row in rows.clone() {
                sums.iter_mut().zip(row).enumerate().for_each(|(at, (sum, &value))| *sum += function(at, value.into()));
            }
            sums.into_iter().map(|sum| sum / count).collect()
        };
        let mean = mean_of(&|_, value| value);
        let variance = mean_of(&|at, value| (value - mean[at]).powi(2));
        let std = variance.into_iter().map(|variance| if variance == 0.0 { 1.0 } else { variance.sqrt() });
        let found = TargetStatistics { std: std.collect(), mean };
        found.mean.iter().chain(&found.std).all(|value| value.is_finite()).then_some(found)
    }
}

impl Regression {
    /// Numbers of these names, with their statistics over the training images.
    pub fn new(names: &[String], loss: RegressionLoss, statistics: TargetStatistics) -> Self {
        Regression { names: names.to_owned(), loss, statistics }
    }
}

impl Task for Regression {
    fn target(&self) -> TargetKind {
        TargetKind::Values(self.names.len())
    }

    fn outputs(&self) -> usize {
        self.names.len()
    }

    fn loss(&self, _: &TrainConfig) -> Loss {
        let loss = self.loss;
        let narrow = |values: &[f64]| -> Vec<f32> { values.iter().map(|&value| value as f32).collect() };
        let [mean, std] = [&self.statistics.mean, &self.statistics.std].map(|values| narrow(values));
        Loss::Custom(PerSample::new(move |outputs: Tensor, targets: Tensor| {
            let targets = losses::standardize(targets, &mean, &std);
            match loss {
                RegressionLoss::Squared => losses::squared_error(outputs, targets),
                RegressionLoss::Absolute => losses::absolute_error(outputs, targets),
                RegressionLoss::Huber(delta) => losses::huber(outputs, targets, delta),
            }
        }))
    }

    fn figures(&self) -> &'static [TaskFigure] {
        &[
            TaskFigure { name: "r2", direction: Direction::Higher },
            TaskFigure { name: "mae", direction: Direction::Lower },
            TaskFigure { name: "rmse", direction: Direction::Lower },
        ]
    }

    fn measure(&self, outputs: &[f64], targets: &[f32]) -> Vec<f64> {
        let predictions: Vec<f64> =
            outputs.chunks_exact(self.names.len().max(1)).flat_map(|row| self.decode(row)).collect();
        let found = RegressionFigures::of(&predictions, targets, self.names.len());
        [found.r2, found.mae, found.rmse].map(|figure| figure.unwrap_or(f64::NAN)).to_vec()
    }

    fn classes(&self) -> &[String] {
        &self.names
    }

    fn statistics(&self) -> Option<&TargetStatistics> {
        Some(&self.statistics)
    }

    /// The outputs in the units of the targets.
    fn decode(&self, outputs: &[f64]) -> Vec<f64> {
        let TargetStatistics { mean, std } = &self.statistics;
        outputs.iter().zip(mean.iter().zip(std)).map(|(output, (mean, std))| output * std + mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[[f32; 3]]) -> Option<TargetStatistics> {
        TargetStatistics::of(rows.iter().map(|row| &row[..]), 3)
    }

    #[test]
    fn outputs_are_in_the_units_of_targets() {
        let statistics = of(&[[1.0, 2000.0, 5.0], [3.0, 2008.0, 5.0]]).unwrap();
        assert_eq!(statistics, TargetStatistics { mean: vec![2.0, 2004.0, 5.0], std: vec![1.0, 4.0, 1.0] });
        let task = Regression::new(&["a", "b", "c"].map(str::to_owned), RegressionLoss::default(), statistics);
        assert_eq!(task.decode(&[0.0, 0.5, -1.0]), [2.0, 2006.0, 4.0]);
        assert_eq!((task.outputs(), task.target(), task.classes().len()), (3, TargetKind::Values(3), 3));
    }

    #[test]
    fn numbers_that_are_not_finite_have_no_statistics() {
        assert_eq!(of(&[]), None);
        for wrong in [f32::NAN, f32::INFINITY] {
            assert_eq!(of(&[[1.0, 2.0, 3.0], [1.0, wrong, 3.0]]), None);
        }
    }
}
