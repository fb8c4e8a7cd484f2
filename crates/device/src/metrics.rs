//! What a step measures, and how it is read off the values of a plan.

use enmasse_comm::tree_fold;

/// What a step measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepMetrics {
    /// Training: mean loss over the global batch. Evaluation: sum of the losses of this program's samples.
    pub loss: f64,
    /// Training: hits in the global batch. Evaluation: hits among this program's samples.
    pub correct: u64,
    /// Training: whether any rank was asked to stop ([`crate::StepInputs::stop`]). It travels with the last bucket, and costs
    /// nothing.
    pub stop: bool,
}

/// Reads [`enmasse_graph::Plan::metrics`] of a plan with so many `shards`: each shard's loss, the hits, the shards asked to stop.
pub fn training_metrics(shards: usize, metrics: &dyn Fn(usize) -> f64) -> StepMetrics {
    let loss = tree_fold(shards, &mut |shard| metrics(shard), &mut |a, b| a + b).unwrap_or(0.0);
    StepMetrics { loss, correct: metrics(shards) as u64, stop: metrics(shards + 1) > 0.0 }
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
    use super::*;

    #[test]
    fn metrics_of_three_shards() {
        let check = |values: [f64; 5], expected: StepMetrics| {
            assert_eq!(training_metrics(3, &|at| values[at]), expected);
        };
        check([0.5, 0.25, 1.0, 7.0, 0.0], StepMetrics { loss: 1.75, correct: 7, stop: false });
        check([0.0, 0.0, 0.0, 0.0, 2.0], StepMetrics { loss: 0.0, correct: 0, stop: true });
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
