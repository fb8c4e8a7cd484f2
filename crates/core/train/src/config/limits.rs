//! Limits of a run besides its epochs: of time (`--max-time 2h`), and of batches (`--limit-train-batches 0.1`,
//! `--fast-dev-run`).

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use super::TrainConfig;
use super::value::{SettingKind, SettingValue};

/// The units of a time, each with its seconds.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

/// A time that a run may take, above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit(pub Duration);

impl TimeLimit {
    /// Lightning's `DD:HH:MM:SS`.
    fn of_parts(text: &str) -> Option<f64> {
        let parts: Vec<u32> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let seconds = |(part, (_, unit)): (&u32, (&str, u64))| f64::from(*part) * unit as f64;
        (parts.len() == UNITS.len()).then(|| parts.iter().zip(UNITS).map(seconds).sum())
    }

    /// `90m`, `1.5h`.
    fn of_unit(text: &str) -> Option<f64> {
        let (unit, seconds) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        Some(number * *seconds as f64)
    }
}

impl SettingValue for TimeLimit {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        let seconds = Self::of_parts(text).or_else(|| Self::of_unit(text)).filter(|seconds| *seconds > 0.0);
        let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).map(TimeLimit);
        limit.ok_or_else(|| {
            "must be a time above 0, as days, hours, minutes and seconds (00:02:30:00), or as 2h or 90m".to_owned()
        })
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// In the largest unit without a fraction.
impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TimeLimit(limit) = self;
        let is_whole = |(_, unit): &&(&str, u64)| limit.subsec_nanos() == 0 && limit.as_secs().is_multiple_of(*unit);
        match UNITS.iter().find(is_whole) {
            Some((name, unit)) => write!(f, "{}{name}", limit.as_secs() / unit),
            None => write!(f, "{}s", limit.as_secs_f64()),
        }
    }
}

/// How many of an epoch's batches are used, as Lightning's `limit_train_batches`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchLimit {
    /// So many, at least 1.
    Batches(usize),
    /// This share of them, above 0 to 1. It is written with a point.
    Share(f64),
}

impl BatchLimit {
    /// How many of so many batches are used: one at least.
    pub fn of(self, batches: usize) -> usize {
        match self {
            BatchLimit::Batches(most) => most.min(batches),
            BatchLimit::Share(share) => ((batches as f64 * share) as usize).max(1).min(batches),
        }
    }
}

impl SettingValue for BatchLimit {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Self, String> {
        let batches = text.parse().ok().filter(|batches| *batches > 0).map(BatchLimit::Batches);
        let share = || text.parse().ok().filter(|share| text.contains('.') && *share > 0.0 && *share <= 1.0);
        batches.or_else(|| share().map(BatchLimit::Share)).ok_or_else(|| {
            "must be a number of batches, 1 or more, or a share of them with a point, such as 0.1".to_owned()
        })
    }

    fn text(&self) -> Option<String> {
        Some(match self {
            BatchLimit::Batches(batches) => batches.to_string(),
            BatchLimit::Share(share) => format!("{share:?}"),
        })
    }

    fn to_toml(&self) -> Option<String> {
        self.text()
    }
}

/// Whether a run only tries whether everything works, and with how many batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastDevRun(pub Option<NonZeroUsize>);

impl SettingValue for FastDevRun {
    const KIND: SettingKind = SettingKind::Optional;

    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" => Ok(FastDevRun(Some(NonZeroUsize::MIN))),
            "false" | "0" => Ok(FastDevRun(None)),
            number => number
                .parse()
                .map(|batches| FastDevRun(Some(batches)))
                .map_err(|_| "must be true, false or a number of batches".to_owned()),
        }
    }

    fn text(&self) -> Option<String> {
        Some(self.0.map_or("false".to_owned(), |batches| batches.to_string()))
    }

    fn to_toml(&self) -> Option<String> {
        self.text()
    }
}

impl TrainConfig {
    /// Whether nothing of the run is kept: it has no folder.
    pub fn keeps_nothing(&self) -> bool {
        self.fast_dev_run.0.is_some() || self.find_lr || self.find_batch
    }

