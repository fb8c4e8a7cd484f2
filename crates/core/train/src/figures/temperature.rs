//! The temperature by which logits are divided so that probabilities are what they say: C. Guo et al., "On Calibration of Modern
//! Neural Networks", ICML 2017.

use super::{Probabilities, Row};

/// The inverses of temperatures that are looked at.
const INVERSES: [f64; 2] = [1e-3, 1e3];
/// A search ends when its next step would be smaller than this share of the value.
const ACCURACY: f64 = 1e-12;
/// Far more than either kind of step needs.
const MAX_STEPS: usize = 200;

impl Probabilities<'_> {
    /// The temperature with the least mean loss (negative log-likelihood) of these samples. `None` if there is none from 0.001 to
    /// 1000: without samples, of a model that is right about every image by any margin, and of one that is worse than chance.
    ///
    /// The loss is convex in the inverse temperature, so its slope has one root. Newton's steps find it, and a step that would leave the
    /// range where the root must be halves that range instead.
    pub fn fit_temperature(&self) -> Option<f64> {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.predicted().is_some() && row.is_possible()).collect();
        let slope = |inverse: f64| {
            rows.iter()
                .map(|row| row.slope(inverse))
                .fold((0.0, 0.0), |sum, of_row| (sum.0 + of_row.0, sum.1 + of_row.1))
        };
        let [mut low, mut high] = INVERSES;
        if slope(low).0 >= 0.0 || slope(high).0 <= 0.0 {
            return None;
        }
        let mut inverse = 1.0;
        for _ in 0..MAX_STEPS {
            let (first, second) = slope(inverse);
            if first < 0.0 {
                low = inverse;
            } else {
                high = inverse;
            }
            let newton = inverse - first / second;
            let next = if newton > low && newton < high { newton } else { (low + high) / 2.0 };
            let is_found = (next - inverse).abs() <= ACCURACY * inverse;
            inverse = next;
            if is_found {
                break;
            }
        }
        Some(1.0 / inverse)
    }
}

impl Row<'_> {
    /// Whether the sample's class has a probability above 0 at any temperature: otherwise its loss is infinite at every one.
    fn is_possible(&self) -> bool {
        self.logits[self.class].is_finite()
    }

    /// The first and the second derivative of the sample's loss by the inverse temperature: what the mean logit exceeds that of the
    /// class, and the variance of the logits, both by the probabilities.
    fn slope(&self, inverse: f64) -> (f64, f64) {
        let [mut total, mut mean, mut square] = [0.0; 3];
        for &logit in self.logits {
            let logit = f64::from(logit) - self.largest;
            let weight = (logit * inverse).exp();
            // Of a logit of minus infinity, too.
            if weight > 0.0 {
                total += weight;
                mean += weight * logit;
                square += weight * logit * logit;
            }
        }
        let mean = mean / total;
        let of_class = f64::from(self.logits[self.class]) - self.largest;
        (mean - of_class, (square / total - mean * mean).max(0.0))
    }
}
