//! Figures of predicted numbers.

use serde::Serialize;

use super::mean;

/// The figures of one output, in the units of its targets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputFigures {
    /// The coefficient of determination: 1 less the squared errors by those of the targets' mean. `None`, and `null` in JSON, if all targets
    /// are equal, for which scikit-learn takes 1 or 0.
    pub r2: Option<f64>,
    /// The mean absolute error.
    pub mae: f64,
    /// The root of the mean squared error.
    pub rmse: f64,
}

/// The figures of all outputs. Means are over outputs, and `None`, and `null` in JSON, without a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegressionFigures {
    /// The mean of R² over the outputs whose targets differ.
    pub r2: Option<f64>,
    /// The mean of the mean absolute errors.
    pub mae: Option<f64>,
    /// The mean of the roots of the mean squared errors.
    pub rmse: Option<f64>,
    /// The figures of each output; of none without a sample.
    pub per_output: Vec<OutputFigures>,
}

impl RegressionFigures {
    /// Those of predictions and targets, which both have a row for each sample with a number for each output.
    pub fn of(predictions: &[f64], targets: &[f32], outputs: usize) -> Self {
        let column = |output: usize| {
            let pairs = predictions.iter().zip(targets.iter().map(|&target| f64::from(target)));
            pairs.skip(output).step_by(outputs.max(1))
        };
        let per_output: Vec<OutputFigures> = (0..outputs).filter_map(|output| of_output(|| column(output))).collect();
        RegressionFigures {
            r2: mean(per_output.iter().map(|output| output.r2)),
            mae: mean(per_output.iter().map(|output| Some(output.mae))),
            rmse: mean(per_output.iter().map(|output| Some(output.rmse))),
            per_output,
        }
    }
}

/// The figures of pairs of a prediction and a target; `None` without a pair.
fn of_output<'a, I: Iterator<Item = (&'a f64, f64)>>(pairs: impl Fn() -> I) -> Option<OutputFigures> {
    let mean = |function: &dyn Fn(f64, f64) -> f64| {
        let values = pairs().map(|(prediction, target)| Some(function(*prediction, target)));
        super::mean(values)
    };
    let centre = mean(&|_, target| target)?;
    let error = mean(&|prediction, target| (prediction - target).powi(2))?;
    let variance = mean(&|_, target| (target - centre).powi(2))?;
    let first = pairs().next()?.1;
    let differs = pairs().any(|(_, target)| target != first);
    Some(OutputFigures {
        r2: differs.then(|| 1.0 - error / variance),
        mae: mean(&|prediction, target| (prediction - target).abs())?,
        rmse: error.sqrt(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn figures_are_scikit_learns() {
        let fixture: Value = serde_json::from_str(include_str!("../../../../../fixtures/task_scores.json")).unwrap();
        let fixture = &fixture["regression"];
        let numbers = |value: &Value| -> Vec<f64> {
            value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
        };
        let targets: Vec<f32> = numbers(&fixture["targets"]).into_iter().map(|value| value as f32).collect();
        let found = RegressionFigures::of(&numbers(&fixture["predictions"]), &targets, 3);
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found} {expected}")
        };
        for (name, value) in [("r2", found.r2), ("mae", found.mae), ("rmse", found.rmse)] {
            near(value.unwrap(), fixture[name].as_f64().unwrap());
        }
        for (at, output) in found.per_output.iter().enumerate() {
            for (name, value) in [("r2", output.r2.unwrap()), ("mae", output.mae), ("rmse", output.rmse)] {
                near(value, numbers(&fixture[format!("{name}_each")])[at]);
            }
        }
        assert_eq!(found.per_output.len(), 3);
    }

    #[test]
    fn targets_that_are_all_equal_have_no_r2() {
        // Their mean in f64 is not the number itself.
        let targets = [0.1, 1.0, 0.1, 3.0, 0.1, 2.0];
        let found = RegressionFigures::of(&[0.1, 1.0, 0.2, 3.0, 0.1, 2.0], &targets, 2);
        assert_eq!((found.per_output[0].r2, found.per_output[1].r2, found.r2), (None, Some(1.0), Some(1.0)));
        let none = RegressionFigures { r2: None, mae: None, rmse: None, per_output: Vec::new() };
        assert_eq!(RegressionFigures::of(&[], &[], 2), none);
    }
}
