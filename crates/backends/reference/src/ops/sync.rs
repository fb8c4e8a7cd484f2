//! Sums and statistics of a batch over all shards: SyncBatchNorm.

use enmasse_device::DeviceError;
use enmasse_graph::ops::{SyncStatistics, SyncSum};

use super::{OnReference, StepContext};
use crate::tree;

/// Count, mean and sum of squared deviations of a set of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// Number of values.
    pub count: f64,
    /// Their mean.
    pub mean: f64,
    /// Sum of squared deviations from the mean.
    pub m2: f64,
}

impl Moments {
    /// The moments of the union of both sets.
    ///
    /// Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    /// variances", 1979.
    pub fn combine(self, other: Moments) -> Moments {
        let count = self.count + other.count;
        let delta = other.mean - self.mean;
        Moments {
            count,
            mean: self.mean + delta * other.count / count,
            m2: self.m2 + other.m2 + delta * delta * self.count * other.count / count,
        }
    }
}

/// Mean and biased variance per channel over all shards, from those of each shard, which cover `count` values.
pub fn statistics(means: &[Vec<f64>], variances: &[Vec<f64>], count: usize) -> (Vec<f64>, Vec<f64>) {
    let count = count as f64;
    let channels = means.first().map_or(0, Vec::len);
    let channel = |c: usize| {
        let shard =
            |(mean, variance): (&Vec<f64>, &Vec<f64>)| Moments { count, mean: mean[c], m2: variance[c] * count };
        let shards: Vec<Moments> = means.iter().zip(variances).map(shard).collect();
        tree::reduce(&shards, &Moments::combine).map_or((0.0, 0.0), |all| (all.mean, all.m2 / all.count))
    };
    (0..channels).map(channel).unzip()
}

impl OnReference for SyncStatistics {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let (mean, variance) = statistics(&step.gather(0)?, &step.gather(1)?, self.count);
        step.scatter(&[mean, variance])
    }
}

impl OnReference for SyncSum {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let sums = [tree::sum(&step.gather(0)?), tree::sum(&step.gather(1)?)];
        step.scatter(&sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chan_by_hand() {
        // {1, 3} and {5, 9}: mean 4.5, squared deviations 12.25 + 2.25 + 0.25 + 20.25 = 35.
        let a = Moments { count: 2.0, mean: 2.0, m2: 2.0 };
        let b = Moments { count: 2.0, mean: 7.0, m2: 8.0 };
        assert_eq!(a.combine(b), Moments { count: 4.0, mean: 4.5, m2: 35.0 });
        let (mean, variance) = statistics(&[vec![2.0], vec![7.0]], &[vec![1.0], vec![4.0]], 2);
        assert_eq!((mean, variance), (vec![4.5], vec![8.75]));
    }

    #[test]
    fn combined_statistics_equal_those_of_all_values() {
        for shards in 1..=7 {
            let value = |i: usize| ((i * 37 % 101) as f64).sin() * 3.0 + 100.0;
            let moments = |values: &[f64]| {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64)
            };
            let values: Vec<f64> = (0..shards * 4).map(value).collect();
            let (means, variances): (Vec<_>, Vec<_>) =
                values.chunks(4).map(moments).map(|(mean, variance)| (vec![mean], vec![variance])).unzip();
            let (mean, variance) = statistics(&means, &variances, 4);
            let (expected_mean, expected_variance) = moments(&values);
            assert!((mean[0] - expected_mean).abs() < 1e-12 * 100.0, "{shards} shards");
            assert!((variance[0] - expected_variance).abs() < 1e-11, "{shards} shards");
        }
    }
}
