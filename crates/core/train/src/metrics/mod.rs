//! Figures of predictions that are no means over samples: of several labels, and of numbers.
//!
//! They are functions of the scores and targets of all samples, row by row, in f64. Every rank has the rows of all, and the same figures.

mod labels;
mod regression;
mod thresholds;

pub use labels::{DEFAULT_THRESHOLD, LabelFigures, LabelScores, MultiLabelFigures};
pub use regression::{OutputFigures, RegressionFigures};

/// The mean of those that are known; `None` if none is.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (sum, count) = values.flatten().fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}
