//! What a search for a learning rate finds: the losses of steps whose rate grows, and where they fall fastest.

use serde::Serialize;

/// Steps of a search that does not diverge.
const STEPS: usize = 100;
/// The rates of the first step and of the last.
const LOWEST: f64 = 1e-7;
const HIGHEST: f64 = 10.0;
/// What each loss leaves of the average, as in fastai and Lightning.
const SMOOTHING: f64 = 0.98;
/// The average has diverged beyond so many times its lowest value.
const DIVERGED: f64 = 4.0;
/// Steps on each side of one by which the slope there is measured.
const AROUND: usize = 8;
/// A slope is more than chance beyond so many times its standard error.
const CERTAIN: f64 = 2.0;
/// A slope that is smaller is rounding.
const MIN_SLOPE: f64 = 1e-9;

/// A step of a search for a learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LrPoint {
    /// Its rate.
    pub learning_rate: f64,
    /// Its loss.
    pub loss: f64,
    /// The average of the losses so far.
    pub smoothed: f64,
}

/// The result of [`Trainer::find_lr`](crate::Trainer::find_lr): fastai's and Lightning's range test. Its JSON form is a contract with scripts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LrSearch {
    /// The setting `lr` of the steepest point, without what `scale_lr` makes of it; `None` if the loss never fell.
    pub suggestion: Option<f64>,
    /// Whether the loss diverged, so that the search ended early.
    pub diverged: bool,
    /// The steps. Their rates are those that the optimiser used.
    pub points: Vec<LrPoint>,
    #[serde(skip)]
    average: f64,
    #[serde(skip)]
    lowest: f64,
}

impl LrSearch {
    /// The rate of the next step; `None` at the end.
    pub(crate) fn next_rate(&self) -> Option<f64> {
        let step = self.points.len();
        let share = step as f64 / (STEPS - 1) as f64;
        (step < STEPS && !self.diverged).then(|| LOWEST * (HIGHEST / LOWEST).powf(share))
    }

    /// Takes the loss of the next step.
    pub(crate) fn add(&mut self, loss: f64) {
        let Some(learning_rate) = self.next_rate() else { return };
        self.average = SMOOTHING * self.average + (1.0 - SMOOTHING) * loss;
        let smoothed = self.average / (1.0 - SMOOTHING.powi(self.points.len() as i32 + 1));
        self.lowest = if self.points.is_empty() { smoothed } else { self.lowest.min(smoothed) };
        self.diverged = !smoothed.is_finite() || smoothed > DIVERGED * self.lowest;
        self.points.push(LrPoint { learning_rate, loss, smoothed });
    }

    /// The loss of the next step is not finite.
    pub(crate) fn diverge(&mut self) {
        self.diverged = true;
    }

    /// The rate where the loss falls fastest, from one rate to the next; `None` if it falls no more than by chance. A slope is that of the
    /// line through some neighbouring losses: the average of all lags behind them, and its beginning is noise. Slopes after the lowest
    /// losses are those of spikes.
    pub fn steepest(&self) -> Option<f64> {
        let lines: Vec<Line> = self.points.windows(2 * AROUND + 1).map(Line::through).collect();
        let lowest = lines.iter().enumerate().min_by(|(_, one), (_, other)| one.mean.total_cmp(&other.mean))?.0;
        let steepest = lines[..=lowest].iter().min_by(|one, other| one.slope.total_cmp(&other.slope))?;
        let is_certain = steepest.slope < -(CERTAIN * steepest.error).max(MIN_SLOPE);
        is_certain.then_some(steepest.learning_rate)
    }
}

/// A line through the losses of some steps.
struct Line {
    /// The rate of the step in the middle.
    learning_rate: f64,
    mean: f64,
    /// How much it rises from one step to the next, and the standard error of that.
    slope: f64,
    error: f64,
}

impl Line {
    fn through(points: &[LrPoint]) -> Self {
        let count = points.len() as f64;
        let middle = points.len() / 2;
        let mean = points.iter().map(|point| point.loss).sum::<f64>() / count;
        let places =
            || points.iter().enumerate().map(|(place, point)| (place as f64 - middle as f64, point.loss - mean));
        let spread: f64 = places().map(|(place, _)| place * place).sum();
        let slope = places().map(|(place, loss)| place * loss).sum::<f64>() / spread;
        let rest: f64 = places().map(|(place, loss)| (loss - slope * place).powi(2)).sum();
        let error = (rest / (count - 2.0) / spread).sqrt();
        Line { learning_rate: points[middle].learning_rate, mean, slope, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where the loss is a function of the rate.
    fn search(loss: impl Fn(f64) -> f64) -> LrSearch {
        let mut search = LrSearch::default();
        while let Some(rate) = search.next_rate() {
            search.add(loss(rate));
        }
        search
    }

    #[test]
    fn rates_grow_by_a_factor() {
        let search = search(|_| 1.0);
        let rates: Vec<f64> = search.points.iter().map(|point| point.learning_rate).collect();
        assert_eq!((rates.len(), rates[0], search.diverged, search.steepest()), (100, 1e-7, false, None));
        assert!((rates[99] / 10.0 - 1.0).abs() < 1e-12 && (rates[1] / rates[0] - 1e8f64.powf(1.0 / 99.0)).abs() < 1e-9);
        assert!(search.points.iter().all(|point| (point.smoothed - 1.0).abs() < 1e-12));
    }

    #[test]
    fn the_steepest_point_and_the_end() {
        // It falls from 2 to 1 about 1e-3, and rises again from 0.1 on.
        let falls = |rate: f64| 2.0 - 1.0 / (1.0 + (-3.0 * (rate.log10() + 3.0)).exp()) + (rate / 0.1).powi(4);
        let found = search(falls);
        let last = found.points[found.points.len() - 1].learning_rate;
        let steepest = found.steepest().unwrap();
        assert!(found.diverged && (0.1..1.0).contains(&last), "{last}");
        assert!((6e-4..1.7e-3).contains(&steepest), "{steepest}");
        // Neither by noise nor by what follows a spike.
        let noise = |rate: f64| f64::from((rate.to_bits() % 1009) as u32) / 1009.0;
        let noisy = search(|rate| falls(rate) + 0.2 * noise(rate)).steepest().unwrap();
        assert!((2e-4..5e-3).contains(&noisy), "{noisy}");
        let spike = |rate: f64| if (0.05..0.06).contains(&rate) { 2.0 } else { 0.0 };
        assert_eq!(search(|rate| falls(rate) + spike(rate)).steepest(), Some(steepest));
        // What begins to diverge at once has too few points.
        let rises = search(|rate| 1e12 * rate);
        assert!(rises.diverged && rises.points.len() < 40 && rises.steepest().is_none());
        assert_eq!(search(|_| f64::NAN).points.len(), 1);
        let mut ended = LrSearch::default();
        ended.diverge();
        assert_eq!((ended.next_rate(), ended.steepest()), (None, None));
    }
}
