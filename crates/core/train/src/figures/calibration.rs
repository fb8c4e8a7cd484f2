//! Whether probabilities are what they say: of the images that a model is 80 % sure of, 80 % should be right.

use super::{Probabilities, Row};

/// Bins of the probability of the predicted class, of equal width.
const BINS: usize = 15;

/// Some samples that a model is about equally sure of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// How many they are.
    pub samples: u64,
    /// The mean probability of their predicted classes. 0 of none.
    pub confidence: f64,
    /// The share of them that were predicted well. 0 of none.
    pub accuracy: f64,
}

/// How far probabilities can be believed. Samples without probabilities do not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Samples by the probability of the predicted class, from 0 to 1 in 15 bins of equal width. A probability on a border belongs to the
    /// upper bin.
    pub bins: Vec<Bin>,
    /// The expected calibration error (Naeini et al. 2015, Guo et al. 2017): the mean of |accuracy - confidence| over bins, each with the
    /// weight of its samples. netcal's `ECE(15)`. NaN without samples.
    pub ece: f64,
    /// The Brier score: the mean over samples of the squared errors of all classes' probabilities, 0 to 2. NaN without samples.
    pub brier: f64,
}

impl Probabilities<'_> {
    /// The calibration of the probabilities of logits divided by a temperature: 1 for the model's own.
    pub fn calibration(&self, temperature: f64) -> Calibration {
        // Of each bin its samples, the sum of confidences, and those that are right.
        let mut sums = [(0u64, 0.0, 0u64); BINS];
        let mut squares = 0.0;
        for row in &self.rows {
            let Some(predicted) = row.predicted() else { continue };
            let probabilities = row.at_temperature(temperature);
            let confidence = probabilities[predicted];
            let place = ((confidence * BINS as f64) as usize).min(BINS - 1);
            let (samples, confidences, right) = &mut sums[place];
            *samples += 1;
            *confidences += confidence;
            *right += u64::from(predicted == row.class);
            let of_truth = probabilities[row.class];
            let others: f64 = probabilities.iter().map(|p| p * p).sum::<f64>() - of_truth * of_truth;
            squares += others + (1.0 - of_truth) * (1.0 - of_truth);
        }
        let all = sums.iter().map(|(samples, ..)| samples).sum::<u64>() as f64;
        let bin = |&(samples, confidences, right): &(u64, f64, u64)| {
            let mean = |sum: f64| if samples == 0 { 0.0 } else { sum / samples as f64 };
            Bin { samples, confidence: mean(confidences), accuracy: mean(right as f64) }
        };
        let bins: Vec<Bin> = sums.iter().map(bin).collect();
        let gaps: f64 = bins.iter().map(|bin| bin.samples as f64 * (bin.accuracy - bin.confidence).abs()).sum();
        Calibration { bins, ece: gaps / all, brier: squares / all }
    }
}

impl Row<'_> {
    /// The softmax of the logits divided by a temperature.
    fn at_temperature(&self, temperature: f64) -> Vec<f64> {
        let weight = |&logit: &f32| ((f64::from(logit) - self.largest) / temperature).exp();
        let weights: Vec<f64> = self.logits.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect()
    }
}
