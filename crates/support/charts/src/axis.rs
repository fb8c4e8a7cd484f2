//! Axes with ticks that are easy to read: multiples of 1, 2 or 5 times a power of ten.

/// An axis from its first tick to its last.
#[derive(Debug)]
pub(crate) struct Axis {
    /// Values and their labels, the lowest first: two at least.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis that covers `values`, which are finite, in about `most` steps. It includes 0 where 0 is near, and where all values
    /// are the same.
    pub fn over(values: impl Iterator<Item = f64>, most: u32) -> Self {
        let (mut low, mut high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = (0.0, 0.0);
        }
        let is_one_value = high - low <= 1e-9 * high.abs().max(low.abs());
        if is_one_value || (low > 0.0 && low < 0.4 * high) {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if low == high {
            high = 1.0;
        }
        let (mantissa, exponent) = step((high - low) / f64::from(most));
        let step = decimal(mantissa, exponent);
        // A value that is a tick but for its last bits begins no further step.
        let first = (low / step + 1e-6).floor() as i64;
        let last = (high / step - 1e-6).ceil() as i64;
        let is_plain = exponent >= -5 && low.abs().max(high.abs()) < 1e5;
        let ticks = (first..=last).map(|number| {
            let value = decimal(number * mantissa, exponent);
            let label = match is_plain {
                true => format!("{value:.*}", exponent.min(0).unsigned_abs() as usize),
                false if value == 0.0 => "0".to_string(),
                false => format!("{value:e}"),
            };
            (value, label)
        });
        Axis { ticks: ticks.collect() }
    }

    /// Where a value lies between the first tick, 0, and the last, 1.
    pub fn share(&self, value: f64) -> f64 {
        let ends = self.ticks.first().zip(self.ticks.last());
        let share = ends.map_or(0.0, |((low, _), (high, _))| (value - low) / (high - low));
        share.clamp(0.0, 1.0)
    }
}

/// Whole numbers from `first` to `last`, at most `most` of them, all multiples of 1, 2 or 5 times a power of ten. A range of one
/// number has that one.
pub(crate) fn whole_ticks(first: u64, last: u64, most: u64) -> Vec<u64> {
    if first == last {
        return vec![first];
    }
    let powers = std::iter::successors(Some(1u64), |power| power.checked_mul(10));
    let mut steps = powers.flat_map(|power| [1, 2, 5].map(|mantissa| power.saturating_mul(mantissa)));
    let step = steps.find(|step| last / step - first.div_ceil(*step).min(last / step) < most).unwrap_or(u64::MAX);
    (first.div_ceil(step)..=last / step).map(|number| number * step).collect()
}

/// The smallest step of at least `rough`: 1, 2 or 5 times a power of ten, as that number and the power's exponent.
fn step(rough: f64) -> (i64, i32) {
    // The decimal digits themselves: a logarithm's last bit would differ between platforms.
    let digits = format!("{rough:e}");
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    let (mantissa, exponent): (f64, i32) = (mantissa.parse().unwrap_or(1.0), exponent.parse().unwrap_or(0));
    let found = [1, 2, 5].into_iter().find(|&step| mantissa <= step as f64 * (1.0 + 1e-9));
    found.map_or((1, exponent + 1), |step| (step, exponent))
}

/// The f64 nearest to `mantissa` times ten to `exponent`.
fn decimal(mantissa: i64, exponent: i32) -> f64 {
    format!("{mantissa}e{exponent}").parse().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        let check = |values: &[f64], expected: &str| {
            let axis = Axis::over(values.iter().copied(), 5);
            let labels: Vec<&str> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
            assert_eq!(labels.join(" "), expected, "{values:?}");
            for &value in values {
                let low = axis.ticks[0].0;
                let high = axis.ticks[axis.ticks.len() - 1].0;
                let room = 1e-6 * (high - low);
                assert!((low - room..=high + room).contains(&value), "{value} of {low} to {high}");
            }
        };
        check(&[], "0.0 0.2 0.4 0.6 0.8 1.0");
        check(&[0.0], "0.0 0.2 0.4 0.6 0.8 1.0");
        check(&[1.0], "0.0 0.2 0.4 0.6 0.8 1.0");
        check(&[0.25, 1.0], "0.0 0.2 0.4 0.6 0.8 1.0");
        check(&[1.6, 0.9], "0.8 1.0 1.2 1.4 1.6");
        check(&[91.3, 93.8], "91.0 91.5 92.0 92.5 93.0 93.5 94.0");
        check(&[0.7, 0.1], "0.0 0.2 0.4 0.6 0.8");
        check(&[-3.0, 4.0], "-4 -2 0 2 4");
        check(&[-7.0], "-8 -6 -4 -2 0");
        check(&[12.0, 2300.0], "0 500 1000 1500 2000 2500");
        check(&[1e-6, 1e-5], "0 2e-6 4e-6 6e-6 8e-6 1e-5");
        check(&[150_000.0], "0 5e4 1e5 1.5e5");
        check(&[3e38, 0.0], "0 1e38 2e38 3e38");
        check(&[0.001, 0.0005], "0.0005 0.0006 0.0007 0.0008 0.0009 0.0010");
        check(&[1.000_000_000_1, 1.0], "0.0 0.2 0.4 0.6 0.8 1.0");
    }

    #[test]
    fn whole_numbers() {
        let check = |first: u64, last: u64, expected: &[u64]| assert_eq!(whole_ticks(first, last, 6), expected);
        check(0, 0, &[0]);
        check(7, 7, &[7]);
        check(0, 1, &[0, 1]);
        check(0, 5, &[0, 1, 2, 3, 4, 5]);
        check(0, 6, &[0, 2, 4, 6]);
        check(3, 29, &[5, 10, 15, 20, 25]);
        check(0, 299, &[0, 50, 100, 150, 200, 250]);
        check(0, u64::MAX, &[0, 5_000_000_000_000_000_000, 10_000_000_000_000_000_000, 15_000_000_000_000_000_000]);
    }
}
