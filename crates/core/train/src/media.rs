//! What loggers can show besides single numbers: images, and how values are distributed.

use crate::{Callback, CallbackResult, Control, EpochRecord, LogPoint};

/// Bins of a histogram, as many as TensorBoard's own writer makes.
const BINS: usize = 30;

/// Something to show, of a step or an epoch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Media {
    /// An image, as the bytes of a PNG.
    Png(Vec<u8>),
    /// The distribution of values.
    Histogram(Histogram),
}

/// How values are distributed: bins of equal width from the least to the greatest.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
    /// The sum of all.
    pub sum: f64,
    /// The sum of their squares.
    pub sum_squares: f64,
    /// The values of each bin.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// That of the finite values; `None` if there are none.
    pub fn of(values: &[f32]) -> Option<Self> {
        let values = || values.iter().copied().map(f64::from).filter(|value| value.is_finite());
        let (min, max) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        let mut histogram = Histogram { min, max, sum: 0.0, sum_squares: 0.0, counts: vec![0; BINS] };
        let bins = BINS as f64 / (max - min);
        for value in values() {
            histogram.sum += value;
            histogram.sum_squares += value * value;
            // Equal values are all in the first bin; the greatest is in the last one.
            let bin = if max > min { ((value - min) * bins) as usize } else { 0 };
            histogram.counts[bin.min(BINS - 1)] += 1;
        }
        Some(histogram)
    }

    /// The upper limit of each bin.
    pub fn limits(&self) -> impl Iterator<Item = f64> {
        let min = self.min;
        let width = self.max - self.min;
        let bins = self.counts.len() as f64;
        (1..=self.counts.len()).map(move |bin| min + width * (bin as f64 / bins))
    }
}

/// Gives the loggers the distribution of each parameter at the end of each epoch.
pub struct Histograms;

impl Callback for Histograms {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, control: &mut Control) -> CallbackResult {
        for name in control.weights()?.parameters() {
            let values = control.weights()?.read(&name)?.values;
            if let Some(histogram) = Histogram::of(&values) {
                control.log_media(
                    LogPoint::Epoch(record.epoch),
                    format!("weights/{name}"),
                    Media::Histogram(histogram),
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finite_value_is_in_its_bin() {
        let values: Vec<f32> = (0..=60).map(|value| value as f32).chain([f32::NAN, f32::INFINITY]).collect();
        let found = Histogram::of(&values).unwrap();
        assert_eq!((found.min, found.max, found.sum, found.sum_squares), (0.0, 60.0, 1830.0, 73810.0));
        // Two values in each bin of width 2, and the greatest in the last one.
        assert_eq!((&found.counts[..29], found.counts[29]), (&[2; 29][..], 3));
        assert_eq!(found.limits().collect::<Vec<_>>(), (1..=30).map(|bin| 2.0 * f64::from(bin)).collect::<Vec<_>>());
        let equal = Histogram::of(&[0.5; 7]).unwrap();
        assert_eq!((equal.min, equal.max, equal.counts[0], equal.counts[29]), (0.5, 0.5, 7, 0));
        assert_eq!(Histogram::of(&[f32::NAN]), None);
        // The width of a bin may be below the smallest number.
        assert_eq!(Histogram::of(&[0.0, f32::from_bits(1)]).unwrap().counts.iter().sum::<u64>(), 2);
    }
}
