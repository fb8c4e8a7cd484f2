//! The value of an epoch's record that decides which epoch is the best one.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::EpochRecord;

/// Which of two values is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The lower one, as of losses.
    Lower,
    /// The higher one, as of accuracies.
    Higher,
}

/// The value of an epoch's record that decides which epoch is the best one ([`crate::EpochRecord::value`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// Its name, such as `val_loss`.
    pub name: String,
    /// Which values are better.
    pub direction: Direction,
}

impl Monitor {
    /// A value that is better if it is lower.
    pub fn lower(name: impl Into<String>) -> Self {
        Monitor { name: name.into(), direction: Direction::Lower }
    }

    /// A value that is better if it is higher.
    pub fn higher(name: impl Into<String>) -> Self {
        Monitor { name: name.into(), direction: Direction::Higher }
    }

    /// The value of an epoch. The error lists what there is.
    pub(crate) fn value(&self, record: &EpochRecord) -> Result<f64, String> {
        record.value(&self.name).ok_or_else(|| {
            let names: Vec<&str> = record.scalars().into_iter().map(|(name, _)| name).collect();
            format!("no epoch has {}: there are {}", self.name, names.join(", "))
        })
    }

    /// Whether a value is better than the best one so far. Any number is better than none.
    pub fn improves(&self, value: f64, best: Option<f64>) -> bool {
        match (best, self.direction) {
            (None, _) => true,
            (Some(best), _) if best.is_nan() => !value.is_nan(),
            (Some(best), Direction::Lower) => value < best,
            (Some(best), Direction::Higher) => value > best,
        }
    }
}

/// The best value so far of what a run monitors. As JSON, and in the texts of a checkpoint, its key is `best_NAME`.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// The name of the value, such as `val_accuracy`.
    pub metric: String,
    /// The value of the best whole epoch; `None` (in JSON `null`) if none has ended.
    pub value: Option<f64>,
}

impl Best {
    /// The key in files.
    pub fn key(&self) -> String {
        format!("best_{}", self.metric)
    }
}

impl Default for Best {
    /// That of a classification that has not begun.
    fn default() -> Self {
        Best { metric: "val_accuracy".to_owned(), value: None }
    }
}

/// `val_loss 0.1234`.
impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) => write!(f, "{} {value:.4}", self.metric),
            None => write!(f, "{} of no whole epoch yet", self.metric),
        }
    }
}

impl Serialize for Best {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(&self.key(), &self.value)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_names_of_records() {
        let metrics = [("val_top5".to_owned(), 0.75)].into();
        let record = EpochRecord { val_loss: 0.5, metrics, ..EpochRecord::default() };
        let check = |name: &str, expected: f64| assert_eq!(Monitor::lower(name).value(&record), Ok(expected));
        check("val_loss", 0.5);
        check("val_top5", 0.75);
        let unknown = Monitor::lower("top5").value(&record).unwrap_err();
        assert!(unknown.starts_with("no epoch has top5: there are learning_rate, ") && unknown.ends_with("val_top5"));
    }

    #[test]
    fn the_direction_decides() {
        let check = |value: f64, best: Option<f64>, [lower, higher]: [bool; 2]| {
            let found = [Monitor::lower("a"), Monitor::higher("a")].map(|monitor| monitor.improves(value, best));
            assert_eq!(found, [lower, higher], "{value} after {best:?}");
        };
        check(0.5, None, [true, true]);
        check(f64::NAN, None, [true, true]);
        check(0.25, Some(0.5), [true, false]);
        check(0.5, Some(0.5), [false, false]);
        check(0.75, Some(0.5), [false, true]);
        check(f64::NAN, Some(0.5), [false, false]);
        check(0.5, Some(f64::NAN), [true, true]);
        check(f64::NAN, Some(f64::NAN), [false, false]);
    }
}
