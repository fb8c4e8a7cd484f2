//! Values of sbatch's options, parsed as Slurm does.

use std::fmt;
use std::str::FromStr;

use crate::ScriptError;

/// Slurm's default `MaxArraySize` is 1001: indices 0 to 1000.
pub const MAX_ELEMENTS: usize = 1001;

/// A `--time` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    text: String,
    /// The limit in seconds; `None` for no limit.
    pub seconds: Option<u64>,
}

impl FromStr for TimeLimit {
    type Err = ScriptError;

    /// Parses `MINUTES`, `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS`, `DAYS-HOURS`, `DAYS-HOURS:MINUTES`,
    /// `DAYS-HOURS:MINUTES:SECONDS`, or `UNLIMITED`.
    ///
    /// ```
    /// # use enmasse_slurm::TimeLimit;
    /// assert_eq!("1-12".parse::<TimeLimit>()?.seconds, Some(36 * 3600));
    /// # Ok::<(), enmasse_slurm::ScriptError>(())
    /// ```
    fn from_str(text: &str) -> Result<Self, ScriptError> {
        let seconds = match text.to_ascii_uppercase().as_str() {
            "UNLIMITED" | "INFINITE" => None,
            _ => Some(seconds(text).ok_or_else(|| ScriptError::Time(text.to_owned()))?),
        };
        Ok(TimeLimit { text: text.to_owned(), seconds })
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn seconds(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(number(days)?), clock),
        None => (None, text),
    };
    let parts: Vec<u64> = clock.split(':').map(number).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match (days, &parts[..]) {
        (None, &[minutes]) => (0, minutes, 0),
        (None, &[minutes, seconds]) => (0, minutes, seconds),
        (Some(_), &[hours]) => (hours, 0, 0),
        (Some(_), &[hours, minutes]) => (hours, minutes, 0),
        (_, &[hours, minutes, seconds]) => (hours, minutes, seconds),
        _ => return None,
    };
    let hours = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?;
    hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?.checked_add(seconds).filter(|&sum| sum > 0)
}

/// Only digits are accepted; a sign is an error.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A signal that Slurm sends to every task a number of seconds before the time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignalAhead {
    /// The signal's name without `SIG`.
    pub name: String,
    /// Seconds before the limit.
    pub seconds: u64,
}

/// Signals on which a rank saves.
const SIGNALS: [&str; 3] = ["USR1", "USR2", "TERM"];
/// Slurm's own limit.
const MAX_SECONDS: u64 = 65_535;

impl FromStr for SignalAhead {
    type Err = ScriptError;

    /// Parses `NAME@SECONDS`, or a name alone, which Slurm takes as 60 seconds.
    fn from_str(text: &str) -> Result<Self, ScriptError> {
        let (name, seconds) = text.split_once('@').unwrap_or((text, "60"));
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        match number(seconds) {
            Some(seconds @ 1..=MAX_SECONDS) if SIGNALS.contains(&name) => {
                Ok(SignalAhead { name: name.to_owned(), seconds })
            }
            _ => Err(ScriptError::Signal(text.to_owned())),
        }
    }
}

impl fmt::Display for SignalAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn time_limits() {
        let check = |text: &str, expected: Option<u64>| {
            let found = text.parse::<TimeLimit>().ok().map(|time| time.seconds);
            assert_eq!(found, expected.map(Some), "{text}");
        };
        check("30", Some(1800));
        check("2:30", Some(150));
        check("12:00:00", Some(43_200));
        check("1-0", Some(86_400));
        check("2-12:30", Some(2 * 86_400 + 45_000));
        check("1-01:01:01", Some(90_061));
        for text in ["", "0", "12h", "-1", "1-", "1:2:3:4", "+5", "1 0", "99999999999999999999", "99999999999999999-0"]
        {
            check(text, None);
        }
        assert_eq!("unlimited".parse::<TimeLimit>().unwrap().seconds, None);
    }

    #[test]
    fn signals() {
        let check = |text: &str, expected: &str| {
            let found = text.parse::<SignalAhead>().map(|signal| signal.to_string());
            assert_eq!(found.map_err(|error| error.to_string()), Ok(expected.to_owned()));
        };
        check("USR1@90", "USR1@90");
        check("SIGusr2@30", "USR2@30");
        check("TERM", "TERM@60");
        for text in ["", "USR1@", "USR1@0", "KILL@9", "B:USR1@90", "USR1@65536", "10@60"] {
            assert!(text.parse::<SignalAhead>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_value_or_an_error(text in "\\PC*") {
            let _ = text.parse::<TimeLimit>();
            let _ = text.parse::<SignalAhead>();
        }
    }
}
