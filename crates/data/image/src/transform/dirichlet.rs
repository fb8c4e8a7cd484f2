//! Random weights with a sum of 1, by Dirichlet's distribution; two of them are Beta's.

use enmasse_tensor::RandomStream;

/// Fills `weights` by the distribution whose parameters are all `alpha`, above 0.
pub(crate) fn dirichlet(random: &mut RandomStream, alpha: f64, weights: &mut [f64]) {
    weights.iter_mut().for_each(|weight| *weight = log_gamma(random, alpha));
    // Of logarithms, since draws of a small parameter are often too small for a number.
    let largest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
}

/// The logarithm of a draw from the gamma distribution of shape `shape`.
///
/// Source: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000, with their step for shapes below 1.
fn log_gamma(random: &mut RandomStream, shape: f64) -> f64 {
    if shape < 1.0 {
        // 1 - unit is never 0.
        return log_gamma(random, shape + 1.0) + (1.0 - random.unit()).ln() / shape;
    }
    let d = shape - 1.0 / 3.0;
    loop {
        let x = random.normal();
        let v = (1.0 + x / (9.0 * d).sqrt()).powi(3);
        if v > 0.0 && (1.0 - random.unit()).ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
            return (d * v).ln();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1)); of n weights each has the mean 1/n.
    #[test]
    fn moments() {
        let count = 20_000;
        for alpha in [0.001, 0.2, 1.0, 8.0, 1e6] {
            let mut random = RandomStream::new(3, "test", 0, 0);
            let mut draw = || {
                let mut weights = [0.0; 2];
                dirichlet(&mut random, alpha, &mut weights);
                assert!(
                    (weights[0] + weights[1] - 1.0).abs() < 1e-12 && weights.iter().all(|w| (0.0..=1.0).contains(w))
                );
                weights[0]
            };
            let draws: Vec<f64> = (0..count).map(|_| draw()).collect();
            let mean = draws.iter().sum::<f64>() / count as f64;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count as f64;
            let expected = 0.25 / (2.0 * alpha + 1.0);
            assert!(
                (mean - 0.5).abs() < 0.02 && (variance / expected - 1.0).abs() < 0.05,
                "{alpha}: {mean} {variance}"
            );
        }
        let mut random = RandomStream::new(4, "test", 0, 0);
        let mut sums = [0.0; 5];
        for _ in 0..count {
            let mut weights = [0.0; 5];
            dirichlet(&mut random, 1.0, &mut weights);
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
        }
        assert!(sums.iter().all(|sum| (sum / count as f64 - 0.2).abs() < 0.01), "{sums:?}");
    }
}
