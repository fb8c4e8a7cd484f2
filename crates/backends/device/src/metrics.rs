//! The metrics of a step, and how they are read from the values of a plan.

use enmasse_comm::tree_fold;
use enmasse_graph::{MAX_METRICS, Per, Plan, ValueId};

/// The metrics of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepMetrics {
    /// Training: mean loss over the global batch. Evaluation: sum of the losses of this program's samples.
    pub loss: f64,
    /// Training: correct samples in the global batch. Evaluation: correct samples among this program's samples. 0 where no classes
    /// are predicted.
    pub correct: u64,
    /// The metrics of [`Plan::measured`], in that order, followed by zeros. Per-sample metrics are sums: in training over the
    /// global batch, in evaluation over this program's samples.
    pub measured: [f64; MAX_METRICS],
    /// Training: whether any rank was asked to stop ([`crate::StepInputs::stop`]). The request travels with the last bucket,
    /// at no cost.
    pub stop: bool,
    /// Training: whether any rank was asked to save a checkpoint ([`crate::StepInputs::save`]). Travels in the same way.
    pub save: bool,
    /// Training with a scaled loss: what became of the step.
    pub loss_scale: Option<LossScale>,
}

/// What became of a step whose loss is scaled ([`enmasse_graph::ops::Unscale`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The scale of its loss.
    pub scale: f64,
    /// Whether it was skipped, because a gradient was not finite. It has changed nothing but running statistics and the scale.
    pub skipped: bool,
}

/// Computes the metrics of a step. `read` returns an element of a value. In training it reads the value of any shard after
/// the reduce phase; in evaluation it returns the sum over the shards that the program hosts.
pub fn step_metrics(plan: &Plan, read: &dyn Fn(ValueId, usize) -> f64) -> StepMetrics {
    let mut measured = [0.0; MAX_METRICS];
    let Some(metrics) = plan.metrics else {
        let values = plan.measured.iter().map(|metric| read(metric.value, 0));
        measured.iter_mut().zip(values).for_each(|(place, value)| *place = value);
        let loss = read(plan.loss, 0);
        let correct = plan.correct.map_or(0, |correct| read(correct, 0) as u64);
        return StepMetrics { loss, correct, measured, ..StepMetrics::default() };
    };
    // The elements are in the order of `ShareMetrics`.
    let loss = tree_fold(plan.shards, &mut |shard| read(metrics, shard), &mut |a, b| a + b).unwrap_or(0.0);
    let mut rest = (plan.shards..).map(|at| read(metrics, at));
    let mut next = || rest.next().unwrap_or(0.0);
    let correct = plan.correct.map_or(0, |_| next() as u64);
    for (place, metric) in measured.iter_mut().zip(&plan.measured) {
        *place = match metric.per {
            Per::Sample => next(),
            Per::Step => read(metric.value, 0),
        };
    }
    let unscaled = |value| LossScale { scale: read(value, 1), skipped: read(value, 0) == 0.0 };
    let loss_scale = plan.unscale().map(unscaled);
    StepMetrics { loss, correct, measured, stop: next() > 0.0, save: next() > 0.0, loss_scale }
}

/// The first shard whose loss is infinite or not a number, with that loss.
pub fn first_non_finite(mut losses: impl Iterator<Item = f64>) -> Option<(usize, f64)> {
    let mut last = 0.0;
    let shard = losses.position(|loss| {
        last = loss;
        !loss.is_finite()
    })?;
    Some((shard, last))
}

#[cfg(test)]
mod tests {
    use enmasse_graph::{CompileOptions, Metric, PerSample, Plans, Precision, Tensor, compile};

    use super::*;

    /// Plans of three shards with a per-sample metric, one of the whole step, and another per-sample metric.
    fn plans() -> Plans {
        let sum = |logits: Tensor, _| logits.sum_classes();
        let own = |name: &str| Metric::Custom { name: name.into(), function: PerSample::new(sum) };
        let metrics = vec![own("a"), Metric::GradientNorm, own("b")];
        let options = CompileOptions { shards: 3, metrics, ..CompileOptions::new("net", 2, 4, 10) };
        compile(&|x: Tensor| x.flatten().linear("fc", 10), &options).unwrap()
    }

    #[test]
    fn training_of_three_shards() {
        let plan = plans().train.unwrap();
        let norm = plan.gradient_norm().unwrap();
        let check = |values: [f64; 8], expected: StepMetrics| {
            let read = |id, at: usize| if id == norm { 0.125 } else { values[at] };
            assert_eq!(step_metrics(&plan, &read), expected);
        };
        let measured = |a, b| [a, 0.125, b, 0.0, 0.0, 0.0, 0.0, 0.0];
        let expected = StepMetrics { loss: 1.75, correct: 7, measured: measured(5.0, 6.0), ..StepMetrics::default() };
        check([0.5, 0.25, 1.0, 7.0, 5.0, 6.0, 0.0, 0.0], expected);
        let expected = StepMetrics { measured: measured(0.0, 0.0), stop: true, ..StepMetrics::default() };
        check([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0], expected);
        check([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], StepMetrics { stop: false, save: true, ..expected });
    }

    #[test]
    fn a_scaled_loss() {
        let options = CompileOptions { precision: Precision::F16, ..CompileOptions::new("net", 2, 4, 10) };
        let plan = compile(&|x: Tensor| x.flatten().linear("fc", 10), &options).unwrap().train.unwrap();
        let unscale = plan.unscale().unwrap();
        let check = |values: [f64; 2], expected: LossScale| {
            let read = |id, at: usize| if id == unscale { values[at] } else { 0.0 };
            assert_eq!(step_metrics(&plan, &read).loss_scale, Some(expected));
        };
        check([0.125, 8.0], LossScale { scale: 8.0, skipped: false });
        check([0.0, 4.0], LossScale { scale: 4.0, skipped: true });
    }

    #[test]
    fn evaluation_has_the_per_sample_metrics() {
        let plan = plans().evaluate;
        let places = [plan.loss, plan.correct.unwrap(), plan.measured[0].value, plan.measured[1].value];
        let read = |id, _: usize| [1.5, 3.0, 5.0, 6.0][places.iter().position(|place| *place == id).unwrap()];
        let measured = [5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let expected = StepMetrics { loss: 1.5, correct: 3, measured, ..StepMetrics::default() };
        assert_eq!(step_metrics(&plan, &read), expected);
    }

    #[test]
    fn the_first_loss_that_is_not_finite() {
        let check = |losses: &[f64], expected: Option<(usize, f64)>| {
            assert_eq!(first_non_finite(losses.iter().copied()), expected);
        };
        check(&[1.0, 2.0], None);
        check(&[1.0, f64::INFINITY, f64::NEG_INFINITY], Some((1, f64::INFINITY)));
        assert!(first_non_finite([f64::NAN].into_iter()).is_some_and(|(shard, loss)| shard == 0 && loss.is_nan()));
    }
}
