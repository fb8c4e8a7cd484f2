//! The numbers that a setting or a hyper-parameter allows.

use std::fmt;

/// The numbers that a setting or a hyper-parameter allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    low: Option<i32>,
    /// Whether `low` itself is excluded.
    open_low: bool,
    high: Option<i32>,
    open_high: bool,
}

/// No limits except those of the type.
pub const ANY: Range = Range { low: None, open_low: false, high: None, open_high: false };

/// From `low` on.
pub const fn at_least(low: i32) -> Range {
    Range { low: Some(low), ..ANY }
}

/// Above `low`.
pub const fn above(low: i32) -> Range {
    Range { low: Some(low), open_low: true, ..ANY }
}

/// From `low` to `high`, both allowed.
pub const fn between(low: i32, high: i32) -> Range {
    Range { low: Some(low), high: Some(high), ..ANY }
}

/// Above `low`, up to `high`.
pub const fn above_to(low: i32, high: i32) -> Range {
    Range { low: Some(low), open_low: true, high: Some(high), ..ANY }
}

/// From `low` to below `high`.
pub const fn below(low: i32, high: i32) -> Range {
    Range { low: Some(low), high: Some(high), open_high: true, ..ANY }
}

impl Range {
    /// Whether the number is finite and within the limits.
    pub fn contains(&self, number: f64) -> bool {
        let low = self.low.map(f64::from).is_none_or(|low| number > low || (number == low && !self.open_low));
        let high = self.high.map(f64::from).is_none_or(|high| number < high || (number == high && !self.open_high));
        number.is_finite() && low && high
    }
}

/// `1 or more`, `above 0`, `above 0 to 1`, `from 0 to below 1`; empty without limits.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (Some(low), None) if self.open_low => write!(f, "above {low}"),
            (Some(low), None) => write!(f, "{low} or more"),
            (Some(low), Some(high)) if self.open_low => write!(f, "above {low} to {high}"),
            (Some(low), Some(high)) => write!(f, "from {low} to {}{high}", if self.open_high { "below " } else { "" }),
            (None, _) => Ok(()),
        }
    }
}
