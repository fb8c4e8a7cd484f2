//! `--recompute [BYTES|PERCENT|auto]`: which blocks backward computes again.

use enmasse_graph::Recompute;

use super::bytes::ByteCount;
use super::value::{SettingKind, SettingValue, quoted};

/// Which blocks of the model backward computes again, so that memory need not keep their activations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Recomputation {
    /// None.
    #[default]
    No,
    /// All.
    All,
    /// As few as let the step fit into the memory that is free when the run starts.
    Auto,
    /// As few as let the plans take at most this many bytes.
    Within(ByteCount),
    /// As few as let the plans take at most this many hundredths of what they take without.
    Percent(f64),
}

impl Recomputation {
    /// Whether a word after the flag is its value, rather than DATA.
    pub fn is_word(text: &str) -> bool {
        Self::parse(text).is_ok()
    }

    /// The option of a compilation; `None` if it depends on the memory that is free.
    pub fn option(self) -> Option<Recompute> {
        Some(match self {
            Recomputation::No => Recompute::Nothing,
            Recomputation::All => Recompute::All,
            Recomputation::Auto => return None,
            Recomputation::Within(ByteCount(bytes)) => Recompute::Within(usize::try_from(bytes).unwrap_or(usize::MAX)),
            Recomputation::Percent(percent) => Recompute::Share(percent / 100.0),
        })
    }
}

/// Upper and lower case are equivalent in words, as in switches.
impl SettingValue for Recomputation {
    const KIND: SettingKind = SettingKind::Optional;

    fn parse(text: &str) -> Result<Self, String> {
        let refused = || "must be all, auto, a number of bytes with a unit such as 2GiB, or a percentage such as 60%";
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "all" => return Ok(Recomputation::All),
            "false" | "0" | "none" => return Ok(Recomputation::No),
            "auto" => return Ok(Recomputation::Auto),
            _ => {}
        }
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        match percent {
            Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(Recomputation::Percent(percent)),
            Some(_) => Err(refused().to_owned()),
            None => ByteCount::parse(text).map(Recomputation::Within).map_err(|_| refused().to_owned()),
        }
    }

    fn text(&self) -> Option<String> {
        Some(match self {
            Recomputation::No => "false".to_owned(),
            Recomputation::All => "true".to_owned(),
            Recomputation::Auto => "auto".to_owned(),
            Recomputation::Within(bytes) => return bytes.text(),
            Recomputation::Percent(percent) => format!("{percent}%"),
        })
    }

    fn to_toml(&self) -> Option<String> {
        match self {
            Recomputation::No | Recomputation::All => self.text(),
            _ => self.text().map(quoted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunConfig, TrainConfig};

    #[test]
    fn words_bytes_and_percentages() {
        let check = |text: &str, expected: Option<Recomputation>| {
            let found = Recomputation::parse(text);
            assert_eq!(found.clone().ok(), expected, "{text}");
            let Some(recompute) = expected else {
                assert!(found.unwrap_err().starts_with("must be all, auto, a number of bytes"));
                return;
            };
            let train = TrainConfig { recompute, ..TrainConfig::default() };
            let config = RunConfig { train, ..RunConfig::default() };
            assert_eq!(RunConfig::from_toml(&config.to_toml()).unwrap(), config, "{text}");
        };
        check("true", Some(Recomputation::All));
        check("All", Some(Recomputation::All));
        check("false", Some(Recomputation::No));
        check("auto", Some(Recomputation::Auto));
        check("2GiB", Some(Recomputation::Within(ByteCount(2 << 30))));
        check("1500MB", Some(Recomputation::Within(ByteCount(1_500_000_000))));
        check("60%", Some(Recomputation::Percent(60.0)));
        check("12.5 %", Some(Recomputation::Percent(12.5)));
        for text in ["", "0%", "-1%", "101%", "NaN%", "2", "half", "2XB"] {
            check(text, None);
        }
    }

    /// Runs of earlier versions have the switch of the other name.
    #[test]
    fn the_other_name_is_read_from_saved_runs() {
        for (text, expected) in [("true", Recomputation::All), ("false", Recomputation::No)] {
            let config = RunConfig::from_toml(&format!("grad_checkpointing = {text}\n")).unwrap();
            assert_eq!(config.train.recompute, expected);
        }
    }

    #[test]
    fn bytes_keep_their_number() {
        let text = Recomputation::Within(ByteCount(868 << 20)).text().unwrap();
        assert_eq!(Recomputation::parse(&text), Ok(Recomputation::Within(ByteCount(868 << 20))));
    }
}
