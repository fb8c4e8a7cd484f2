//! `--pretrained [NAME|FILE]`: known weights, and all that follows from them.

use super::value::{SettingKind, SettingValue, quoted};

/// The weights to begin with, and whether the settings follow from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pretrained {
    /// None.
    #[default]
    No,
    /// The best ones that are known for the model.
    Best,
    /// Those of this name, at this address, or in this file.
    Named(String),
}

impl Pretrained {
    /// Whether there are some.
    pub fn is_on(&self) -> bool {
        *self != Pretrained::No
    }
}

/// Upper and lower case are equivalent in `true` and `false`, as in switches.
impl SettingValue for Pretrained {
    const KIND: SettingKind = SettingKind::Optional;

    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "" => Err("must be true, false, a name of enmasse weights list, an address or a file".to_owned()),
            "true" | "1" | "default" => Ok(Pretrained::Best),
            "false" | "0" | "none" => Ok(Pretrained::No),
            _ => Ok(Pretrained::Named(text.to_owned())),
        }
    }

    fn text(&self) -> Option<String> {
        Some(match self {
            Pretrained::No => "false".to_owned(),
            Pretrained::Best => "true".to_owned(),
            Pretrained::Named(name) => name.clone(),
        })
    }

    fn to_toml(&self) -> Option<String> {
        match self {
            Pretrained::No | Pretrained::Best => self.text(),
            Pretrained::Named(name) => Some(quoted(name.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunConfig, TrainConfig};

    #[test]
    fn words_and_names() {
        let check = |text: &str, expected: Pretrained| {
            assert_eq!(Pretrained::parse(text), Ok(expected.clone()), "{text}");
            let train = TrainConfig { pretrained: expected, ..TrainConfig::default() };
            let config = RunConfig { train, ..RunConfig::default() };
            assert_eq!(RunConfig::from_toml(&config.to_toml()).unwrap(), config);
        };
        check("true", Pretrained::Best);
        check("True", Pretrained::Best);
        check("DEFAULT", Pretrained::Best);
        check("0", Pretrained::No);
        check("IMAGENET1K_V2", Pretrained::Named("IMAGENET1K_V2".to_owned()));
        check("hf:timm/a@b", Pretrained::Named("hf:timm/a@b".to_owned()));
        assert!(Pretrained::parse("").is_err());
    }
}