    /// With what [`fast_dev_run`](Self::fast_dev_run) means for other settings: one epoch of a few batches, to its end.
    pub fn shortened(self) -> Self {
        let Some(batches) = self.fast_dev_run.0 else { return self };
        let limit = Some(BatchLimit::Batches(batches.get()));
        TrainConfig {
            epochs: 1,
            limit_train_batches: limit,
            limit_val_batches: limit,
            warmup_epochs: self.warmup_epochs.min(1.0),
            max_steps: None,
            max_time: None,
            out: None,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;

    /// Reads a value, and what was written of it.
    fn read<T: SettingValue + PartialEq + fmt::Debug>(text: &str) -> (Option<T>, String) {
        let found = T::parse(text).ok();
        let written = found.as_ref().and_then(T::text).unwrap_or_default();
        if found.is_some() {
            assert_eq!(T::parse(&written).ok(), found, "{text}");
        }
        (found, written)
    }

    #[test]
    fn times() {
        let check = |text: &str, seconds: Option<f64>, written: &str| {
            let limit = seconds.map(|seconds| TimeLimit(Duration::from_secs_f64(seconds)));
            assert_eq!(read(text), (limit, written.to_owned()), "{text}");
        };
        check("00:12:00:00", Some(43_200.0), "12h");
        check("1:2:3:4", Some(93_784.0), "93784s");
        check("02:00:00:00", Some(172_800.0), "2d");
        check("90m", Some(5400.0), "90m");
        check("2h", Some(7200.0), "2h");
        check("1.5 h", Some(5400.0), "90m");
        check("0.25s", Some(0.25), "0.25s");
        for text in ["", "90", "2:30", "00:00:00:00", "0s", "-1h", "1e300d", "NaNs", "h", "1h30m", "00:00:-1:00"] {
            check(text, None, "");
        }
    }

    #[test]
    fn batches() {
        let check = |text: &str, expected: Option<BatchLimit>, of_ten: usize| {
            let (found, _) = read::<BatchLimit>(text);
            assert_eq!((found, found.map_or(0, |limit| limit.of(10))), (expected, of_ten), "{text}");
            if found.is_some() {
                let mut config = RunConfig::default();
                config.set("limit_val_batches", text).unwrap();
                assert_eq!(RunConfig::from_toml(&config.to_toml()).unwrap(), config);
            }
        };
        check("1", Some(BatchLimit::Batches(1)), 1);
        check("1.0", Some(BatchLimit::Share(1.0)), 10);
        check("0.25", Some(BatchLimit::Share(0.25)), 2);
        check("0.01", Some(BatchLimit::Share(0.01)), 1);
        check("20", Some(BatchLimit::Batches(20)), 10);
        for text in ["", "0", "0.0", "1.5", "-1", "-0.5", "1e-1", "NaN", "half"] {
            check(text, None, 0);
        }
        assert_eq!(BatchLimit::Share(0.5).of(0), 0);
    }

    #[test]
    fn a_fast_run_is_short() {
        let check = |text: &str, expected: Option<usize>, written: &str| {
            let run = expected.map(|batches| FastDevRun(NonZeroUsize::new(batches)));
            assert_eq!(read(text), (run, written.to_owned()), "{text}");
        };
        check("true", Some(1), "1");
        check("True", Some(1), "1");
        check("3", Some(3), "3");
        check("false", Some(0), "false");
        check("0", Some(0), "false");
        check("yes", None, "");
        let asked = TrainConfig {
            epochs: 90,
            warmup_epochs: 5.0,
            max_steps: Some(5),
            out: Some("a".into()),
            ..TrainConfig::default()
        };
        assert_eq!(asked.clone().shortened(), asked);
        let short = TrainConfig { fast_dev_run: FastDevRun(NonZeroUsize::new(2)), ..asked }.shortened();
        assert_eq!((short.epochs, short.max_steps, &short.out), (1, None, &None));
        assert_eq!(short.limit_val_batches, Some(BatchLimit::Batches(2)));
        assert!(short.keeps_nothing() && short.check().is_ok());
    }
}
